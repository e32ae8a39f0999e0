"""Sends each command exactly once, over a client for one server or for a cluster.

redis-py by default repeats a command whose answer was lost: a script would run again, and a task would be claimed for
nobody. What the client was told about retries does not matter here: for one server its connections are
used without them, and a cluster client repeats nothing that is sent to a node by name. It does follow MOVED, ASK and
TRYAGAIN, which are refusals: nothing has run.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from codeq.domain.errors import InvalidRequest
from codeq.priority.scripts import load

CONNECTIONS_MAX = 1024
"""Of a client made from a URL. Every call that waits has one; they are made when they are needed."""

CANCEL_EVERY_S = 0.01

Client = Redis | RedisCluster


class RedisConnection:
    """Runs scripts and commands over a client. One made from a URL is closed with it."""

    def __init__(self, url_or_client: str | Client, *, has_hash_tag: bool) -> None:
        self._is_own = isinstance(url_or_client, str)
        self._client: Any = (
            Redis.from_url(url_or_client, max_connections=CONNECTIONS_MAX)
            if isinstance(url_or_client, str)
            else url_or_client
        )
        self._is_cluster = isinstance(self._client, RedisCluster)
        if self._is_cluster and not has_hash_tag:
            raise InvalidRequest(
                "on a cluster a queue needs a hash tag, so that its keys are in one slot: hash_tag=..."
            )

    async def run(self, name: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Runs a script once. The server may not know it yet; then nothing has run, and it is sent in full."""
        script = load(name)
        try:
            return await self.send("EVALSHA", script.sha, len(keys), *keys, *arguments, key=keys[0])
        except NoScriptError:
            return await self.send("EVAL", script.source, len(keys), *keys, *arguments, key=keys[0])
        except ResponseError as error:
            if "-OOM " in str(error):  # how Redis before 7 says it of a command that a script called
                raise OutOfMemoryError(str(error)) from error
            raise

    async def send(self, *command: Any, key: str) -> Any:
        """Sends a command once and returns the answer, its texts as bytes.

        A caller that is cancelled hears of it: `wait_for` of Python 3.11, which redis-py uses, forgets a cancellation
        that comes together with what it waits for, so it is cancelled again.
        """
        sending = asyncio.ensure_future(self._send(*command, key=key))
        try:
            await asyncio.wait([sending])
        except asyncio.CancelledError:
            while not sending.done():
                sending.cancel()
                await asyncio.wait([sending], timeout=CANCEL_EVERY_S)
            if not sending.cancelled():
                sending.exception()  # nobody asks for it any more
            raise
        return sending.result()

    async def _send(self, *command: Any, key: str) -> Any:
        if self._is_cluster:
            await self._client.initialize()
            node = self._client.get_node_from_key(key)
            return await self._client.execute_command(*command, target_nodes=node, NEVER_DECODE=True)
        connection = await self._client.connection_pool.get_connection()
        try:
            if await connection.can_read():  # the server has closed it; nothing else is said unasked
                await connection.disconnect(nowait=True)
            await connection.send_command(*command)
            return await connection.read_response(disable_decoding=True)
        except (RedisConnectionError, RedisTimeoutError):
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self._client.connection_pool.release(connection)

    async def pop_or_wait(self, key: str, seconds: float) -> bytes | None:
        """Returns the first of a list, waiting for one; None if there was none. Redis waits up to 0.1 s longer."""
        answer_s = self._client.get_connection_kwargs().get("socket_timeout") or math.inf
        try:
            found = await self.send("BLPOP", key, max(0.001, min(seconds, answer_s / 2)), key=key)
        except RedisTimeoutError:
            return None  # the client allows less time for an answer than Redis takes to say that there is nothing
        return found[1] if found else None

    async def close(self) -> None:
        if self._is_own:
            await self._client.aclose()
