"""Opens a store on Redis: agrees on its format, learns what an acknowledged write survives, restores leases."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import redis as redis_py
from msgspec import Struct

from codeq.clock import SteadyClock
from codeq.domain.errors import InvalidRequest, StoreError, StoreMismatch, StoreUnavailable
from codeq.domain.limits import RESTART_GRACE_MS
from codeq.log_id import new_log_id
from codeq.store.interface import Clock, Listener, Store
from codeq.store.redis import keys as naming
from codeq.store.redis.connection import RedisAddress, RedisClient, parse_url
from codeq.store.redis.data_set import DataSet
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

VERSION_MIN = (6, 2)
T = TypeVar("T")


class RedisOptions(Struct, frozen=True, kw_only=True):
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
    policies: dict[bytes, bytes]
    clock: Clock
    primaries: list[str]
    """Per shard, if replicas must confirm its writes."""
    durability: Durability
    data_set: DataSet
    """As it was agreed on, over a connection that is closed by now."""


def open_redis(
    url: str,
    wanted: RedisOptions,
    *,
    process: str,
    clock: Clock | None = None,
    listeners: Sequence[Listener] = (),
    on_durability: Callable[[Durability], None] = lambda _: None,
    filters: Filters | None = None,
    make_log_id: Callable[[], str] = new_log_id,
) -> Store:
    """Opens the store at this address. Any number of processes may, each with a name of its own, `process`.

    Time is that of Redis, unless a clock is given. `on_durability` is called with what an acknowledged write survives,
    and again when that changes.
    """
    address, prefix = parse_url(url), wanted.prefix
    if not prefix or not prefix.isascii() or not prefix.replace("-", "").replace("_", "").isalnum():
        raise InvalidRequest(f"the prefix of the keys must be letters, digits, - and _, not {prefix!r}")
    redis_time = RedisTime()
    try:
        prepared = _run_apart(
            lambda: _prepare(
                address, wanted, clock or redis_time, on_durability, process=process, make_log_id=make_log_id
            )
        )
    except StoreMismatch:
        raise
    except StoreError as fault:  # here the operator reads it, who may know the address
        raise StoreUnavailable(f"cannot open the store on the {address}: {_reason(fault)}") from fault
    client = RedisClient(address)
    first = ShardKeys(prefix, 0)
    watch = DurabilityWatch(client, first, replicas=wanted.replicas, known=prepared.durability, on_change=on_durability)

    data_set = DataSet(client, prefix, process=process, make_log_id=make_log_id)
    data_set.identities, data_set.log_id = prepared.data_set.identities, prepared.data_set.log_id

    async def refresh() -> None:
        await data_set.look()
        for shard in opened:
            shard.log_id = data_set.log_id
        await watch.look()
        if clock is None:
            await redis_time.ask(client, first.meta)

    peers = RedisPeers(
        client, listeners, prefix=prefix, shards=data_set.shards, process=process,
        policies=PolicyCache(prepared.policies),
        refresh=refresh,
    )  # fmt: skip
    filters = filters or Filters()
    opened = [
        _open_shard(number, client, peers, wanted=wanted, prepared=prepared, filters=filters)
        for number in range(data_set.shards)
    ]
    return opened[0] if len(opened) == 1 else ShardedStore(opened)


def _open_shard(
    number: int,
    client: RedisClient,
    peers: RedisPeers,
    *,
    wanted: RedisOptions,
    prepared: _Prepared,
    filters: Filters,
) -> RedisShard:
    keys, clock = ShardKeys(wanted.prefix, number), prepared.clock
    replicas = ReplicaWait(
        client, keys.marker, replicas=wanted.replicas, timeout_ms=wanted.replicas_timeout_ms,
        primary=prepared.primaries[number],
    )  # fmt: skip
    grace = RestartGrace(client, keys, shard=number, now_ms=clock, grace_ms=wanted.grace_ms)
    return RedisShard(
        number,
        client,
        peers,
        prefix=wanted.prefix,
        clock=clock,
        replicas=replicas,
        grace=grace,
        filters=filters,
        log_id=prepared.data_set.log_id,
    )


async def _prepare(
    address: RedisAddress,
    wanted: RedisOptions,
    time: Clock | RedisTime,
    on_durability: Callable[[Durability], None],
    *,
    process: str,
    make_log_id: Callable[[], str],
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
        data_set = DataSet(client, wanted.prefix, process=process, make_log_id=make_log_id)
        await data_set.agree(wanted.shards)
        keys = [ShardKeys(wanted.prefix, number) for number in range(data_set.shards)]
        clock.start_at(max([await EventStream(client, of_shard).newest_ms() for of_shard in keys]))
        for number, of_shard in enumerate(keys):
            await RestartGrace(client, of_shard, shard=number, now_ms=clock, grace_ms=wanted.grace_ms).give()
        primaries = [await primary_of(client, of_shard.marker) if wanted.replicas else "" for of_shard in keys]
        policies = _pairs(await client.call("HGETALL", first.policies))
        return _Prepared(policies, clock, primaries, durability, data_set)
    finally:
        await client.close()


def _run_apart(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs the call on an event loop of its own, because a store is opened before there is one, or beside one."""
    with ThreadPoolExecutor(1, thread_name_prefix="codeq-open") as executor:
        return executor.submit(lambda: asyncio.run(call())).result()


def _reason(fault: StoreError) -> str:
    cause = fault.__cause__ or fault
    if isinstance(cause, redis_py.exceptions.MovedError):
        return "it is one of the nodes of a cluster, whose address begins with redis+cluster://"
    return str(cause)


async def _check_version(connection: RedisClient, keys: ShardKeys) -> None:
    version = str((await connection.info(keys.meta, "server")).get("redis_version", "0.0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < VERSION_MIN:
        raise StoreMismatch(f"this Redis is {version}; codeQ needs {'.'.join(map(str, VERSION_MIN))} or newer")


def _pairs(answer: Any) -> dict[bytes, bytes]:
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
