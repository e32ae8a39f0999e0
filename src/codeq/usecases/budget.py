"""How long one call may use the event loop before others run.

A verb of the store never suspends, so a loop over verbs has to yield by itself.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TypeVar

from codeq.domain.limits import BATCH_PIECE_MAX, PIECE_BYTES_MAX, SHORT_BATCH_MAX
from codeq.usecases.core import Core

Item = TypeVar("Item")


class LoopBudget:
    """Made by a long call, which yields before each piece of its work, the first included."""

    __slots__ = ("_core", "_tenant", "_until_s")

    def __init__(self, core: Core, tenant: str) -> None:
        self._core = core
        self._tenant = tenant
        self._until_s = 0.0

    @property
    def is_spent(self) -> bool:
        """For loops over many small items, where a coroutine for each would cost as much as the item."""
        return perf_counter() >= self._until_s

    async def yield_if_spent(self) -> None:
        """Lets other calls run if this one has used its time, or none yet, and returns at its next turn."""
        if perf_counter() >= self._until_s:
            self._until_s = await self._core.turns.wait(self._tenant)


def is_short(items: int, size: int = 0) -> bool:
    """Returns whether a call with this many items and bytes is done so soon that it needs no turn."""
    return items <= SHORT_BATCH_MAX and size <= PIECE_BYTES_MAX


def fit_into_piece(items: int, size: int) -> bool:
    """Returns whether this many items and bytes are no more than a long call does before others run."""
    return items <= BATCH_PIECE_MAX and size <= PIECE_BYTES_MAX


def pieces_of(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yields the items of a request with this many bytes in pieces: of one item each, if some of them may be large."""
    at_once = BATCH_PIECE_MAX if size <= PIECE_BYTES_MAX else 1
    return (items[start : start + at_once] for start in range(0, len(items), at_once))


def pieces(items: Sequence[Item], sizes: Sequence[int]) -> Iterator[Sequence[Item]]:
    """Yields the items in pieces of about a millisecond's work, by their number and their bytes."""
    start = size = 0
    for place, item_bytes in enumerate(sizes):
        size += item_bytes
        if place - start == BATCH_PIECE_MAX - 1 or size >= PIECE_BYTES_MAX:
            yield items[start : place + 1]
            start, size = place + 1, 0
    if start < len(items):
        yield items[start:]
