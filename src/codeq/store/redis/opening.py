"""Opens a store on Redis: agrees on its format, learns what an acknowledged write survives, restores leases."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from codeq.clock import SteadyClock
from codeq.domain import lifecycle
from codeq.domain.errors import InvalidRequest, StoreMismatch
from codeq.domain.limits import RESTART_GRACE_MS, SHARDS_MAX
from codeq.domain.queue import QueueKey
from codeq.domain.task import Change, Move
from codeq.store import codec
from codeq.store.interface import Clock, Listener, Store
from codeq.store.redis import keys as naming
from codeq.store.redis import records
from codeq.store.redis.connection import RedisAddress, RedisClient, parse_url
from codeq.store.redis.durability import Durability, inspect
from codeq.store.redis.eventlog import EventStream
from codeq.store.redis.filters import Filters
from codeq.store.redis.keys import Channels, ShardKeys, queue_of_member
from codeq.store.redis.peers import RedisPeers
from codeq.store.redis.plan import CommitPlan
from codeq.store.redis.policies import PolicyCache
from codeq.store.redis.redis_time import RedisTime
from codeq.store.redis.replicas import ReplicaWait
from codeq.store.redis.shard import COMMIT, RedisShard
from codeq.store.sharded import ShardedStore

FORMAT = 1
VERSION_MIN = (6, 2)
_LEASES_AT_ONCE = 500
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

    Time is that of Redis, unless a clock is given. `on_durability` is called with what an acknowledged write survives.
    """
    address, prefix = parse_url(url), wanted.prefix
    if not prefix or not prefix.isascii() or not prefix.replace("-", "").replace("_", "").isalnum():
        raise InvalidRequest(f"the prefix of the keys must be letters, digits, - and _, not {prefix!r}")
    redis_time = RedisTime()
    prepared = _run_apart(lambda: _prepare(address, wanted, clock or redis_time, on_durability))
    client = RedisClient(address)
    meta = ShardKeys(prefix, 0).meta
    peers = RedisPeers(
        client, listeners, prefix=prefix, shards=prepared.shards, process=process,
        policies=PolicyCache(prepared.policies),
        refresh_time=None if clock is not None else lambda: redis_time.ask(client, meta),
    )  # fmt: skip
    filters = filters or Filters()
    opened: list[RedisShard] = []
    for number in range(prepared.shards):
        marker = ShardKeys(prefix, number).marker
        replicas = ReplicaWait(client, marker, replicas=wanted.replicas, timeout_ms=wanted.replicas_timeout_ms)
        opened.append(
            RedisShard(number, client, peers, prefix=prefix, clock=prepared.clock, replicas=replicas, filters=filters)
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
            await give_grace(client, of_shard, shard=number, now_ms=clock, grace_ms=wanted.grace_ms)
        return _Prepared(shards, _pairs(await client.call("HGETALL", first.policies)), clock)
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


async def give_grace(
    connection: RedisClient, keys: ShardKeys, *, shard: int, now_ms: Callable[[], int], grace_ms: int
) -> None:
    """Extends every lease once per start of the Redis server: workers could not reach it while it was down.

    Tied to the server, not to this process: one that is started again and again must not extend leases for ever.
    """
    run_id = str((await connection.info(keys.meta, "server")).get("run_id", ""))
    known = await connection.call("HGET", keys.meta, "run_id")
    if known is not None and known.decode() == run_id:
        return
    least_ms = now_ms() + grace_ms
    for member in await connection.call("ZRANGEBYSCORE", keys.leased_heads, "-inf", f"({least_ms}"):
        await _extend_leases(connection, keys, shard=shard, queue=queue_of_member(member.decode()), least_ms=least_ms)
    await connection.call("HSET", keys.meta, "run_id", run_id)


async def _extend_leases(
    connection: RedisClient, keys: ShardKeys, *, shard: int, queue: QueueKey, least_ms: int
) -> None:
    leased = keys.queue(queue).leased
    while ids := await connection.call("ZRANGEBYSCORE", leased, "-inf", f"({least_ms}", "LIMIT", 0, _LEASES_AT_ONCE):
        changes: list[Change] = []
        for raw in await connection.call("HMGET", keys.records, *ids):
            try:
                task = records.decode(raw or b"")
            except codec.UNREADABLE:
                continue  # set aside when its lease is due
            changes.append(Change(Move.HEARTBEAT, task, lifecycle.with_grace(task, least_ms)))
        plan = CommitPlan(keys, Channels(keys.prefix), shard, changes)
        if not changes or not any(await connection.run(COMMIT, plan.keys, plan.arguments)):
            return


def _pairs(answer: Any) -> dict[bytes, bytes]:
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
