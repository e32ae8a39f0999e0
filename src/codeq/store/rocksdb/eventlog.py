"""The event log of one shard on disk: gapless numbers, several events under one key, trimmed from the front.

The event of a task's last move is the same bytes as the task's entry in an index, so an entry that cannot be read is
restored from here. Events that cannot be read themselves are left out: readers get those before, then those behind.
"""

from collections.abc import Iterator

from msgspec import DecodeError, Raw

from codeq.domain.errors import StoreCorrupt
from codeq.domain.limits import EVENT_SEGMENT_MAX, EVENTS_READ_MAX
from codeq.domain.task import Task
from codeq.store.codec import UNREADABLE, decode_task, decode_tasks, split_tasks
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database
from codeq.store.rocksdb.write_buffer import WriteBuffer

_NO_EVENTS = "these are not the events from the key's number on"


class EventLog:
    buffer: WriteBuffer

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_verified = False
        """Whether each event is decoded before it is returned: once one could not be."""
        self._damage: list[tuple[bytes, str]] = []
        self.next_version = 1
        self.newest_ms = 0
        last = database.last(keys.EVENTS, keys.after(keys.EVENTS))
        if last is not None:
            self._read_last(*last)
        self.first = self._first_kept(is_empty=last is None)
        self.next_version = max(self.next_version, self.first)

    def attach(self, buffer: WriteBuffer) -> None:
        """Sets the write buffer that events are added to, and reports there what could not be read."""
        self.buffer = buffer
        buffer.original = self.task
        for key, reason in self._damage:
            buffer.report(key, reason)

    def read(self, start: int, limit: int) -> tuple[int, list[Raw]]:
        """Returns the encoded events from `start` on, and the number of the first of them. They end where one cannot
        be read; if that is the first, they begin behind it."""
        start = max(start, self.first)
        limit = min(limit, EVENTS_READ_MAX)
        if limit <= 0 or start >= self.buffer.next_version:
            return start, []
        holding = self.buffer.last(keys.EVENTS, keys.events(start + 1))
        found: list[Raw] = []
        begin = self.buffer.next_version
        for key, value in self.buffer.scan(holding[0] if holding else keys.EVENTS, keys.after(keys.EVENTS)):
            first = _first(key)
            events = self._split(key, value)[max(start - first, 0) :]
            if found and (not events or first != begin + len(found)):
                break
            begin = begin if found or not events else max(start, first)
            found += events
            if len(found) >= limit:
                break
        return begin, found[:limit]

    def task(self, version: int) -> Task | None:
        """Returns the task as the event of that number left it; None if the event was trimmed or cannot be read."""
        holding = self._database.last(keys.EVENTS, keys.events(version + 1)) if 0 < version < 1 << 63 else None
        if holding is None:
            return None
        try:
            events = split_tasks(holding[1])
            place = version - _first(holding[0])
            task = decode_task(events[place]) if place < len(events) else None
        except UNREADABLE:
            return None
        return task if task is not None and task.version == version else None

    def verify(self) -> None:
        """Decodes each event from now on before it is returned: one of those returned cannot be read."""
        self._is_verified = True

    def trim(self, *, before_ms: int, keep_max: int) -> int:
        """Deletes whole keys of events from the front. Events that share a key with one to keep are kept as well."""
        cut = self.first
        for first, events in self._segments(keys.events(self.first)):
            end = first + len(events)
            if self._newest_of(first, events) >= before_ms and self.buffer.next_version - end < keep_max:
                break
            cut = end
        trimmed = cut - self.first
        if trimmed:
            self.buffer.delete_range(keys.EVENTS, keys.events(cut))
            self.buffer.put(keys.EVENTS_FIRST, keys.number(cut))
            self.first = cut
        return trimmed

    def _segments(self, start: bytes) -> Iterator[tuple[int, list[Raw]]]:
        for key, value in self.buffer.scan(start, keys.after(keys.EVENTS)):
            if events := self._split(key, value):
                yield _first(key), events

    def _newest_of(self, first: int, events: list[Raw]) -> int:
        """Returns when the last of these happened; 0 if it cannot be read, so that its age keeps nothing."""
        try:
            return decode_task(events[-1]).updated_ms
        except UNREADABLE as fault:
            self.buffer.report(keys.events(first), str(fault))
            return 0

    def _split(self, key: bytes, value: bytes) -> list[Raw]:
        """Returns the events under a key; none if they cannot be read."""
        try:
            events = split_tasks(value)
            if self._is_verified:
                _check(key, value)
            if 0 < len(events) <= EVENT_SEGMENT_MAX:
                return events
            reason = _NO_EVENTS
        except UNREADABLE as fault:
            reason = str(fault)
        self.buffer.report(key, reason)
        return []

    def _read_last(self, key: bytes, value: bytes) -> None:
        """Learns the next number and the newest time. If the last events cannot be read, no number that one of them
        may have had is used again: a version must not belong to two moves."""
        try:
            last = _check(key, value)
            self.next_version, self.newest_ms = last.version + 1, last.updated_ms
        except UNREADABLE as fault:
            self._is_verified = True
            self._damage.append((key, str(fault)))
            self.next_version = _first(key) + EVENT_SEGMENT_MAX
            before = self._database.last(keys.EVENTS, key)
            if before is not None and (task := self._last_of(*before)) is not None:
                self.newest_ms = task.updated_ms

    def _last_of(self, key: bytes, value: bytes) -> Task | None:
        try:
            return _check(key, value)
        except UNREADABLE:
            return None

    def _first_kept(self, *, is_empty: bool) -> int:
        floor = self._database.get(keys.EVENTS_FIRST)
        first = int.from_bytes(floor, "big") if floor is not None else 1
        if floor is None or (len(floor) == keys.NUMBER_BYTES and (is_empty or first <= self.next_version)):
            return first
        self._damage.append((keys.EVENTS_FIRST, "this is not the number of an event"))
        for key, _ in self._database.scan(keys.EVENTS, keys.after(keys.EVENTS)):
            return _first(key)
        raise StoreCorrupt(f"{self._database.path} does not tell the number of the next event; restore a backup")


def _check(key: bytes, value: bytes) -> Task:
    """Returns the last of the events under a key. Raises one of UNREADABLE unless all of them are there."""
    tasks = decode_tasks(value)
    numbers = range(_first(key), _first(key) + len(tasks))
    if not 0 < len(tasks) <= EVENT_SEGMENT_MAX or [task.version for task in tasks] != list(numbers):
        raise DecodeError(_NO_EVENTS)
    return tasks[-1]


def _first(key: bytes) -> int:
    """Returns the number of the first event under the key; those after it follow without a gap."""
    return int.from_bytes(key[2:], "big")
