"""Waits until replicas have what was written. Calls that wait at the same time share one WAIT per node."""

import asyncio

from codeq.domain.errors import StoreUnavailable
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.faults import FAULTS, passing


class ReplicaWait:
    """For one shard."""

    def __init__(
        self, connection: RedisClient, marker: str, *, replicas: int, timeout_ms: int, primary: str = ""
    ) -> None:
        self._connection = connection
        self._marker = marker
        self.is_needed = replicas > 0
        """Whether anything is waited for. With no replicas asked for, an answer of Redis is all there is."""
        self._replicas = replicas
        self._timeout_ms = timeout_ms
        self._primary = primary
        self._next: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @property
    def primary(self) -> str:
        """The one that confirmed last."""
        return self._primary

    async def wait(self, since: str | None = None) -> None:
        """Returns once all that was written before is on the replicas. Raises StoreUnavailable if it may not be.

        `since` is the primary before the first of these writes: they may have gone to it, and another one, which has
        been seen meanwhile, cannot confirm them.
        """
        if not self.is_needed:
            return
        if since is not None and since != self._primary:
            raise _other_primary()
        if self._next is None:
            self._next = self._connection.detached(self._wait_together(self._primary))
        await asyncio.shield(self._next)

    async def _wait_together(self, before: str) -> None:
        async with self._lock:
            self._next = None  # who comes from now on may have written after the marker
            confirmed, self._primary = await self._confirmations()
            if self._primary != before:
                await self._connection.close_connections(self._primary)
                raise _other_primary()
        if confirmed < self._replicas:
            raise StoreUnavailable(
                f"{confirmed} of {self._replicas} replicas have confirmed the write in time, so whether it survives a "
                "failover is unknown; repeat the call"
            )

    async def _confirmations(self) -> tuple[int, str]:
        """Writes a marker and waits for it: WAIT counts what its own connection wrote, and everything before it.

        Returns how many replicas have it, and which primary said so: one that was promoted after the write may have
        the marker and not the write.
        """
        try:
            _, confirmed, replication = await self._connection.on_one_connection(
                self._marker,
                [("SET", self._marker, ""), ("WAIT", self._replicas, self._timeout_ms), ("INFO", "replication")],
            )
        except FAULTS as fault:
            raise passing(fault) from fault
        return int(confirmed), str(replication["master_replid"])


def _other_primary() -> StoreUnavailable:
    return StoreUnavailable(
        "another Redis server has become the primary, so whether it has the write is unknown; repeat the call"
    )


async def primary_of(connection: RedisClient, key: str) -> str:
    """Returns what tells the primary of the key from the one before: each promotion and each start has another."""
    return str((await connection.info(key, "replication")).get("master_replid", ""))
