"""How many tasks the queues of one shard hold, and what a tenant uses."""

import asyncio
from collections.abc import Sequence
from urllib.parse import unquote

from codeq.domain.limits import PRIORITY_MAX
from codeq.domain.queue import QueueCounts, QueueKey
from codeq.domain.tenants import StorageUsage
from codeq.store.redis import records
from codeq.store.redis.connection import LuaScript, RedisClient
from codeq.store.redis.keys import ShardKeys, idempotency_field

OLDEST = LuaScript("oldest")
MOVED_ENTRIES_MAX = 100
"""Entries of cancelled tasks that one look at the oldest drops from the front of a list."""

_QUEUES_AT_ONCE = 1000
"""After so many, other calls have their turn: two milliseconds."""

_TENANTS_AT_ONCE = 16
"""Looked at together: more would keep connections from calls that somebody waits for."""

_FIELDS = [*map(str, range(PRIORITY_MAX + 1)), "d", "r", "x"]
_USAGE = ["#t", "#b", "#q"]
_NOT_COUNTED = "t#"
"""How the other fields of the same hash begin."""
_PENDING = slice(0, PRIORITY_MAX + 1)


class Counting:
    def __init__(self, connection: RedisClient, keys: ShardKeys) -> None:
        self._connection = connection
        self._keys = keys

    async def counts(self, tenant: str | None, command: str | None, *, ages: bool) -> dict[QueueKey, QueueCounts]:
        if tenant is None:
            names, found = await self._tenants(), dict[QueueKey, QueueCounts]()
            for start in range(0, len(names), _TENANTS_AT_ONCE):
                part = names[start : start + _TENANTS_AT_ONCE]
                for counts in await asyncio.gather(*(self.counts(name, command, ages=ages) for name in part)):
                    found |= counts
            return found
        counted: dict[QueueKey, QueueCounts] = {}
        for queue, parts in (await self._numbers(tenant, command)).items():
            counted[queue] = await self._counted(queue, parts, ages=ages)
            if len(counted) % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return counted

    async def _numbers(self, tenant: str, command: str | None) -> dict[QueueKey, list[int]]:
        key = self._keys.counts(tenant)
        if command is not None:
            raw = await self._connection.call("HMGET", key, *(field + command for field in _FIELDS))
            numbers = [int(number or 0) for number in raw]
            return {QueueKey(tenant, command): numbers} if any(numbers) else {}
        found: dict[QueueKey, list[int]] = {}
        for place, (field, number) in enumerate((await self._all(key)).items(), 1):
            if field[0] not in _NOT_COUNTED:
                parts = found.setdefault(QueueKey(tenant, field[1:]), [0] * len(_FIELDS))
                parts[_FIELDS.index(field[0])] = number
            if place % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    async def _counted(self, queue: QueueKey, numbers: list[int], *, ages: bool) -> QueueCounts:
        delayed, in_progress, dead = numbers[PRIORITY_MAX + 1 :]
        oldest_ms = await self._oldest_ms(queue, numbers[_PENDING]) if ages else None
        return QueueCounts(
            pending=sum(numbers[_PENDING]), delayed=delayed, in_progress=in_progress, dead=dead, oldest_ms=oldest_ms
        )

    async def _oldest_ms(self, queue: QueueKey, pending: Sequence[int]) -> int | None:
        lists = [key for key, number in zip(self._keys.queue(queue).pending, pending, strict=True) if number]
        if not lists:
            return None
        found = await self._connection.run(OLDEST, [self._keys.records, *lists], [MOVED_ENTRIES_MAX])
        return min((records.decode(record).updated_ms for record in found if record), default=None)

    async def queues(self) -> list[QueueKey]:
        return [queue for tenant in await self._tenants() for queue in await self.queues_of(tenant)]

    async def queues_of(self, tenant: str) -> set[QueueKey]:
        fields = await self._all(self._keys.counts(tenant))
        return {QueueKey(tenant, field[1:]) for field in fields if field[0] == "t"}

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

    async def _all(self, key: str) -> dict[str, int]:
        """Reads a hash in parts, so that a large one does not hold Redis."""
        found: dict[str, int] = {}
        cursor = b"0"
        while True:
            cursor, part = await self._connection.call("HSCAN", key, cursor, "COUNT", 1000)
            found |= {part[place].decode(): int(part[place + 1]) for place in range(0, len(part), 2)}
            if int(cursor) == 0:
                return found
