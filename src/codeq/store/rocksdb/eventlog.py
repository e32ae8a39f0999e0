"""The event log of one shard on disk: gapless numbers, several events under one key, trimmed from the front."""

from msgspec import Raw

from codeq.domain.limits import EVENTS_READ_MAX
from codeq.store.codec import decode_task, split_tasks
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database
from codeq.store.rocksdb.write_buffer import WriteBuffer


class EventLog:
    buffer: WriteBuffer

    def __init__(self, database: Database) -> None:
        floor = database.get(keys.EVENTS_FIRST)
        self.first = int.from_bytes(floor, "big") if floor is not None else 1
        self.next_version = self.first
        self.newest_ms = 0
        last = database.last(keys.EVENTS, keys.after(keys.EVENTS))
        if last is not None:
            key, value = last
            events = split_tasks(value)
            self.next_version = _first(key) + len(events)
            self.newest_ms = decode_task(events[-1]).updated_ms

    def read(self, start: int, limit: int) -> list[Raw]:
        """Returns the encoded events from `start` on."""
        start = max(start, self.first)
        limit = min(limit, EVENTS_READ_MAX)
        if limit <= 0 or start >= self.buffer.next_version:
            return []
        holding = self.buffer.last(keys.EVENTS, keys.events(start + 1))
        if holding is None:
            return []
        found: list[Raw] = []
        for key, value in self.buffer.scan(holding[0], keys.after(keys.EVENTS)):
            found += split_tasks(value)[max(start - _first(key), 0) :]
            if len(found) >= limit:
                break
        return found[:limit]

    def trim(self, *, before_ms: int, keep_max: int) -> int:
        """Deletes whole keys of events from the front. Events that share a key with one to keep are kept as well."""
        cut = self.first
        for key, value in self.buffer.scan(keys.events(self.first), keys.after(keys.EVENTS)):
            events = split_tasks(value)
            end = _first(key) + len(events)
            if decode_task(events[-1]).updated_ms >= before_ms and self.buffer.next_version - end < keep_max:
                break
            cut = end
        trimmed = cut - self.first
        if trimmed:
            self.buffer.delete_range(keys.EVENTS, keys.events(cut))
            self.buffer.put(keys.EVENTS_FIRST, keys.number(cut))
            self.first = cut
        return trimmed


def _first(key: bytes) -> int:
    """Returns the number of the first event under the key; those after it follow without a gap."""
    return int.from_bytes(key[2:], "big")
