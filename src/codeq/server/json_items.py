"""Splits the body of a large batch into its items, in pieces that other calls run between.

A decoder does that in one call of several hundred milliseconds for the longest body. Here each piece costs a few
operations on bytes, unless an item begins or ends inside it.
"""

import re
from array import array
from collections.abc import Generator, Iterator
from itertools import accumulate

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import BATCH_TASKS_MAX

_PIECE = 8 * 1024
_HEAD = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"(\w+)"[ \t\r\n]*:[ \t\r\n]*\[')
_BLANK = re.compile(rb"[ \t\r\n]*")
_TAIL = re.compile(rb"\][ \t\r\n]*\}[ \t\r\n]*")
_TOKENS = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def split_items(body: bytes, field: str) -> Iterator[memoryview | None]:
    """Yields the items of `{"<field>": [...]}`, each still to be parsed, and None where other calls may run."""
    head = _HEAD.match(body)
    if head is None or head[1] != field.encode():
        raise InvalidRequest(f"a body of this size is an object with the field {field!r} and no other")
    return _ItemSplitter(body, head.end()).items()


class _ItemSplitter:
    def __init__(self, body: bytes, start: int) -> None:
        self._body = body
        self._item_start = start
        self._at = start
        self._depth = 0
        """Levels below the array of items."""
        self._in_string = 0
        self._items = 0

    def items(self) -> Iterator[memoryview | None]:
        body = self._body
        while self._at < len(body):
            piece = body[self._at : self._at + _PIECE]
            backslashes = len(piece) - len(piece.rstrip(b"\\"))
            if backslashes % 2 and len(piece) > 1:
                piece = piece[:-1]  # the escape belongs to the next piece
            if not self._skip(piece):
                end = yield from self._read(self._at + len(piece))
                if end is not None:
                    if not _TAIL.fullmatch(body, end):
                        break
                    return
            self._at += len(piece)
            yield None
        raise InvalidRequest("the body cannot be read: it is not one JSON object that ends after its items")

    def _skip(self, piece: bytes) -> bool:
        """Passes the piece if all of it is inside one item. Returns whether it was passed."""
        text = piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece
        parts = text.split(b'"')
        brackets = b"".join(parts[self._in_string :: 2]).translate(_TO_SQUARE, _NOT_BRACKETS)
        for _ in range(4):  # shortens what is counted below, and changes neither its lowest nor its last level
            brackets = brackets.replace(b"[]", b"")
        depths = list(accumulate(array("b", brackets.translate(_STEPS)), initial=self._depth))
        if min(depths) < 1:
            return False
        self._depth = depths[-1]
        self._in_string = (self._in_string + len(parts) - 1) % 2
        return True

    def _read(self, end: int) -> Generator[memoryview, None, int | None]:
        """Yields the items that end before `end`. Returns where the array ends, if it does."""
        for token in _TOKENS.finditer(self._body, self._at, end):
            char = token[0]
            if char == b'"':
                self._in_string ^= 1
            elif self._in_string or char[:1] == b"\\":
                continue
            elif char in b"[{":
                self._depth += 1
            elif char in b"]}":
                self._depth -= 1
                if self._depth < 0:
                    if self._items or not _BLANK.fullmatch(self._body, self._item_start, token.start()):
                        yield self._item(token.start())
                    return token.start()
            elif not self._depth:
                yield self._item(token.start())
        return None

    def _item(self, end: int) -> memoryview:
        item = memoryview(self._body)[self._item_start : end]  # a copy of a large one takes too long
        self._item_start = end + 1
        self._items += 1
        if self._items > BATCH_TASKS_MAX:
            raise InvalidRequest(f"a batch has at most {BATCH_TASKS_MAX} items")
        return item
