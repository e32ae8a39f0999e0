"""The event log of one shard: a stream whose entries hold the events of one script, numbered without a gap."""

from collections.abc import Sequence

from codeq.domain.limits import EVENTS_READ_MAX
from codeq.domain.task import Task
from codeq.store.interface import Events
from codeq.store.redis import records
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import ShardKeys

_ENTRIES_AT_ONCE = 200
_TRIM_ENTRIES = 1000
"""Entries that one trim looks at; the next one continues."""

Entry = tuple[bytes, Sequence[bytes]]


class EventStream:
    def __init__(self, connection: RedisClient, keys: ShardKeys) -> None:
        self._connection = connection
        self._keys = keys

    async def read(self, start: int, limit: int) -> Events:
        """Returns the events from `start` on, and the range of events that there are."""
        stream = self._keys.events
        oldest, number, holding = await self._connection.call_all(
            [
                ("XRANGE", stream, "-", "+", "COUNT", 1),
                ("GET", self._keys.number),
                ("XREVRANGE", stream, f"{max(start, 1)}-0", "-", "COUNT", 1),
            ]
        )
        end = int(number or 0) + 1
        first = _first(oldest[0]) if oldest else end
        start, limit = max(start, first), min(limit, EVENTS_READ_MAX)
        if limit <= 0 or start >= end:
            return Events([], start, first, end)
        found: list[Task] = []
        at, wanted = _first(holding[0]) if holding else first, 1
        while len(found) < limit and at < end:
            entries: list[Entry] = await self._connection.call(
                "XRANGE", stream, f"{at}-0", f"{end - 1}-0", "COUNT", wanted
            )
            if not entries:
                break
            of_entry: list[Task] = []
            for entry in entries:
                of_entry = _events(entry)
                found += [event for event in of_entry if event.version >= start]
                if len(found) >= limit:
                    break
            at = of_entry[-1].version + 1
            # An entry has one event or a thousand: asks for as many as are needed if the next are like the last.
            wanted = max(1, min((limit - len(found)) // len(of_entry), _ENTRIES_AT_ONCE))
        return Events(records.encode_events(found[:limit]), start, first, end)

    async def newest_ms(self) -> int:
        """Returns the time of the newest event; 0 if there is none."""
        entries = await self._connection.call("XREVRANGE", self._keys.events, "+", "-", "COUNT", 1)
        return _events(entries[0])[-1].updated_ms if entries else 0

    async def trim(self, *, before_ms: int, keep_max: int) -> int:
        """Deletes whole entries from the front. Events that share an entry with one to keep are kept as well."""
        stream = self._keys.events
        number, entries = await self._connection.call_all(
            [("GET", self._keys.number), ("XRANGE", stream, "-", "+", "COUNT", _TRIM_ENTRIES)]
        )
        if not entries:
            return 0
        end = int(number) + 1
        first = cut = _first(entries[0])
        for entry in entries:
            events = _events(entry)
            after = events[-1].version + 1
            if events[-1].updated_ms >= before_ms and end - after < keep_max:
                break
            cut = after
        if cut > first:
            await self._connection.call("XTRIM", stream, "MINID", f"{cut}-0")
        return cut - first


def _first(entry: Entry) -> int:
    return int(entry[0].partition(b"-")[0])


def _events(entry: Entry) -> list[Task]:
    return records.decode_events(entry[1])
