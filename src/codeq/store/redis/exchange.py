"""One command and its answer on connections of redis-py, without what the library does around each.

The library takes a connection from its pool for each command, under a lock, makes a task and two timers for it, and
reports it to observers that nobody has: a third of the CPU time of a cycle of one task. What it does well stays
its own: connecting, TLS, logging in, answers and errors.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import hiredis
from redis import asyncio as aio
from redis.asyncio.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection
from redis.exceptions import ConnectionError as LostConnection

UNSENT_BYTES_MAX = 65_536
"""Of a command that the system has not taken yet. Of a longer one, the sender waits for the rest."""
KEPT_MAX = 16
"""Connections that stay checked out between commands; the others go back to the pool."""


class _Direct:
    """A connection of the library that packs in C and writes at once.

    The library packs in Python, a third of the engine's CPU time with large batches, and writes in a task of its own.
    """

    def pack_command(self, *words: Any) -> list[bytes]:
        name = words[0].encode() if isinstance(words[0], str) else words[0]
        packed: bytes = hiredis.pack_command((*name.split(), *words[1:]))
        return [packed]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        connection: Any = super()
        writer = self._writer  # type: ignore[attr-defined]
        if writer is None or isinstance(command, str | bytes):
            await connection.send_packed_command(command, check_health)
            return
        if writer.transport.is_closing():
            raise await self._lost("the connection was closed")
        try:
            writer.writelines(command)
        except (OSError, RuntimeError, AttributeError) as fault:  # the last two from a transport that was closed
            raise await self._lost(str(fault)) from fault
        if writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            await connection.send_packed_command((), check_health=False)  # waits, and not for ever

    async def _lost(self, reason: str) -> LostConnection:
        await self.disconnect(nowait=True)  # type: ignore[attr-defined]
        return LostConnection(f"Error while writing to socket. {reason}")


class PlainConnection(_Direct, aio.Connection):
    pass


class TlsConnection(_Direct, aio.SSLConnection):
    pass


class SentinelConnection(_Direct, SentinelManagedConnection):
    pass


class SentinelTlsConnection(_Direct, SentinelManagedSSLConnection):
    pass


class Exchange:
    """Commands on connections that stay checked out of the pool, so that it need not be asked for each."""

    def __init__(self, pool: Any, *, answer_s: float) -> None:
        self._pool = pool
        self._answer_s = answer_s
        self._idle: list[Any] = []

    async def call(self, words: Sequence[Any]) -> Any:
        """Returns the answer as Redis sent it. Whoever is cancelled meanwhile costs the connection, which has the
        answer to come."""
        connection = await self._connection()
        try:
            async with asyncio.timeout(self._answer_s):
                await connection.send_packed_command(connection.pack_command(*words), check_health=False)
                return await connection.read_response(timeout=math.inf)
        finally:
            if connection.is_connected and len(self._idle) < KEPT_MAX:
                self._idle.append(connection)
            else:
                await self._pool.release(connection)

    async def give_back(self) -> None:
        """Returns the connections that no call uses to the pool, which may then close them."""
        while self._idle:
            await self._pool.release(self._idle.pop())

    async def _connection(self) -> Any:
        """Returns a connection that is ready. One that was closed meanwhile, or has an answer that nobody has read, is
        left to the pool, which mends it."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_connected and not await connection.can_read():
                return connection
            await self._pool.release(connection)
        return await self._pool.get_connection()
