"""The events of one shard on disk: gapless numbers, several events under one key, trimmed from the front."""

from codeq.domain.limits import EVENTS_READ_MAX
from codeq.domain.task import Task
from codeq.store.codec import decode_tasks
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database
from codeq.store.rocksdb.journal import Journal


class EventLog:
    journal: Journal

    def __init__(self, database: Database) -> None:
        floor = database.get(keys.EVENTS_FIRST)
        self.first = int.from_bytes(floor, "big") if floor is not None else 1
        self.next_version = self.first
        last = database.last(keys.EVENTS, keys.after(keys.EVENTS))
        if last is not None:
            key, value = last
            self.next_version = int.from_bytes(key[2:], "big") + len(decode_tasks(value))

    def read(self, start: int, limit: int) -> list[Task]:
        start = max(start, self.first)
        limit = min(limit, EVENTS_READ_MAX)
        if limit <= 0 or start >= self.journal.next_version:
            return []
        holding = self.journal.last(keys.EVENTS, keys.events(start + 1))
        if holding is None:
            return []
        found: list[Task] = []
        for _, value in self.journal.scan(holding[0], keys.after(keys.EVENTS)):
            found += [event for event in decode_tasks(value) if event.version >= start]
            if len(found) >= limit:
                break
        return found[:limit]

    def trim(self, *, before_ms: int, keep_max: int) -> int:
        """Forget whole keys of events from the front. What shares a key with an event to keep is kept as well."""
        cut = self.first
        for key, value in self.journal.scan(keys.events(self.first), keys.after(keys.EVENTS)):
            version = int.from_bytes(key[2:], "big")
            events = decode_tasks(value)
            behind = self.journal.next_version - version - len(events)
            if events[-1].updated_ms >= before_ms and behind < keep_max:
                break
            cut = version + len(events)
        trimmed = cut - self.first
        if trimmed:
            self.journal.delete_range(keys.EVENTS, keys.events(cut))
            self.journal.put(keys.EVENTS_FIRST, keys.number(cut))
            self.first = cut
        return trimmed
