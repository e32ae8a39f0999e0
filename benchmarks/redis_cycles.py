"""Full cycles (enqueue, claim, complete) on the Redis engine, on RocksDB and as raw commands, and what they cost Redis.

Raw sends the writes of the engine's layout and decides nothing: no versions, no idempotency, no repeated claims. It is
there twice. *Raw per task* has one command for each task and key, as a client without scripts would; *raw per batch*
has one command with many values for each key, the least that Redis can do for these writes. Both in pipelines.
"""

import asyncio
import gc
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import redis
from benchmarks.cycles import COMMAND, go_round, payloads
from redis import asyncio as aio

from codeq import AsyncQueue, NewTask
from codeq.domain.queue import QueuePolicy
from codeq.store.redis.opening import RedisOptions, open_redis
from codeq.usecases import sweep
from codeq.usecases.core import make_core
from codeq.usecases.waiters import Waiters

PAYLOAD_BYTES, RECORD_BYTES, ENTRY_BYTES = 200, 150, 28
"""A record and an entry of a pending list as the engine writes them."""

Round = Callable[[], Awaitable[None]]
_prefixes = (f"b{number}" for number in itertools.count())


class Setting(msgspec.Struct, frozen=True, order=True):
    batch: int
    callers: int

    def __str__(self) -> str:
        return f"{self.batch} x {self.callers}"


class Turn(msgspec.Struct, frozen=True):
    """What one turn did and cost."""

    cycles: int
    elapsed_s: float
    python_cpu_s: float
    redis_cpu_s: float = 0.0
    round_trips: int = 0
    """How often Redis read from a connection: a pipeline or a script counts once."""
    commands: int = 0
    """With those that scripts call."""

    @property
    def per_s(self) -> float:
        return self.cycles / self.elapsed_s


class RedisMeter:
    """What a Redis server has done since the meter was made."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._started = self._read()

    def stop(self) -> tuple[float, int, int]:
        """Returns CPU seconds, round trips and commands."""
        cpu_s, trips, commands = (now - then for now, then in zip(self._read(), self._started, strict=True))
        self._client.close()
        return cpu_s, int(trips) - 1, int(commands) - 1  # its own

    def _read(self) -> tuple[float, int, int]:
        info: dict[str, Any] = self._client.info("everything")
        cpu_s = info["used_cpu_user"] + info["used_cpu_sys"]
        commands = sum(found["calls"] for name, found in info.items() if name.startswith("cmdstat_"))
        return cpu_s, info["total_reads_processed"], commands


@asynccontextmanager
async def redis_queue(url: str) -> AsyncIterator[AsyncQueue]:
    """A queue on a new prefix of this Redis, with its sweepers, as a server has it."""
    waiters, prefix = Waiters(), next(_prefixes)
    store = open_redis(url, RedisOptions(prefix=prefix), process=prefix, listeners=[waiters])
    core = make_core(store, waiters, QueuePolicy(), randomness=random.Random(1))
    sweeper = asyncio.get_running_loop().create_task(
        sweep.run(core, events_keep_ms=3_600_000, events_keep_max=100_000_000)
    )
    async with AsyncQueue(core, "default", sweeper) as queue:
        yield queue


async def engine_turn(queue: AsyncQueue, setting: Setting, seconds: float, *, url: str | None = None) -> Turn:
    made = [NewTask(command=COMMAND, payload=payload) for payload in payloads(PAYLOAD_BYTES, setting.batch)]

    async def one_round() -> None:
        once = iter([True, False])
        await go_round(queue, made, lambda: next(once))

    return await measure([one_round] * setting.callers, setting.batch, seconds, url=url)


async def raw_turn(url: str, setting: Setting, seconds: float, *, is_per_task: bool) -> Turn:
    client = aio.Redis.from_url(url, max_connections=setting.callers)
    raw = RawCycle(client, setting.batch, is_per_task=is_per_task)
    try:
        return await measure([raw.run] * setting.callers, setting.batch, seconds, url=url)
    finally:
        await client.aclose()


async def measure(rounds: Sequence[Round], batch: int, seconds: float, *, url: str | None) -> Turn:
    """Lets every caller go round for about so long, after one round that is not counted."""
    await asyncio.gather(*(one() for one in rounds))
    gc.collect()
    meter = RedisMeter(url) if url is not None else None
    done, started_s, started_cpu_s = 0, time.perf_counter(), time.process_time()

    async def call(one: Round) -> None:
        nonlocal done
        while time.perf_counter() - started_s < seconds:
            await one()
            done += batch

    await asyncio.gather(*(call(one) for one in rounds))
    elapsed_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    return Turn(done, elapsed_s, cpu_s, *(meter.stop() if meter is not None else ()))


class RawCycle:
    """The writes of a cycle in the engine's layout, as plain commands in three pipelines."""

    def __init__(self, client: Any, batch: int, *, is_per_task: bool) -> None:
        self._client = client
        self._batch = batch
        self._is_per_task = is_per_task
        self._tag = f"{{{next(_prefixes)}}}:"
        self._numbers = itertools.count(1)
        self._bodies = payloads(PAYLOAD_BYTES, batch)
        self._record = os.urandom(RECORD_BYTES)

    async def run(self) -> None:
        ids = [os.urandom(16) for _ in range(self._batch)]
        await self._send(self._enqueue(ids))
        await self._send(self._claim(ids))
        await self._send(self._complete(ids))

    def _enqueue(self, ids: list[bytes]) -> list[list[Any]]:
        return [
            *self._each("HSET", "t", [[task_id, self._record] for task_id in ids]),
            *self._each("HSET", "b", [list(pair) for pair in zip(ids, self._bodies, strict=True)]),
            *self._each("RPUSH", "p", [[task_id + bytes(ENTRY_BYTES - 16)] for task_id in ids]),
            *self._each("ZADD", "z", [[0, task_id] for task_id in ids]),
            *self._count("p", 1),
            *self._events(),
        ]

    def _claim(self, ids: list[bytes]) -> list[list[Any]]:
        pops = [["LPOP", self._tag + "p"]] * len(ids) if self._is_per_task else [["LPOP", self._tag + "p", len(ids)]]
        return [
            *pops,
            *self._each("HMGET", "t", [[task_id] for task_id in ids]),
            *self._each("HMGET", "b", [[task_id] for task_id in ids]),
            *self._each("HSET", "t", [[task_id, self._record] for task_id in ids]),
            *self._each("ZADD", "l", [[1, task_id] for task_id in ids]),
            *self._count("p", -1),
            *self._count("r", 1),
            *self._events(),
        ]

    def _complete(self, ids: list[bytes]) -> list[list[Any]]:
        return [
            *self._each("HMGET", "t", [[task_id] for task_id in ids]),
            *self._each("HSET", "t", [[task_id, self._record] for task_id in ids]),
            *self._each("ZREM", "l", [[task_id] for task_id in ids]),
            *self._each("ZADD", "x", [[1, task_id] for task_id in ids]),
            *self._count("r", -1),
            *self._events(),
        ]

    def _each(self, command: str, key: str, values: list[list[Any]]) -> list[list[Any]]:
        if self._is_per_task:
            return [[command, self._tag + key, *value] for value in values]
        return [[command, self._tag + key, *(part for value in values for part in value)]]

    def _count(self, field: str, change: int) -> list[list[Any]]:
        if self._is_per_task:
            return [["HINCRBY", self._tag + "c", field, change]] * self._batch
        return [["HINCRBY", self._tag + "c", field, change * self._batch]]

    def _events(self) -> list[list[Any]]:
        if self._is_per_task:
            return [["XADD", self._tag + "e", "*", "w", self._record]] * self._batch
        return [["XADD", self._tag + "e", "*", "w", self._record * self._batch]]

    async def _send(self, commands: list[list[Any]]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        await pipeline.execute()
