"""How many tasks the queues of one shard hold, and what a tenant uses."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import unquote

from codeq.domain.limits import PRIORITY_MAX
from codeq.domain.queue import QueueCounts, QueueKey
from codeq.domain.tenants import StorageUsage
from codeq.store.redis import records
from codeq.store.redis.connection import LuaScript, RedisClient
from codeq.store.redis.keys import ShardKeys, idempotency_field
from codeq.store.redis.merging import MergedCalls

OLDEST = LuaScript("withdrawn", "oldest")
MOVED_ENTRIES_MAX = 100
"""Entries of cancelled tasks that one look at the oldest drops from the front of a list, besides whole runs of them."""

_QUEUES_AT_ONCE = 200
"""After so many, other calls have their turn: half a millisecond."""

_FIELDS_AT_ONCE = 500
"""Fields of a hash that one command reads: a fifth of a millisecond of Redis, and half a one of parsing."""

_TENANTS_AT_ONCE = 16
"""Looked at together: more would keep connections from calls that somebody waits for."""

LOOKS_AT_ONCE = 16
"""Queues whose oldest tasks one script looks for: a tenth of a millisecond of Redis, unless entries have to be
dropped."""

_PENDING, _OTHERS = tuple(map(str, range(PRIORITY_MAX + 1))), ("d", "r", "x")
_FIELDS = (*_PENDING, *_OTHERS)
_USAGE = ["#t", "#b", "#q"]
_NOT_COUNTED = "t#"
"""How the other fields of the same hash begin."""

Numbers = dict[str, dict[str, int]]
"""Per field the numbers of its queues, by command. Not an object for each queue: a tenant may have many thousand, and
the collector of garbage, which looks at every list and tuple, would hold the loop for a tenth of a second."""


class Counting:
    def __init__(self, connection: RedisClient, keys: ShardKeys) -> None:
        self._connection = connection
        self._keys = keys
        self._looks = MergedCalls(self._look, _LookGroup, in_order=False)

    async def counts(self, tenant: str | None, command: str | None, *, ages: bool) -> dict[QueueKey, QueueCounts]:
        if tenant is not None and command is not None and ages:
            return await self._with_ages([QueueKey(tenant, command)])
        counted: dict[QueueKey, QueueCounts] = {}
        for name in [tenant] if tenant is not None else await self._tenants():
            counted |= await self._of_tenant(name, command)
        if not ages:
            return counted
        queues, aged = iter(counted), dict[QueueKey, QueueCounts]()
        while part := list(islice(queues, LOOKS_AT_ONCE)):
            aged |= await self._with_ages(part)
        return aged

    async def all_counts(self, command: str | None) -> AsyncIterator[Mapping[QueueKey, QueueCounts]]:
        """Yields the counts of all tenants, some queues at a time, so that few of them are in memory at once."""
        tenants = iter(await self._tenants())
        while names := list(islice(tenants, _TENANTS_AT_ONCE)):
            firsts = await self._connection.call_all([self._first_read(name, command) for name in names])
            for name, first in zip(names, firsts, strict=True):
                numbers = await self._numbers(name, command, first)
                async for part in _in_parts(numbers):
                    yield {QueueKey(name, each): _counts(numbers, each) for each in part}

    async def _of_tenant(self, tenant: str, command: str | None) -> dict[QueueKey, QueueCounts]:
        counted: dict[QueueKey, QueueCounts] = {}
        numbers = await self._numbers(tenant, command, await self._connection.call(*self._first_read(tenant, command)))
        async for part in _in_parts(numbers):
            counted |= {QueueKey(tenant, each): _counts(numbers, each) for each in part}
        return counted

    def _first_read(self, tenant: str, command: str | None) -> tuple[str | int, ...]:
        key = self._keys.counts(tenant)
        if command is not None:
            return ("HMGET", key, *(field + command for field in _FIELDS))
        return ("HSCAN", key, 0, "COUNT", _FIELDS_AT_ONCE)

    async def _numbers(self, tenant: str, command: str | None, first: Sequence[Any]) -> Numbers:
        """Returns the numbers of a tenant's queues, of which `first` is the answer to `_first_read`."""
        numbers: Numbers = {field: {} for field in _FIELDS}
        if command is not None:
            for field, number in zip(_FIELDS, first, strict=True):
                if number:
                    numbers[field][command] = int(number)
            return numbers
        async for page in self._pages(self._keys.counts(tenant), first):
            for name, number in page:
                if name[0] not in _NOT_COUNTED:
                    numbers[name[0]][name[1:]] = int(number)
        return numbers

    async def _with_ages(self, queues: Sequence[QueueKey]) -> dict[QueueKey, QueueCounts]:
        found = zip(queues, await asyncio.gather(*(self._looks.call(queue) for queue in queues)), strict=True)
        return {queue: counts for queue, counts in found if counts is not None}

    async def _look(self, queues: Sequence[QueueKey]) -> list[QueueCounts | None]:
        """Returns the counts of each queue with the age of its oldest task, by one script; None for those without."""
        names: list[str] = [self._keys.records]
        arguments: list[str | int] = [MOVED_ENTRIES_MAX, len(_FIELDS)]
        for queue in queues:
            of_queue = self._keys.queue(queue)
            names += [self._keys.counts(queue.tenant), *of_queue.pending, of_queue.withdrawn]
            arguments += [field + queue.command for field in _FIELDS]
        looked = await self._connection.run(OLDEST, names, arguments)
        return [_looked_at(numbers, heads) for numbers, heads in looked]

    async def drain(self) -> None:
        """Returns once nothing is under way."""
        await self._looks.drain()

    async def queues(self) -> list[QueueKey]:
        return [queue for tenant in await self._tenants() for queue in await self.queues_of(tenant)]

    async def queues_of(self, tenant: str) -> set[QueueKey]:
        pages = self._pages(self._keys.counts(tenant))
        return {QueueKey(tenant, name[1:]) async for page in pages for name, _ in page if name[0] == "t"}

    async def usage(
        self, tenant: str, *, policies: int, commands: Sequence[str], idempotency_keys: Sequence[str]
    ) -> StorageUsage:
        calls: list[tuple[str, ...]] = [("HMGET", self._keys.counts(tenant), *_USAGE)]
        if commands:
            calls.append(("HMGET", self._keys.counts(tenant), *(f"t{command}" for command in commands)))
        if idempotency_keys:
            fields = [idempotency_field(tenant, key) for key in idempotency_keys]
            calls.append(("HMGET", self._keys.idempotency, *fields))
        (tasks, size, queues), *others = await self._connection.call_all(calls)
        of_commands = others.pop(0) if commands else []
        of_keys = others.pop(0) if idempotency_keys else []
        return StorageUsage(
            int(tasks or 0),
            int(size or 0),
            int(queues or 0),
            policies,
            frozenset(command for command, number in zip(commands, of_commands, strict=False) if number),
            frozenset(key for key, owner in zip(idempotency_keys, of_keys, strict=False) if owner),
        )

    async def _tenants(self) -> list[str]:
        return [unquote(name.decode()) for name in await self._connection.call("SMEMBERS", self._keys.tenants)]

    async def _pages(self, key: str, first: Sequence[Any] | None = None) -> AsyncIterator[Iterator[tuple[str, bytes]]]:
        """Reads a hash in parts, so that a large one holds neither Redis nor the loop. `first` was read before."""
        cursor, page = first or await self._connection.call("HSCAN", key, 0, "COUNT", _FIELDS_AT_ONCE)
        while True:
            yield zip((name.decode() for name in page[::2]), page[1::2], strict=True)
            if int(cursor) == 0:
                return
            cursor, page = await self._connection.call("HSCAN", key, cursor, "COUNT", _FIELDS_AT_ONCE)


class _LookGroup:
    """Queues that one script looks at."""

    def __init__(self) -> None:
        self._size = 0

    def add(self, _: QueueKey) -> bool:
        self._size += 1
        return self._size <= LOOKS_AT_ONCE


async def _in_parts(numbers: Numbers) -> AsyncIterator[list[str]]:
    """Yields the commands that have a number, some at a time; other calls run in between."""
    commands = iter(dict.fromkeys(command for of_field in numbers.values() for command in of_field))
    while part := list(islice(commands, _QUEUES_AT_ONCE)):
        yield part
        await asyncio.sleep(0)


def _counts(numbers: Numbers, command: str) -> QueueCounts:
    delayed, in_progress, dead = [numbers[field].get(command, 0) for field in _OTHERS]
    return QueueCounts(
        pending=sum([numbers[field].get(command, 0) for field in _PENDING]),
        delayed=delayed, in_progress=in_progress, dead=dead,
    )  # fmt: skip


def _looked_at(numbers: Sequence[bytes | None], heads: Sequence[bytes]) -> QueueCounts | None:
    if not any(numbers):
        return None
    *pending, delayed, in_progress, dead = (int(number or 0) for number in numbers)
    ages = [task.updated_ms for task in records.readable(heads, heads)[0]]
    return QueueCounts(
        pending=sum(pending), delayed=delayed, in_progress=in_progress, dead=dead, oldest_ms=min(ages, default=None)
    )
