"""Opens a store on Redis: agrees on its format, learns what an acknowledged write survives, restores leases."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from codeq.clock import SteadyClock
from codeq.domain.errors import InvalidRequest, StoreMismatch
from codeq.domain.limits import RESTART_GRACE_MS, SHARDS_MAX
from codeq.store.interface import Clock, Listener, Store
from codeq.store.redis import keys as naming
from codeq.store.redis.connection import RedisAddress, RedisClient, parse_url
from codeq.store.redis.durability import Durability, DurabilityWatch, inspect
from codeq.store.redis.eventlog import EventStream
from codeq.store.redis.filters import Filters
from codeq.store.redis.grace import RestartGrace
from codeq.store.redis.keys import ShardKeys
from codeq.store.redis.peers import RedisPeers
from codeq.store.redis.policies import PolicyCache
from codeq.store.redis.redis_time import RedisTime
from codeq.store.redis.replicas import ReplicaWait, primary_of
from codeq.store.redis.shard import RedisShard
from codeq.store.sharded import ShardedStore

FORMAT = 1
VERSION_MIN = (6, 2)
T = TypeVar("T")


class Wanted(Struct, frozen=True, kw_only=True):
    """How a store on Redis is opened."""

    prefix: str = naming.PREFIX
    """Begins every key."""
    shards: int | None = None
    """Fixed at the first opening; None for the existing number, or one."""
    grace_ms: int = RESTART_GRACE_MS
    replicas: int = 0
    """A call returns once that many replicas have its changes."""
    replicas_timeout_ms: int = 1000
    is_strict: bool = False
    """Refuse a Redis whose settings may lose acknowledged tasks."""


class _Prepared(NamedTuple):
    shards: int
    policies: dict[bytes, bytes]
    clock: Clock
    primaries: list[str]
    """Per shard, if replicas must confirm its writes."""
    durability: Durability


def open_redis(
    url: str,
    wanted: Wanted,
    *,
    process: str,
    clock: Clock | None = None,
    listeners: Sequence[Listener] = (),
    on_durability: Callable[[Durability], None] = lambda _: None,
    filters: Filters | None = None,
) -> Store:
    """Opens the store at this address. Any number of processes may, each with a name of its own, `process`.

    Time is that of Redis, unless a clock is given. `on_durability` is called with what an acknowledged write survives,
    and again when that changes.
    """
    address, prefix = parse_url(url), wanted.prefix
    if not prefix or not prefix.isascii() or not prefix.replace("-", "").replace("_", "").isalnum():
        raise InvalidRequest(f"the prefix of the keys must be letters, digits, - and _, not {prefix!r}")
    redis_time = RedisTime()
    prepared = _run_apart(lambda: _prepare(address, wanted, clock or redis_time, on_durability))
    client = RedisClient(address)
    first = ShardKeys(prefix, 0)
    watch = DurabilityWatch(client, first, replicas=wanted.replicas, known=prepared.durability, on_change=on_durability)

    async def refresh() -> None:
        await watch.look()
        if clock is None:
            await redis_time.ask(client, first.meta)

    peers = RedisPeers(
        client, listeners, prefix=prefix, shards=prepared.shards, process=process,
        policies=PolicyCache(prepared.policies),
        refresh=refresh,
    )  # fmt: skip
    filters = filters or Filters()
    opened: list[RedisShard] = []
    for number in range(prepared.shards):
        keys = ShardKeys(prefix, number)
        replicas = ReplicaWait(
            client, keys.marker, replicas=wanted.replicas, timeout_ms=wanted.replicas_timeout_ms,
            primary=prepared.primaries[number],
        )  # fmt: skip
        grace = RestartGrace(client, keys, shard=number, now_ms=prepared.clock, grace_ms=wanted.grace_ms)
        opened.append(
            RedisShard(
                number,
                client,
                peers,
                prefix=prefix,
                clock=prepared.clock,
                replicas=replicas,
                grace=grace,
                filters=filters,
            )
        )
    return opened[0] if len(opened) == 1 else ShardedStore(opened)


async def _prepare(
    address: RedisAddress, wanted: Wanted, time: Clock | RedisTime, on_durability: Callable[[Durability], None]
) -> _Prepared:
    """Checks the server, agrees on the number of shards, and gives leases their grace."""
    client, first = RedisClient(address), ShardKeys(wanted.prefix, 0)
    try:
        await _check_version(client, first)
        durability = await inspect(client, first, replicas=wanted.replicas)
        if wanted.is_strict and durability.warnings:
            raise StoreMismatch(f"this Redis may lose acknowledged tasks: {'; '.join(durability.warnings)}")
        on_durability(durability)
        if isinstance(time, RedisTime):
            await time.ask(client, first.meta)
        clock = SteadyClock(wall_ns=time) if isinstance(time, RedisTime) else time
        shards = await _agree_on_shards(client, first, wanted.shards)
        keys = [ShardKeys(wanted.prefix, number) for number in range(shards)]
        clock.start_at(max([await EventStream(client, of_shard).newest_ms() for of_shard in keys]))
        for number, of_shard in enumerate(keys):
            await RestartGrace(client, of_shard, shard=number, now_ms=clock, grace_ms=wanted.grace_ms).give()
        primaries = [await primary_of(client, of_shard.marker) if wanted.replicas else "" for of_shard in keys]
        return _Prepared(shards, _pairs(await client.call("HGETALL", first.policies)), clock, primaries, durability)
    finally:
        await client.close()


def _run_apart(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs the call on an event loop of its own, because a store is opened before there is one, or beside one."""
    with ThreadPoolExecutor(1, thread_name_prefix="codeq-open") as executor:
        return executor.submit(lambda: asyncio.run(call())).result()


async def _check_version(connection: RedisClient, keys: ShardKeys) -> None:
    version = str((await connection.info(keys.meta, "server")).get("redis_version", "0.0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < VERSION_MIN:
        raise StoreMismatch(f"this Redis is {version}; codeQ needs {'.'.join(map(str, VERSION_MIN))} or newer")


async def _agree_on_shards(connection: RedisClient, keys: ShardKeys, wanted: int | None) -> int:
    if wanted is not None and not 1 <= wanted <= SHARDS_MAX:
        raise InvalidRequest(f"shards must be 1 to {SHARDS_MAX}, not {wanted}")
    await connection.call("HSETNX", keys.meta, "shards", wanted or 1)
    await connection.call("HSETNX", keys.meta, "format", FORMAT)
    shards, format_ = map(int, await connection.call("HMGET", keys.meta, "shards", "format"))
    if format_ > FORMAT:
        raise StoreMismatch(f"this Redis has data of a newer codeQ (format {format_}, this one knows {FORMAT})")
    if wanted is not None and wanted != shards:
        raise StoreMismatch(
            f"the data in this Redis has {shards} shards, not {wanted}, and tasks cannot change their shard. Use "
            f"{shards}, or another prefix"
        )
    return shards


def _pairs(answer: Any) -> dict[bytes, bytes]:
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
