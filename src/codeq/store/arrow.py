"""Decodes fields of many encoded tasks into Arrow columns, without creating an object per task.

Reading the log spends most of its time on creating objects that are dropped at once. Here all tasks are read in step,
a field at a time: the positions of the field in each task are an array, and so are its values. An encoding that the
codec does not write for a task is refused, and the caller decodes the tasks one by one instead.
"""

from collections.abc import Sequence, Set
from typing import get_type_hints

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Raw

from codeq.domain.task import Task

Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_FIELDS = Task.__struct_fields__
_NUMBERS = frozenset(name for name, kind in get_type_hints(Task).items() if kind is int)
_FIELDS_MIN = len(_FIELDS) - len(Task.__struct_defaults__)
"""What the oldest records have. All fields after these have defaults: 0, or None."""
UNSUPPORTED = frozenset({"backoff", "has_webhook"})
"""Fields that are neither numbers nor texts. They can only be passed over."""

_PADDING = bytes(512)
"""Padding after the last record: a truncated record is read on into zeros, and detected at the end."""
_ARRAY, _NONE, _SMALL_MAX = 0xDC, 0xC0, 0x7F
_ARRAY_OF_3, _FALSE, _TRUE = 0x93, 0xC2, 0xC3
_UNEXPECTED = -99

_WIDTH = np.full(256, _UNEXPECTED, np.int64)
"""By a number's first byte: how many bytes follow it. If none does, the first byte is the number."""
_WIDTH[: _SMALL_MAX + 1] = 0
_WIDTH[0xCC:0xD0] = [1, 2, 4, 8]

_LENGTH = np.full(256, _UNEXPECTED, np.int64)
"""By a text's first byte: its length; if negative, how many of the next bytes hold the length."""
_LENGTH[0xA0:0xC0] = np.arange(32)
_LENGTH[_NONE] = 0
_LENGTH[0xD9:0xDC] = [-1, -2, -4]


class UnexpectedEncoding(ValueError):
    """A record is not encoded as the codec encodes it."""


def columns(records: Sequence[Raw], wanted: Set[str]) -> dict[str, pa.Array]:
    """Returns the wanted fields of the tasks: numbers as int64, texts and fields that may be None as strings.

    Raises UnexpectedEncoding, and then nothing is known of any of them.
    """
    reader = _RecordReader(records)
    found = {}
    for name in _FIELDS[: reader.fields]:
        if name == "backoff":
            reader.skip_backoff()
        elif name == "has_webhook":
            reader.skip_flag()
        else:
            read = reader.numbers if name in _NUMBERS else reader.texts
            column = read(is_wanted=name in wanted)
            if column is not None:
                found[name] = column
    reader.check()
    for name in wanted & set(_FIELDS[reader.fields :]):  # appended since these records were written
        is_number = name in _NUMBERS
        found[name] = pa.array(np.zeros(len(records), np.int64)) if is_number else pa.nulls(len(records), pa.string())
    return found


class _RecordReader:
    def __init__(self, records: Sequence[Raw]) -> None:
        data = b"".join(records) + _PADDING
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        self._ends: Places = lengths.cumsum()
        self._buffer = pa.py_buffer(data)
        self._bytes: Bytes = np.frombuffer(data, np.uint8)
        self._words = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))
        """The eight bytes from each position on, as a number."""
        self._at: Places = self._ends - lengths
        starts = self._bytes[self._at]
        if len(data) > np.iinfo(np.int32).max or not (starts == _ARRAY).all():
            raise UnexpectedEncoding
        fields = self._words[self._at] >> 40 & 0xFFFF
        self.fields = int(fields[0])
        """Fields of each record. Older versions wrote fewer; records of several are not read together."""
        if not _FIELDS_MIN <= self.fields <= len(_FIELDS) or not (fields == self.fields).all():
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

    def skip_backoff(self) -> None:
        """Passes over a field that is None or an array of a text and two numbers."""
        nested = np.flatnonzero(self._bytes[self._at] != _NONE)
        whole = self._at
        if len(nested):
            if not (self._bytes[whole[nested]] == _ARRAY_OF_3).all():
                raise UnexpectedEncoding
            self._at = whole[nested] + 1
            self.texts(is_wanted=False)
            self.numbers(is_wanted=False)
            self.numbers(is_wanted=False)
            whole[nested] = self._at - 1
        self._at = whole + 1

    def skip_flag(self) -> None:
        if not np.isin(self._bytes[self._at], (_FALSE, _TRUE)).all():
            raise UnexpectedEncoding
        self._at += 1

    def check(self) -> None:
        if (self._at > self._ends).any():
            raise UnexpectedEncoding

    def _following_bytes(self, width: Places) -> npt.NDArray[np.uint64]:
        """Returns the next `width` bytes of each record as a number."""
        if width.min() < 0 or width.max() > 8:
            raise UnexpectedEncoding
        words = self._words[self._at + 1].astype(np.uint64)
        return words >> np.where(width == 0, 0, 64 - 8 * width).astype(np.uint64)

    def _texts_before(self, start: Places, is_none: npt.NDArray[np.bool_]) -> pa.Array:
        """Returns the texts between `start` and the current position: every second slice of the bytes, cut at both."""
        count = len(start)
        if is_none.all():
            return pa.nulls(count, pa.string())
        cuts = np.empty(2 * count + 1, np.int32)
        cuts[: 2 * count : 2] = start
        cuts[1 : 2 * count : 2] = self._at
        cuts[-1] = self._at[-1]
        pieces = pa.StringArray.from_buffers(2 * count, pa.py_buffer(cuts), self._buffer)
        return pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=is_none))
