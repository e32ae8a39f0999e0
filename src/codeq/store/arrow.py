"""Fields of many encoded tasks as Arrow columns, without an object for any of them.

A read of the log is mostly the making of objects that are thrown away at once. Here all tasks are read in step, a field
at a time: where each one's field begins is an array, and so is everything that is known of it. Whatever the codec does
not write for a task is refused, and its reader decodes the tasks one by one instead.
"""

from collections.abc import Collection, Sequence
from typing import get_type_hints

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Raw

from codeq.domain.task import Task

Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LAST = "trace_id"
"""Fields behind this one are not all numbers and texts, and no event shows them."""

_FIELDS = Task.__struct_fields__[: Task.__struct_fields__.index(LAST) + 1]
_NUMBERS = frozenset(name for name, kind in get_type_hints(Task).items() if kind is int)

_BEHIND = bytes(512)
"""Lies behind the last record, so that one that is cut short is read on into zeros, and found out at the end."""
_ARRAY, _NONE, _SMALL_MAX = 0xDC, 0xC0, 0x7F
_ODD = -99

_WIDTH = np.full(256, _ODD, np.int64)
"""By a number's first byte: how many bytes follow it. Without any, it is the number."""
_WIDTH[: _SMALL_MAX + 1] = 0
_WIDTH[0xCC:0xD0] = [1, 2, 4, 8]

_LENGTH = np.full(256, _ODD, np.int64)
"""By a text's first byte: how long it is, or less than nothing: in how many of the next bytes that is said."""
_LENGTH[0xA0:0xC0] = np.arange(32)
_LENGTH[_NONE] = 0
_LENGTH[0xD9:0xDC] = [-1, -2, -4]


class UnexpectedEncoding(ValueError):
    """Not as the codec writes it."""


def columns(records: Sequence[Raw], wanted: Collection[str]) -> dict[str, pa.Array]:
    """The wanted fields of the tasks: numbers as int64, texts and those that may be None as strings.

    Raises OddRecord, and then nothing is known of any of them.
    """
    reader = _RecordReader(records)
    found = {}
    for name in _FIELDS:
        read = reader.numbers if name in _NUMBERS else reader.texts
        column = read(is_wanted=name in wanted)
        if column is not None:
            found[name] = column
    reader.check()
    return found


class _RecordReader:
    def __init__(self, records: Sequence[Raw]) -> None:
        data = b"".join(records) + _BEHIND
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        self._ends: Places = lengths.cumsum()
        self._buffer = pa.py_buffer(data)
        self._bytes: Bytes = np.frombuffer(data, np.uint8)
        self._words = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))
        """The eight bytes from every place on, as a number."""
        self._at: Places = self._ends - lengths
        starts = self._bytes[self._at]
        if len(data) > np.iinfo(np.int32).max or not (starts == _ARRAY).all():
            raise UnexpectedEncoding
        self._at += 3

    def numbers(self, *, is_wanted: bool) -> pa.Array | None:
        tag = self._bytes[self._at]
        if tag.max() <= _SMALL_MAX:
            self._at += 1
            return pa.array(tag.astype(np.int64)) if is_wanted else None
        width = _WIDTH[tag]
        value = np.where(width == 0, tag, self._following_bytes(width))
        self._at += 1 + width
        return pa.array(value.astype(np.int64)) if is_wanted else None

    def texts(self, *, is_wanted: bool) -> pa.Array | None:
        tag = self._bytes[self._at]
        start, length = self._at + 1, _LENGTH[tag]
        if length.min() < 0:
            width = np.maximum(-length, 0)
            length = np.where(width == 0, length, self._following_bytes(width).astype(np.int64))
            start += width
        self._at = start + length
        if self._at.max() > self._ends[-1]:
            raise UnexpectedEncoding
        return self._texts_before(start, tag == _NONE) if is_wanted else None

    def check(self) -> None:
        if (self._at > self._ends).any():
            raise UnexpectedEncoding

    def _following_bytes(self, width: Places) -> npt.NDArray[np.uint64]:
        """What the next so many bytes say, as a number."""
        if width.min() < 0 or width.max() > 8:
            raise UnexpectedEncoding
        words = self._words[self._at + 1].astype(np.uint64)
        return words >> np.where(width == 0, 0, 64 - 8 * width).astype(np.uint64)

    def _texts_before(self, start: Places, is_none: npt.NDArray[np.bool_]) -> pa.Array:
        """The texts between `start` and where we are: every second piece of all bytes, cut at both."""
        count = len(start)
        if is_none.all():
            return pa.nulls(count, pa.string())
        cuts = np.empty(2 * count + 1, np.int32)
        cuts[: 2 * count : 2] = start
        cuts[1 : 2 * count : 2] = self._at
        cuts[-1] = self._at[-1]
        pieces = pa.StringArray.from_buffers(2 * count, pa.py_buffer(cuts), self._buffer)
        return pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=is_none))
