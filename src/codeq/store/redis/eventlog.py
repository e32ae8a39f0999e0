"""The event log of one shard: a stream whose entries hold the events of one script, numbered without a gap."""

from collections.abc import Callable, Sequence

from codeq.domain.limits import EVENTS_READ_MAX
from codeq.domain.task import Task
from codeq.store import codec
from codeq.store.interface import Events
from codeq.store.redis import records
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import ShardKeys

_ENTRIES_AT_ONCE = 200
_TRIMMED_AT_ONCE = 10_000
"""Events that one command deletes: a millisecond of Redis if each has an entry of its own."""

_NEXT_ENTRIES = 10
"""Entries after one that cannot be read, of which the first readable one tells how old it may be."""

Entry = tuple[bytes, Sequence[bytes]]
Unreadable = Callable[[str, str], None]
"""Called with the key of what cannot be read, and why."""


class EventStream:
    def __init__(self, connection: RedisClient, keys: ShardKeys, on_unreadable: Unreadable = lambda *_: None) -> None:
        self._connection = connection
        self._keys = keys
        self._on_unreadable = on_unreadable

    async def read(self, start: int, limit: int) -> Events:
        """Returns the events from `start` on, and the range of events that there are. Ends before a gap: one that
        cannot be read, or entries that somebody has deleted; the next read begins behind it."""
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
            for entry in entries:
                found += self._events(entry, start)
                if len(found) >= limit:
                    break
            at = max(at + 1, _end(entries[-1]))
            # An entry has one event or a thousand: asks for as many as are needed if the next are like the last.
            size = max(1, at - _first(entries[-1]))
            wanted = max(1, min((limit - len(found)) // size, _ENTRIES_AT_ONCE))
        if found:
            start = found[0].version  # another process may have trimmed since `first` was read
            if found[-1].version - start >= len(found):
                found = _up_to_the_first_gap(found)
        return Events(records.encode_events(found[:limit]), start, first, end)

    def _events(self, entry: Entry, start: int) -> list[Task]:
        """Returns the events of the entry from number `start` on."""
        try:
            found = records.decode_events(entry[1])
        except codec.UNREADABLE:
            found = [event for value in entry[1] if value and (event := self._readable(entry, value)) is not None]
        return found if found and found[0].version >= start else [event for event in found if event.version >= start]

    def _readable(self, entry: Entry, value: bytes) -> Task | None:
        try:
            return records.decode(value)
        except codec.UNREADABLE as fault:
            self._on_unreadable(f"{self._keys.events} {entry[0].decode()}", str(fault))
            return None

    async def newest_ms(self) -> int:
        """Returns the time of the newest event; 0 if there is none."""
        entries = await self._connection.call("XREVRANGE", self._keys.events, "+", "-", "COUNT", 1)
        return (_ended_ms(entries[0]) or 0) if entries else 0

    async def trim(self, *, before_ms: int, keep_max: int) -> int:
        """Deletes whole entries from the front. Events that share an entry with one to keep are kept as well.

        The first entry to keep is found by halving: what goes may be more than should be read.
        """
        number, oldest = await self._connection.call_all(
            [("GET", self._keys.number), ("XRANGE", self._keys.events, "-", "+", "COUNT", 1)]
        )
        if not oldest:
            return 0
        entry: Entry | None = oldest[0]
        end = int(number or 0) + 1
        first = cut = middle = _first(oldest[0])
        kept = end
        while cut < kept:
            after = middle + 1 if entry is None or _ended_ms(entry) is None else max(middle + 1, _end(entry))
            if entry is not None and end - after < keep_max and await self._is_since(entry, before_ms):
                kept = _first(entry)
            else:
                cut = after
            middle = (cut + kept) // 2
            entry = await self._entry_of(middle) if cut < kept else None
        await self._delete(first, cut)
        return cut - first

    async def _entry_of(self, number: int) -> Entry | None:
        """Returns the entry with this event, or if it is gone, the one before."""
        found = await self._connection.call("XREVRANGE", self._keys.events, f"{number}-0", "-", "COUNT", 1)
        return found[0] if found else None

    async def _is_since(self, entry: Entry, before_ms: int) -> bool:
        """Returns whether the entry is to be kept for its age. If that cannot be read, the next one tells, which is not
        older: so nothing that may be too young is deleted."""
        ended_ms = _ended_ms(entry)
        if ended_ms is None:
            following = await self._connection.call(
                "XRANGE", self._keys.events, b"(" + entry[0], "+", "COUNT", _NEXT_ENTRIES
            )
            times = [ms for each in following if (ms := _ended_ms(each)) is not None]
            ended_ms = times[0] if times else before_ms
        return ended_ms >= before_ms

    async def _delete(self, first: int, cut: int) -> None:
        """Deletes the events from `first` to before `cut`, where an entry begins. Redis has other work in between."""
        for number in range(first + _TRIMMED_AT_ONCE, cut, _TRIMMED_AT_ONCE):
            entry = await self._entry_of(number)
            if entry is not None:
                await self._connection.call("XTRIM", self._keys.events, "MINID", f"{_first(entry)}-0")
        if cut > first:
            await self._connection.call("XTRIM", self._keys.events, "MINID", f"{cut}-0")


def _first(entry: Entry) -> int:
    return int(entry[0].partition(b"-")[0])


def _last(entry: Entry) -> bytes:
    return entry[1][-1] or entry[1][-2]


def _end(entry: Entry) -> int:
    """Returns the number after the last event of the entry."""
    return records.version_of(_last(entry)) + 1


def _ended_ms(entry: Entry) -> int | None:
    """Returns the time of the last event of the entry; None if it cannot be read."""
    try:
        return records.decode(_last(entry)).updated_ms
    except codec.UNREADABLE:
        return None


def _up_to_the_first_gap(found: Sequence[Task]) -> list[Task]:
    first = found[0].version
    return [event for place, event in enumerate(found) if event.version == first + place]
