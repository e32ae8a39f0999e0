"""Connects to Redis: one server, a cluster, or a service that Sentinel watches. Nothing is sent twice by the library.

A call that fails has an unknown outcome, and only the engine knows how to ask again: by version, id or request id. So
the library's retries are off; what it follows are redirections of a cluster, which executed nothing.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import redis as redis_py
from msgspec import Struct
from redis import asyncio as aio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff

from codeq.domain.errors import InvalidRequest, StoreBusy, StoreClosed, StoreUnavailable
from codeq.domain.limits import COMMITS_WAITING_MAX
from codeq.store.redis.exchange import (
    Exchange,
    PlainConnection,
    SentinelConnection,
    SentinelTlsConnection,
    TlsConnection,
)
from codeq.store.redis.faults import FAULTS, is_from_replica, passing

CONNECTIONS_MAX = 64
"""Per process and node. Calls past this wait for one that ends."""
CONNECT_S, ANSWER_S = 2.0, 5.0
"""How long a connection and an answer may take. A failover takes about four seconds; callers repeat meanwhile."""

CLOSE_S = 1.0
"""How long calls may still take whose callers have gone, when the connections are closed."""

PAUSES_S = (0.05, 0.2, 0.5)
"""Pauses before a call is repeated whose connection was lost. Versions and request ids make changes happen once."""

_SCHEMES = {
    "redis": ("single", False), "rediss": ("single", True), "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True), "redis+sentinel": ("sentinel", False), "rediss+sentinel": ("sentinel", True),
}  # fmt: skip
_OPTIONS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"}
_UNCHANGED = (
    "EVAL", "EVALSHA", "GET", "HGET", "HGETALL", "HMGET", "HSCAN", "SET", "SMEMBERS", "XRANGE", "XREVRANGE", "ZCARD",
    "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZREVRANGEBYLEX",
)  # fmt: skip
"""Commands whose answers the library passes on as Redis sent them."""
T = TypeVar("T")


class RedisAddress(Struct, frozen=True, kw_only=True):
    """Where Redis is, and how to log in."""

    kind: str
    """`single`, `cluster` or `sentinel`."""
    nodes: tuple[tuple[str, int], ...]
    db: int = 0
    service: str = ""
    """The name of the primary that Sentinel watches."""
    options: dict[str, Any] = {}

    def __str__(self) -> str:
        """The address without the password."""
        nodes = ",".join(f"{host}:{port}" for host, port in self.nodes)
        return f"{self.kind} Redis at {nodes}" + (f" ({self.service})" if self.service else "")


def parse_url(url: str) -> RedisAddress:
    """Returns what a URL names: `redis://user:password@host:port/db`, `rediss://` with TLS, `redis+cluster://host:port,
    host:port`, `redis+sentinel://host:port,host:port/service/db`. Raises InvalidRequest."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise InvalidRequest(f"{parts.scheme}:// is not an address of Redis; known are {', '.join(_SCHEMES)}")
    kind, is_tls = _SCHEMES[parts.scheme]
    login, _, hosts = parts.netloc.rpartition("@")
    nodes = tuple(_node(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(","))
    if kind == "single" and len(nodes) > 1:
        raise InvalidRequest(f"{parts.scheme}:// names one server; several are those of a cluster or of Sentinel")
    options: dict[str, Any] = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    if unknown := options.keys() - _OPTIONS:
        raise InvalidRequest(f"{min(unknown)} is not an option of a Redis URL; known are {sorted(_OPTIONS)}")
    if login:
        user, _, password = login.partition(":")
        options |= {"username": unquote(user) or None, "password": unquote(password) or None}
    if is_tls:
        options["ssl"] = True
    path = [part for part in parts.path.split("/") if part]
    service = path.pop(0) if kind == "sentinel" and path else ""
    if kind == "sentinel" and not service:
        raise InvalidRequest("a Sentinel URL ends with the name of the service: redis+sentinel://host:26379/name")
    if path and (kind == "cluster" or not path[0].isdigit() or len(path) > 1):
        raise InvalidRequest(f"/{'/'.join(path)} is not the number of a Redis database")
    return RedisAddress(kind=kind, nodes=nodes, db=int(path[0]) if path else 0, service=service, options=options)


def _node(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
        port = None
    if not host:
        raise InvalidRequest(f"{text!r} is not a host and port")
    return host, port or default_port


class LuaScript:
    """A script of the folder `scripts`, called by its digest. Functions that several have in common come before it."""

    def __init__(self, *names: str) -> None:
        folder = files("codeq.store.redis") / "scripts"
        self.source = "".join([folder.joinpath(f"{name}.lua").read_text() for name in names])
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class RedisClient:
    """Commands and scripts on one Redis, for one event loop. Connects at the first call."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self._client: Any = None
        self._exchange: Exchange | None = None
        self._node: Any = None
        self._calls = asyncio.Semaphore(CONNECTIONS_MAX)
        self._detached: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._primary = ""

    @property
    def client(self) -> Any:
        if self._is_closed:
            raise StoreClosed("the connection to Redis was closed")
        if self._client is None:
            self._client = _client(self.address)
            for command in _UNCHANGED:
                self._client.response_callbacks.pop(command, None)
            if self.address.kind == "single":
                self._exchange = Exchange(self._client.connection_pool, answer_s=ANSWER_S)
        return self._client

    async def run(
        self,
        script: LuaScript,
        keys: Sequence[str],
        arguments: Sequence[Any],
        *,
        before: Sequence[Sequence[Any]] = (),
    ) -> Any:
        """Runs the script, with other commands before it in the same transaction.

        A server that does not know the script is sent its source: it executed nothing.
        """
        try:
            return await _cancellable(
                self._bounded(self._run(("EVALSHA", script.sha, len(keys), *keys, *arguments), before))
            )
        except redis_py.exceptions.NoScriptError:
            return await self.guarded(self._run(("EVAL", script.source, len(keys), *keys, *arguments), before))
        except FAULTS as fault:
            await self._leave_replica(fault)
            raise passing(fault) from fault

    async def _run(self, command: Sequence[Any], before: Sequence[Sequence[Any]]) -> Any:
        if not before:
            return await self._execute(*command)
        # In a cluster the library's transactions run on another event loop, so there it is no transaction: the script
        # refuses a task whose body is not there.
        pipeline = self.client.pipeline(transaction=self.address.kind != "cluster")
        for first in before:
            pipeline.execute_command(*first)
        pipeline.execute_command(*command)
        return (await pipeline.execute())[-1]

    async def call(self, *command: Any) -> Any:
        """Sends a command that may be sent twice: a read, or a write that does the same again."""
        return await self._again(lambda: self._execute(*command))

    async def _execute(self, *command: Any) -> Any:
        client = self.client
        if self._exchange is not None and command[0] in _UNCHANGED:
            return await self._exchange.call(command)
        return await client.execute_command(*command)

    async def info(self, key: str, section: str) -> dict[str, Any]:
        """Returns what the node that has the key tells of itself."""
        if self.address.kind != "cluster":
            found: dict[str, Any] = await self.guarded(self.client.info(section))
            return found
        await self.guarded(self.client.initialize())
        node = self.client.get_node_from_key(key)
        answer: dict[str, Any] = await self.guarded(self.client.info(section, target_nodes=node))
        return answer

    async def config(self, key: str, name: str) -> str:
        """Returns a setting of the node that has the key. Raises StoreError where the service does not allow it."""
        target = {}
        if self.address.kind == "cluster":
            await self.guarded(self.client.initialize())
            target = {"target_nodes": self.client.get_node_from_key(key)}
        return str((await self.guarded(self.client.config_get(name, **target))).get(name, "unknown"))

    async def time_of(self, key: str) -> tuple[int, int]:
        """Returns the time of the node that has the key: seconds, and microseconds."""
        if self.address.kind != "cluster":
            answer: tuple[int, int] = await self.guarded(self.client.time())
            return answer
        await self.guarded(self.client.initialize())
        node = self.client.get_node_from_key(key)
        found: tuple[int, int] = await self.guarded(self.client.time(target_nodes=node))
        return found

    async def call_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Sends several such commands on keys of one shard at once. They are not one atomic step."""
        if len(commands) == 1:
            return [await self.call(*commands[0])]
        return await self._again(lambda: self._pipelined(commands))

    async def _pipelined(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await pipeline.execute()
        return answers

    async def on_one_connection(self, key: str, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Sends commands to the node that has the key, one after another on one connection. Follows no redirection."""
        pipeline = self.client.pipeline(transaction=False)
        target: dict[str, Any] = {}
        options: dict[str, Any] = {}
        if self.address.kind == "cluster":
            await self.client.initialize()
            target = {"target_nodes": self.client.get_node_from_key(key)}
            options = {"allow_redirections": False}
        for command in commands:
            pipeline.execute_command(*command, **target)
        answers: list[Any] = await pipeline.execute(**options)
        return answers

    async def close_connections(self, primary: str) -> None:
        """Closes all connections, once for each new primary: some may lead to the one before, which still writes.

        A cluster's client has connections per node, and asks the nodes who has a key.
        """
        if primary != self._primary and self.address.kind != "cluster":
            self._primary = primary
            await self.client.connection_pool.disconnect()

    async def _again(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats a call whose connection was lost, as may happen when the nodes of a cluster change.

        In a task of its own: the library may swallow a cancellation, and would close the connection. So the callers may
        have gone, and only this bounds how many such calls a Redis that does not answer holds.
        """
        if len(self._detached) >= COMMITS_WAITING_MAX:
            raise busy()
        return await asyncio.shield(self.detached(self._repeated(call)))

    def detached(self, call: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Runs the call in a task that outlives its caller, and not the connections: `close` ends it."""
        calling = asyncio.get_running_loop().create_task(call)
        self._detached.add(calling)
        calling.add_done_callback(self._detached_ended)
        return calling

    def _detached_ended(self, task: "asyncio.Task[Any]") -> None:
        self._detached.discard(task)
        if not task.cancelled():
            task.exception()  # the caller gets it; one that has gone must not make a warning

    async def _repeated(self, call: Callable[[], Awaitable[T]]) -> T:
        for pause_s in PAUSES_S:
            try:
                return await self.guarded(call())
            except StoreUnavailable:
                await asyncio.sleep(pause_s)
        return await self.guarded(call())

    async def guarded(self, call: Awaitable[T]) -> T:
        try:
            return await _cancellable(self._bounded(call))
        except FAULTS as fault:
            await self._leave_replica(fault)
            raise passing(fault) from fault

    async def _leave_replica(self, fault: Exception) -> None:
        """Closes connections to a server that is no longer the primary, and keeps them open: its address may lead to
        the new one by now. A cluster's client follows by itself."""
        if self.address.kind != "cluster" and is_from_replica(fault):
            if self._exchange is not None:
                await self._exchange.give_back()
            await self.client.connection_pool.disconnect(inuse_connections=False)

    async def _bounded(self, call: Awaitable[T]) -> T:
        """Waits for a connection where the library would refuse the call, or open any number."""
        if self.address.kind == "single":
            return await call
        async with self._calls:
            return await call

    async def subscriptions(self) -> Any:
        """Returns a connection of its own for publish/subscribe, to any node: channels are those of all nodes."""
        if self.address.kind != "cluster":
            return self.client.pubsub()
        await self.guarded(self.client.initialize())
        if self._node is not None:
            await self._node.aclose()
        self._node = _any_node(self.client, self.address)  # another one each time: the last may be down
        return self._node.pubsub()

    async def close(self) -> None:
        """Ends the calls whose callers have gone, then the connections: such a call would open others."""
        node, self._node = self._node, None
        if self._detached:
            await asyncio.wait(list(self._detached), timeout=CLOSE_S)
        self._is_closed = True
        while self._detached:
            for calling in self._detached:
                calling.cancel()  # again if the library has swallowed it
            await asyncio.wait(list(self._detached), timeout=0.2)
        if node is not None:
            await node.aclose()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
            if self.address.kind == "sentinel":
                for sentinel in client.connection_pool.sentinel_manager.sentinels:
                    await sentinel.aclose()
            if self.address.kind == "cluster":
                # After a lost connection the library counts itself as closed, and leaves the other connections open.
                await client.nodes_manager.aclose()
                await client.nodes_manager.aclose("startup_nodes")


def busy() -> StoreBusy:
    return StoreBusy(f"{COMMITS_WAITING_MAX} calls wait for Redis; try again in a moment")


async def _cancellable(call: Awaitable[T]) -> T:
    """Awaits the call, and raises CancelledError if the caller was cancelled meanwhile, even if the library answers:
    Python 3.11's `wait_for`, which it uses, forgets a cancellation that comes together with the answer. A sweeper that
    is not told would never end."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        return await call
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def _settings(address: RedisAddress) -> dict[str, Any]:
    return {
        "socket_connect_timeout": CONNECT_S, "socket_timeout": ANSWER_S, "socket_keepalive": True,
        "retry": AsyncRetry(NoBackoff(), 0), "protocol": 2, **address.options,
    }  # fmt: skip


def _client(address: RedisAddress) -> Any:
    settings = _settings(address)
    if address.kind == "cluster":
        # At every fifth redirection the library would close all connections, also those in use.
        nodes = [aio.cluster.ClusterNode(host, port) for host, port in address.nodes]
        cluster: Any = aio.RedisCluster(
            startup_nodes=nodes, max_connections=CONNECTIONS_MAX, reinitialize_steps=0, **settings
        )
        kind: Any = TlsConnection if settings.get("ssl") else PlainConnection
        cluster.connection_kwargs["connection_class"] = kind  # of the nodes that it finds
        for node in cluster.startup_nodes:
            node.connection_class = kind
        return cluster
    if address.kind == "sentinel":
        sentinel: Any = aio.Sentinel
        asking = {  # without the library's repetitions, which wait for seconds at a sentinel that is down
            "socket_connect_timeout": CONNECT_S, "socket_timeout": CONNECT_S, "retry": AsyncRetry(NoBackoff(), 0),
        }  # fmt: skip
        known = sentinel(list(address.nodes), sentinel_kwargs=asking, **settings)
        kind = SentinelTlsConnection if settings.get("ssl") else SentinelConnection
        return known.master_for(address.service, db=address.db, connection_class=kind)
    [(host, port)] = address.nodes
    settings["connection_class"] = TlsConnection if settings.pop("ssl", False) else PlainConnection
    pool = aio.BlockingConnectionPool(
        host=host, port=port, db=address.db, max_connections=CONNECTIONS_MAX, timeout=ANSWER_S, **settings
    )
    return aio.Redis.from_pool(pool)


def _any_node(cluster: Any, address: RedisAddress) -> Any:
    """Returns a client of one node of the cluster."""
    node = cluster.get_random_node()
    return aio.Redis(host=node.host, port=node.port, **_settings(address))
