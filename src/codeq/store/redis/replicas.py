"""Waits until replicas have what was written. Calls that wait at the same time share one WAIT per node."""

import asyncio
from typing import Any

import redis as redis_py

from codeq.domain.errors import StoreUnavailable
from codeq.store.redis.connection import RedisClient, passing


class ReplicaWait:
    """For one shard. With no replicas asked for, waits for nothing: an answer of Redis is all there is."""

    def __init__(self, connection: RedisClient, marker: str, *, replicas: int, timeout_ms: int) -> None:
        self._connection = connection
        self._marker = marker
        self._replicas = replicas
        self._timeout_ms = timeout_ms
        self._next: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Returns once all that was written before is on the replicas. Raises StoreUnavailable if it may not be."""
        if not self._replicas:
            return
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._wait_together())
            self._next.add_done_callback(_seen)
        await asyncio.shield(self._next)

    async def _wait_together(self) -> None:
        async with self._lock:
            self._next = None  # who comes from now on may have written after the marker
            confirmed = await self._confirmations()
        if confirmed < self._replicas:
            raise StoreUnavailable(
                f"{confirmed} of {self._replicas} replicas have confirmed the write in time, so whether it survives a "
                "failover is unknown; repeat the call"
            )

    async def _confirmations(self) -> int:
        """Writes a marker and waits for it: WAIT counts what its own connection wrote, and everything before it."""
        pipeline: Any = self._connection.client.pipeline(transaction=False)
        pipeline.execute_command("SET", self._marker, "")
        pipeline.execute_command("WAIT", self._replicas, self._timeout_ms)
        try:
            answers = await pipeline.execute()
        except (redis_py.exceptions.RedisError, OSError) as fault:
            raise passing(fault) from fault
        return int(answers[-1])


def _seen(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()  # every waiter gets it; one that left must not make a warning
