"""Bloom filters of one process: what it has probably seen before, so that it reads before it writes.

A filter knows what was added in this period and the one before, and nothing older. A false positive costs a read, never
a task: what a filter says yes to is looked up in Redis.
"""

from collections.abc import Callable
from time import monotonic

from msgspec import Struct
from rbloom import Bloom


class FilterSize(Struct, frozen=True, kw_only=True):
    items: int
    """How many a period may have before it ends early; 0 for no filter."""
    error_rate: float
    seconds: float
    """How long a period is."""


class RotatingFilter:
    """Two filters, of this period and the one before. Takes memory once something is added."""

    def __init__(self, size: FilterSize, *, clock: Callable[[], float] = monotonic) -> None:
        self._size = size
        self._clock = clock
        self._current: Bloom | None = None
        self._previous: Bloom | None = None
        self._items = 0
        self._ends_s = 0.0
        self.checks = 0
        self.hits = 0
        """Checks that were answered yes, rightly or not."""

    def add(self, item: str | bytes) -> None:
        if not self._size.items:
            return
        self._rotate()
        if self._current is None:
            self._current = Bloom(self._size.items, self._size.error_rate)
            self._ends_s = self._clock() + self._size.seconds
        if item not in self._current:
            self._current.add(item)
            self._items += 1

    def __contains__(self, item: str | bytes) -> bool:
        """Whether the item was probably added in this period or the one before."""
        self.checks += 1
        if self._current is None and self._previous is None:
            return False
        self._rotate()
        current, previous = self._current, self._previous
        if (current is not None and item in current) or (previous is not None and item in previous):
            self.hits += 1
            return True
        return False

    @property
    def size_bytes(self) -> int:
        return sum(part.size_in_bits // 8 for part in (self._current, self._previous) if part is not None)

    def _rotate(self) -> None:
        """Ends a period whose time is over, or that is full: past that, the filter would say yes to everything."""
        late_s = self._clock() - self._ends_s
        if late_s < 0 and not self._is_full():
            return
        self._previous = self._current if late_s < self._size.seconds else None
        self._current, self._items = None, 0
        self._ends_s = self._clock() + self._size.seconds

    def _is_full(self) -> bool:
        return self._items >= self._size.items


class Filters:
    """The filters of one process, for all its shards."""

    def __init__(
        self,
        *,
        idempotency: RotatingFilter | None = None,
        ghost: RotatingFilter | None = None,
        cleanup: RotatingFilter | None = None,
    ) -> None:
        self.idempotency = idempotency or RotatingFilter(IDEMPOTENCY)
        """Idempotency keys that tasks were created with."""
        self.ghost = ghost or RotatingFilter(GHOST)
        """Tasks that were cancelled while pending, whose entries may still be in their list."""
        self.cleanup = cleanup or RotatingFilter(CLEANUP)
        """Tasks that were purged, by this process or before it could."""

    def by_name(self) -> dict[str, RotatingFilter]:
        return {"idempotency": self.idempotency, "ghost": self.ghost, "cleanup": self.cleanup}


IDEMPOTENCY = FilterSize(items=1_000_000, error_rate=0.01, seconds=1800)
GHOST = FilterSize(items=2_000_000, error_rate=1e-12, seconds=21_600)
CLEANUP = FilterSize(items=2_000_000, error_rate=0.01, seconds=21_600)
