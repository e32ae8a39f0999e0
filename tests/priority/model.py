"""The priority queue as a dictionary: what it promises, written down as simply as possible."""

from dataclasses import dataclass
from enum import Enum

LOCK_MS = 300_000


class Place(Enum):
    QUEUE = "queue"
    RETRY = "retry"
    FLIGHT = "in flight"
    DEAD = "dead"


@dataclass
class Entry:
    place: Place
    priority: int
    since_ms: int
    order: int
    attempts: int = 0
    until_ms: int = 0
    """When the delay or the lock ends."""
    worker: str = ""
    delivery: int = 0

    @property
    def score(self) -> int:
        return (100 - self.priority) * 10**13 + self.since_ms


class Model:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.now_ms = 1_738_800_000_000
        self._order = 0
        self.deliveries = 0

    def enqueue(self, task_id: str, priority: int) -> bool:
        entry = self.entries.get(task_id)
        if entry and entry.place is not Place.DEAD:
            entry.priority = max(entry.priority, priority)
            return False
        self.entries[task_id] = Entry(Place.QUEUE, priority, self.now_ms, self._next())
        return True

    def dequeue(self, worker: str, *, age_ms: int | None = None, attempts_max: int | None = None) -> str | None:
        self._return_due(Place.RETRY)
        self.recover()
        while ready := [task_id for task_id, entry in self.entries.items() if entry.place is Place.QUEUE]:
            best = min(ready, key=lambda task_id: self._rank(self.entries[task_id], age_ms))
            entry = self.entries[best]
            if attempts_max is not None and entry.attempts >= attempts_max:
                entry.place = Place.DEAD
                continue
            self.deliveries += 1
            entry.place, entry.worker, entry.delivery = Place.FLIGHT, worker, self.deliveries
            entry.attempts += 1
            entry.until_ms = self.now_ms + LOCK_MS
            return best
        return None

    def recover(self) -> set[str]:
        return self._return_due(Place.FLIGHT)

    def is_locked(self, task_id: str) -> bool:
        entry = self.entries.get(task_id)
        return entry is not None and entry.place is Place.FLIGHT and entry.until_ms > self.now_ms

    def holds(self, worker: str, task_id: str, delivery: int | None = None) -> bool:
        entry = self.entries.get(task_id)
        return (
            entry is not None
            and self.is_locked(task_id)
            and entry.worker == worker
            and delivery in (None, entry.delivery)
        )

    def renew(self, task_id: str) -> None:
        self.entries[task_id].until_ms = self.now_ms + LOCK_MS

    def complete(self, task_id: str) -> None:
        del self.entries[task_id]

    def release(self, task_id: str) -> None:
        self.entries[task_id].place = Place.QUEUE

    def requeue(self, task_id: str, delay_ms: int, priority: int | None) -> None:
        entry = self.entries[task_id]
        entry.priority = entry.priority if priority is None else priority
        entry.since_ms, entry.order = self.now_ms + delay_ms, self._next()
        entry.until_ms = self.now_ms + delay_ms
        entry.place = Place.RETRY if delay_ms else Place.QUEUE

    def size(self, *, include_delayed: bool) -> int:
        return sum(self._is_counted(entry, include_delayed=include_delayed) for entry in self.entries.values())

    def _is_counted(self, entry: Entry, *, include_delayed: bool) -> bool:
        is_due = entry.until_ms <= self.now_ms
        return (
            entry.place is Place.QUEUE
            or (entry.place is Place.RETRY and (is_due or include_delayed))
            or (entry.place is Place.FLIGHT and is_due)
        )

    def _return_due(self, place: Place) -> set[str]:
        due = {
            task_id for task_id, entry in self.entries.items() if entry.place is place and entry.until_ms <= self.now_ms
        }
        for task_id in due:
            self.entries[task_id].place = Place.QUEUE
        return due

    def _rank(self, entry: Entry, age_ms: int | None) -> tuple[int, int, int]:
        is_aged = age_ms is not None and self.now_ms - entry.since_ms >= age_ms
        return (entry.since_ms if is_aged else entry.score, entry.score, entry.order)

    def _next(self) -> int:
        self._order += 1
        return self._order
