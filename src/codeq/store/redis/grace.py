"""More time for leases after a start of Redis: while it was down, no worker could extend its own."""

from collections.abc import Callable

from codeq.domain import lifecycle
from codeq.domain.queue import QueueKey
from codeq.domain.task import Change, Move
from codeq.store import codec
from codeq.store.redis import records
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import ShardKeys, queue_of_member
from codeq.store.redis.plan import COMMIT, CommitPlanner

_LEASES_AT_ONCE = 500


class RestartGrace:
    """For one shard. Tied to the Redis server, not to this process: one that is started again and again must not
    extend leases for ever. A shard that moves to another node gets a grace there as well."""

    def __init__(
        self, connection: RedisClient, keys: ShardKeys, *, shard: int, now_ms: Callable[[], int], grace_ms: int
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._shard = shard
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._run_id: str | None = None

    async def give(self) -> bool:
        """Extends every lease if Redis was started since the last time. Returns whether this process did not know.

        Called before leases are ended, so that none ends for an outage of Redis that nobody has noticed yet.
        """
        run_id = str((await self._connection.info(self._keys.meta, "server")).get("run_id", ""))
        if run_id == self._run_id:
            return False
        is_first = self._run_id is None
        known = await self._connection.call("HGET", self._keys.meta, "run_id")
        is_given = known is not None and known.decode() == run_id
        if not is_given:
            await self._extend_all(run_id)
        self._run_id = run_id
        return not (is_first and is_given)

    async def _extend_all(self, run_id: str) -> None:
        keys = self._keys
        least_ms = self._now_ms() + self._grace_ms
        for member in await self._connection.call("ZRANGEBYSCORE", keys.leased_heads, "-inf", f"({least_ms}"):
            await self._extend(queue_of_member(member.decode()), least_ms)
        await self._connection.call("HSET", keys.meta, "run_id", run_id)

    async def _extend(self, queue: QueueKey, least_ms: int) -> None:
        connection, keys = self._connection, self._keys
        early = ("ZRANGEBYSCORE", keys.queue(queue).leased, "-inf", f"({least_ms}", "LIMIT", 0, _LEASES_AT_ONCE)
        while ids := await connection.call(*early):
            changes: list[Change] = []
            for raw in await connection.call("HMGET", keys.records, *ids):
                try:
                    task = records.decode(raw or b"")
                except codec.UNREADABLE:
                    continue  # set aside when its lease is due
                changes.append(Change(Move.HEARTBEAT, task, lifecycle.with_grace(task, least_ms)))
            plan = CommitPlanner(keys, self._shard).plan(changes)
            if not changes or not any(await connection.run(COMMIT, plan.keys, plan.arguments)):
                return
