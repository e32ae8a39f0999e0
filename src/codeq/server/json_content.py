"""Checks the JSON that a producer or a worker sends as payload or result: all parsers must read it alike.

Large values are checked in pieces, and other calls run between two of them: a megabyte of brackets takes 0.1 s.
"""

import re
from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from codeq.domain.errors import InvalidRequest
from codeq.usecases.budget import LoopBudget

DEPTH_MAX = 32
"""Levels of a body. A payload or a result is one level inside it."""
PIECEWISE_BYTES = 16 * 1024
"""A longer value is checked in pieces; a shorter one takes a few milliseconds at worst."""

_PIECE = 32 * 1024
_STRING_END = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_WORD_END = re.compile(rb"[^\[\]{},:\"\s]*+")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_WITHOUT_STRUCTURE = bytes.maketrans(b"[]{}:,", b"      ")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NESTED = (dict, list)
_FAULTS = (msgspec.DecodeError, UnicodeError, RecursionError, ValueError)
_decode = msgspec.json.Decoder().decode
_decode_scalars = msgspec.json.Decoder().decode_lines


class Content(NamedTuple):
    """The JSON inside a message: what it is called, where it is, and the check of its size."""

    name: str
    of: Callable[[Any], Any]
    """Returns the bytes; empty or None if there are none."""
    check_size: Callable[[bytes], bytes]

    def check(self, message: Any) -> None:
        """Raises InvalidRequest unless the content is JSON: valid text, numbers in range, no half surrogates, nested
        no deeper than `DEPTH_MAX`."""
        if (content := self.of(message)) and self.check_small(raw := bytes(content)):
            for _ in self.check_large(raw):
                pass

    async def check_in_pieces(self, message: Any, budget: LoopBudget) -> None:
        """As `check`, and other calls run in between."""
        await budget.yield_if_spent()
        if (content := self.of(message)) and self.check_small(raw := bytes(content)):
            for _ in self.check_large(raw):
                await budget.yield_if_spent()

    def check_small(self, raw: bytes) -> bool:
        """Checks a content that is not large. Returns whether it is large, so that `check_large` must do it."""
        if len(raw) > PIECEWISE_BYTES:
            return True
        try:
            value = _decode(raw)
            if b"\\u" in raw and _SURROGATE.search(raw):
                msgspec.json.encode(value)
        except _FAULTS as fault:
            raise self._refusal(fault) from None
        if type(value) not in _NESTED:
            return False
        if raw.count(b"[") + raw.count(b"{") >= DEPTH_MAX:
            for _ in _check_depth(raw):
                pass
        return False

    def check_large(self, raw: bytes) -> Iterator[None]:
        """Checks a content and its size, piece by piece while the answer is read."""
        self.check_size(raw)
        try:
            msgspec.json.decode(raw, type=msgspec.Raw)  # the structure, without making objects
            yield
            has_surrogates = b"\\u" in raw and _SURROGATE.search(raw)
            for piece in _scalars(raw):
                values = _decode_scalars(piece.translate(_WITHOUT_STRUCTURE))
                if has_surrogates:
                    msgspec.json.encode(values)
                yield
        except _FAULTS as fault:
            raise self._refusal(fault) from None
        yield from _check_depth(raw)

    def _refusal(self, fault: Exception) -> InvalidRequest:
        return InvalidRequest(f"the {self.name} is not JSON that can be kept: {fault}")


def _scalars(raw: bytes) -> Iterator[bytes]:
    """Yields valid JSON in pieces, each of which ends outside of strings, numbers and words."""
    start = 0
    while start < len(raw):
        piece = raw[start : start + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = piece[:-1]  # the escape belongs to the rest of its string
        end = start + len(piece)
        text = piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece
        rest = _STRING_END if text.count(b'"') % 2 else _WORD_END
        found = rest.match(raw, end)
        end = found.end() if found else len(raw)
        yield raw[start:end]
        start = end


def _check_depth(raw: bytes) -> Iterator[None]:
    """Refuses valid JSON that is nested too deep."""
    text = raw.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in raw else raw
    depth, in_string = 0, 0
    for start in range(0, len(text), _PIECE):
        parts = text[start : start + _PIECE].split(b'"')
        steps = array("b", b"".join(parts[in_string::2]).translate(_STEPS, _NOT_BRACKETS))
        in_string = (in_string + len(parts) - 1) % 2
        depths = list(accumulate(steps, initial=depth))
        depth = depths[-1]
        if max(depths) >= DEPTH_MAX:
            raise InvalidRequest(f"the body is nested deeper than {DEPTH_MAX} levels")
        yield
