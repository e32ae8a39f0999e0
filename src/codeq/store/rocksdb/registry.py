"""The registry of one shard: all entries in memory, so that asking costs no read, and on disk for the next start.

An entry that has expired does not exist any more for whoever asks. It is deleted by later calls, a few at a time:
thousands may expire in the same second, and nobody may ask before.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from codeq.store import codec
from codeq.store.interface import Clock, Registration
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.write_buffer import WriteBuffer

Name = tuple[str, str, str]
"""Kind, tenant and name."""

_EXPIRIES_MIN = 1024
_EXPIRED_MAX = 100
"""Expired entries that one call deletes, besides two for each that it stores: less than a millisecond."""

_decode = msgspec.msgpack.Decoder(tuple[int, bytes]).decode


class RocksRegistry:
    """Implements `store.interface.Registry`."""

    def __init__(self, buffer: WriteBuffer, clock: Clock, check: Callable[[], None]) -> None:
        self._buffer = buffer
        self._clock = clock
        self._check = check
        """Raises if the store cannot be used."""
        self._stored: defaultdict[tuple[str, str], dict[str, Registration]] = defaultdict(dict)
        self._load()
        self._expiries: list[tuple[int, Name]] = []
        """A heap; an entry that was stored again is in it again."""
        self._forget_replaced()

    def _load(self) -> None:
        for key, data in self._buffer.scan(keys.REGISTRY, keys.after(keys.REGISTRY)):
            try:
                kind, tenant, name = keys.split_names(key[2:])
                expires_ms, value = _decode(data)
            except (*codec.UNREADABLE, ValueError) as fault:
                self._buffer.set_aside(key, data, str(fault))
            else:
                entry = Registration(kind=kind, tenant=tenant, name=name, value=value, expires_ms=expires_ms)
                self._stored[kind, tenant][name] = entry

    async def put(self, entries: Sequence[Registration]) -> None:
        self._begin(len(entries))
        for entry in entries:
            self._put(entry)

    async def add(self, entries: Sequence[Registration]) -> list[bool]:
        return await self.advance(entries, over=[b""] * len(entries))

    async def advance(self, entries: Sequence[Registration], *, over: Sequence[bytes]) -> list[bool]:
        now_ms = self._begin(len(entries))
        is_put: list[bool] = []
        for entry, least in zip(entries, over, strict=True):
            stored = self._find(entry.kind, entry.tenant, entry.name, now_ms)
            is_put.append(stored is None or stored.value < least)
            if is_put[-1]:
                self._put(entry)
        return is_put

    async def remove(self, kind: str, tenant: str, names: Sequence[str]) -> list[bool]:
        now_ms = self._begin()
        there_were = [self._find(kind, tenant, name, now_ms) is not None for name in names]
        for name in names:
            self._remove((kind, tenant, name))
        return there_were

    async def get(self, kind: str, tenant: str, names: Sequence[str]) -> list[Registration | None]:
        now_ms = self._begin()
        return [self._find(kind, tenant, name, now_ms) for name in names]

    async def entries(self, kind: str, tenant: str | None = None) -> list[Registration]:
        now_ms = self._begin()
        if tenant is not None:
            stored = [self._stored.get((kind, tenant), {})]
        else:
            stored = [named for (of_kind, _), named in self._stored.items() if of_kind == kind]
        return [entry for named in stored for entry in named.values() if entry.expires_ms > now_ms]

    def _find(self, kind: str, tenant: str, name: str, now_ms: int) -> Registration | None:
        entry = self._stored.get((kind, tenant), {}).get(name)
        return entry if entry is not None and entry.expires_ms > now_ms else None

    def _put(self, entry: Registration) -> None:
        place = (entry.kind, entry.tenant, entry.name)
        self._stored[entry.kind, entry.tenant][entry.name] = entry
        heappush(self._expiries, (entry.expires_ms, place))
        if len(self._expiries) > self._expiries_max:
            self._forget_replaced()
        self._buffer.put(keys.registration(*place), codec.encode((entry.expires_ms, entry.value)))

    def _forget_replaced(self) -> None:
        """Rebuilds the heap of the entries as they are: long-lived ones that are stored again and again fill it."""
        self._expiries = [
            (entry.expires_ms, (*place, name)) for place, named in self._stored.items() for name, entry in named.items()
        ]
        heapify(self._expiries)
        self._expiries_max = max(_EXPIRIES_MIN, 2 * len(self._expiries))

    def _remove(self, place: Name) -> None:
        kind, tenant, name = place
        named = self._stored.get((kind, tenant))
        if named is None or name not in named:
            return
        del named[name]
        if not named:
            del self._stored[kind, tenant]
        self._buffer.delete(keys.registration(*place))

    def _begin(self, stores: int = 0) -> int:
        """Begins a call that stores so many entries, and deletes some that have expired. Returns the time."""
        self._check()
        now_ms = self._clock()
        for _ in range(_EXPIRED_MAX + 2 * stores):
            if not self._expiries or self._expiries[0][0] > now_ms:
                break
            expires_ms, (kind, tenant, name) = heappop(self._expiries)
            entry = self._stored.get((kind, tenant), {}).get(name)
            if entry is not None and entry.expires_ms == expires_ms:
                self._remove((kind, tenant, name))
        return now_ms
