"""Tasks of one shard whose time has come: delayed ones, expired leases, ended ones to purge."""

from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import unquote

from codeq.domain.queue import Index, QueueKey
from codeq.domain.task import Task
from codeq.store import codec
from codeq.store.interface import Scope
from codeq.store.redis import records
from codeq.store.redis.connection import LuaScript, RedisClient
from codeq.store.redis.grace import RestartGrace
from codeq.store.redis.heads import QueueHead, QueueHeads
from codeq.store.redis.keys import ShardKeys, queue_of_member

DUE = LuaScript("due")
GROUPS_AT_ONCE = 100
"""Queues, or tenants, that one look visits, those that wait longest first."""
GROUPS_OF_ALL_AT_ONCE = 1000
"""The same for a claim of all commands of a tenant, which finds its queues among those of all tenants."""
TASKS_PER_TURN = 64
"""How many due tasks of one queue are returned before it is the next queue's turn."""

SetAside = Callable[[str, bytes, str], Awaitable[None]]


class DueTasks:
    def __init__(
        self,
        connection: RedisClient,
        keys: ShardKeys,
        heads: QueueHeads,
        set_aside: SetAside,
        *,
        grace: RestartGrace,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._heads = heads
        self._set_aside = set_aside
        self._grace = grace

    async def find(self, index: Index, now_ms: int, limit: int, scope: Scope) -> list[Task]:
        if self._is_known_idle(index, now_ms, scope):
            return []
        found = await self._find(index, now_ms, limit, scope)
        if found and index is Index.IN_PROGRESS and await self._grace.give():
            return []  # Redis was down when they ended, so no worker could extend them
        return found

    def _is_known_idle(self, index: Index, now_ms: int, scope: Scope) -> bool:
        """Returns whether this process knows that nothing of these queues is due: so it is before most claims."""
        if scope.tenant is None or scope.commands is None:
            return False
        is_delayed = index is Index.DELAYED
        for command in scope.commands:
            head = self._heads.get((scope.tenant, command))
            if head is None or (head.next_delayed_ms if is_delayed else head.next_lease_ms) <= now_ms:
                return False
        return True

    async def _find(self, index: Index, now_ms: int, limit: int, scope: Scope) -> list[Task]:
        if index is Index.NONE:
            tenants = await self._groups(self._keys.ended_heads, now_ms)
            return await self._read([self._keys.ended(unquote(tenant)) for tenant in tenants], now_ms, limit)
        if index not in (Index.DELAYED, Index.IN_PROGRESS):
            raise ValueError(f"tasks in {index} wait for no time")
        if scope.tenant is not None and scope.commands is not None:
            queues = [QueueKey(scope.tenant, command) for command in scope.commands]
            due = [queue for queue in queues if await self._is_due(index, queue, now_ms)]
            return await self._read([self._key(index, queue) for queue in due], now_ms, limit, share=limit)
        heads = self._keys.delayed_heads if index is Index.DELAYED else self._keys.leased_heads
        at_once = GROUPS_AT_ONCE if scope.tenant is None else GROUPS_OF_ALL_AT_ONCE
        found = [queue_of_member(member) for member in await self._groups(heads, now_ms, at_once)]
        named = [queue for queue in found if scope.tenant in (None, queue.tenant)]
        return await self._read([self._key(index, queue) for queue in named], now_ms, limit)

    async def look(self, queue: QueueKey) -> QueueHead:
        """Reads what is known of the queue."""
        keys = self._keys.queue(queue)
        fields = [f"{priority}{queue.command}" for priority in range(len(keys.pending))]
        counts, delayed, leased = await self._connection.call_all(
            [
                ("HMGET", self._keys.counts(queue.tenant), *fields),
                ("ZRANGE", keys.delayed, 0, 0, "WITHSCORES"),
                ("ZRANGE", keys.leased, 0, 0, "WITHSCORES"),
            ]
        )
        priorities = bytes(48 + priority for priority, count in enumerate(counts) if int(count or 0) > 0)
        return self._heads.set(queue, [priorities, delayed[1] if delayed else b"", leased[1] if leased else b""])

    async def _is_due(self, index: Index, queue: QueueKey, now_ms: int) -> bool:
        head = self._heads.get(queue) or await self.look(queue)
        return (head.next_delayed_ms if index is Index.DELAYED else head.next_lease_ms) <= now_ms

    def _key(self, index: Index, queue: QueueKey) -> str:
        keys = self._keys.queue(queue)
        return keys.delayed if index is Index.DELAYED else keys.leased

    async def _groups(self, heads: str, now_ms: int, limit: int = GROUPS_AT_ONCE) -> list[str]:
        found = await self._connection.call("ZRANGEBYSCORE", heads, "-inf", now_ms, "LIMIT", 0, limit)
        return [member.decode() for member in found]

    async def _read(
        self, indexes: Sequence[str], now_ms: int, limit: int, *, share: int = TASKS_PER_TURN
    ) -> list[Task]:
        if not indexes:
            return []
        if len(indexes) == 1:
            share = limit
        found = await self._connection.run(DUE, [self._keys.records, *indexes], [now_ms, limit, share])
        tasks: list[Task] = []
        for place, member, record in found:
            try:
                tasks.append(records.decode(record or b""))
            except codec.UNREADABLE as fault:
                await self._set_aside(indexes[place], member, str(fault))
        for task in tasks:
            self._heads.forget(QueueKey(task.tenant, task.command))
        return tasks
