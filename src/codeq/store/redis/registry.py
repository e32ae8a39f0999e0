"""The registry on Redis: entries of a kind and tenant under two keys of the first shard, seen by every process."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from urllib.parse import unquote

from codeq.domain.errors import StoreUnavailable
from codeq.store.interface import Clock, Registration
from codeq.store.redis.connection import PAUSES_S, LuaScript, RedisClient
from codeq.store.redis.keys import ShardKeys, quoted

REGISTER = LuaScript("register")
_EXPIRED_MAX = 1000
"""Expired entries of a tenant that one run of the script deletes."""
_TENANTS_AT_ONCE = 16
"""Tenants whose entries are read together, where those of all are: up to a megabyte each."""


class RedisRegistry:
    """Implements `store.interface.Registry`."""

    def __init__(self, connection: RedisClient, keys: ShardKeys, clock: Clock, check: Callable[[], None]) -> None:
        self._connection = connection
        self._keys = keys
        self._clock = clock
        self._check = check
        """Raises if the store was closed."""

    async def put(self, entries: Sequence[Registration]) -> None:
        for place, group in _by_tenant(entries).items():
            await self._repeated(place, "put", _arguments(entries, group))

    async def add(self, entries: Sequence[Registration]) -> list[bool]:
        return await self._stored(entries, "add")

    async def advance(self, entries: Sequence[Registration], *, over: Sequence[bytes]) -> list[bool]:
        return await self._stored(entries, "advance", over)

    async def _stored(self, entries: Sequence[Registration], mode: str, over: Sequence[bytes] = ()) -> list[bool]:
        """Is not repeated when an answer is lost: the repetition would find the entry that this call has stored."""
        stored = [False] * len(entries)
        for place, group in _by_tenant(entries).items():
            answers = await self._run(place, mode, _arguments(entries, group, over))
            for number, answer in zip(group, answers, strict=True):
                stored[number] = answer == 1
        return stored

    async def remove(self, kind: str, tenant: str, names: Sequence[str]) -> list[bool]:
        return [answer == 1 for answer in await self._repeated((kind, tenant), "remove", names)]

    async def get(self, kind: str, tenant: str, names: Sequence[str]) -> list[Registration | None]:
        self._check()
        values, _, _ = self._keys.registry(kind, tenant)
        raw = await self._connection.call("HMGET", values, *names) if names else []
        now_ms = self._clock()
        stored = [
            _entry(kind, tenant, name, data) if data is not None else None
            for name, data in zip(names, raw, strict=True)
        ]
        return [entry if entry is not None and entry.expires_ms > now_ms else None for entry in stored]

    async def entries(self, kind: str, tenant: str | None = None) -> list[Registration]:
        self._check()
        if tenant is not None:
            return await self._of_tenants(kind, [tenant])
        names = await self._connection.call("ZRANGE", self._keys.registered_tenants(kind), 0, -1)
        tenants = iter([unquote(name.decode()) for name in names])
        found: list[Registration] = []
        while some := list(islice(tenants, _TENANTS_AT_ONCE)):
            found += await self._of_tenants(kind, some)
        return found

    async def _of_tenants(self, kind: str, tenants: Sequence[str]) -> list[Registration]:
        reads = [("HGETALL", self._keys.registry(kind, tenant)[0]) for tenant in tenants]
        found: list[Registration] = []
        for tenant, raw in zip(tenants, await self._connection.call_all(reads), strict=True):
            pairs = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)
            stored = [_entry(kind, tenant, name.decode(), data) for name, data in pairs]
            now_ms = self._clock()
            alive = [entry for entry in stored if entry.expires_ms > now_ms]
            for _ in range(len(alive), len(stored), _EXPIRED_MAX):
                await self._repeated((kind, tenant), "remove", ())
            found += alive
        return found

    async def _repeated(self, place: tuple[str, str], mode: str, arguments: Sequence[str | bytes | int]) -> list[int]:
        """Runs what does the same again: it is repeated if the outcome is unknown."""
        for pause_s in PAUSES_S:
            try:
                return await self._run(place, mode, arguments)
            except StoreUnavailable:
                await asyncio.sleep(pause_s)
        return await self._run(place, mode, arguments)

    async def _run(self, place: tuple[str, str], mode: str, arguments: Sequence[str | bytes | int]) -> list[int]:
        self._check()
        names = self._keys.registry(*place)
        head = [quoted(place[1]), self._clock(), mode]
        answers: list[int] = await self._connection.run(REGISTER, names, [*head, *arguments])
        return answers


def _entry(kind: str, tenant: str, name: str, data: bytes) -> Registration:
    return Registration(kind=kind, tenant=tenant, name=name, value=data[8:], expires_ms=int.from_bytes(data[:8], "big"))


def _by_tenant(entries: Sequence[Registration]) -> dict[tuple[str, str], list[int]]:
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for number, entry in enumerate(entries):
        groups[entry.kind, entry.tenant].append(number)
    return groups


def _arguments(
    entries: Sequence[Registration], group: Sequence[int], over: Sequence[bytes] = ()
) -> list[str | bytes | int]:
    arguments: list[str | bytes | int] = []
    for number in group:
        entry = entries[number]
        arguments += [entry.name, entry.expires_ms, entry.value, *over[number : number + 1]]
    return arguments
