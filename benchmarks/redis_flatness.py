"""Whether a cycle on Redis costs the same however much is stored: in progress, pending, or cancelled before it."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import redis
from benchmarks.cycles import COMMAND, payloads
from benchmarks.redis_cycles import PAYLOAD_BYTES, RedisMeter, Setting, Turn, engine_turn, redis_queue

from codeq import AsyncQueue, NewTask, Task

FILL_BATCH = 1000
_SETTING = Setting(16, 1)
_HELD_LEASE_S = 3600
_SLOW_US = 100


class Point(msgspec.Struct, frozen=True):
    """A cycle with so many tasks of a kind stored. For cancelled ones: the one claim that passes their entries."""

    kind: str
    stored: int
    turn: Turn
    longest_ms: float
    """Of any script: all other clients of Redis wait that long."""


async def measure(url: str, sizes: dict[str, list[int]], seconds: float) -> AsyncIterator[Point]:
    """Grows one kind of stored tasks after another, each in a store of its own."""
    for kind, fill in (("in progress", _hold), ("pending", _enqueue)):
        async with redis_queue(url) as queue:
            stored = 0
            for size in sizes[kind]:
                await fill(queue, size - stored)
                stored = size
                slow = _SlowLog(url)
                turn = await engine_turn(queue, _SETTING, seconds, url=url)
                yield Point(kind, size, turn, slow.longest_ms())
    for size in sizes["cancelled"]:
        async with redis_queue(url) as queue:
            await _cancel(queue, size)
            slow = _SlowLog(url)
            yield Point("cancelled", size, await _claim_behind(queue, url), slow.longest_ms())


class _SlowLog:
    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._client.config_set("slowlog-log-slower-than", _SLOW_US)
        self._client.slowlog_reset()

    def longest_ms(self) -> float:
        found: list[dict[str, Any]] = self._client.slowlog_get(128)
        self._client.close()
        return max([each["duration"] for each in found if b"EVALSHA" in each["command"]], default=0) / 1000


async def _enqueue(queue: AsyncQueue, tasks: int) -> list[str]:
    """Returns the ids of the last batch."""
    new = [NewTask(command=COMMAND, payload=payload) for payload in payloads(PAYLOAD_BYTES, FILL_BATCH)]
    added: list[str] = []
    for _ in range(0, tasks, FILL_BATCH):
        added = [task.id for task in await queue.enqueue_many(new) if isinstance(task, Task)]
    return added


async def _hold(queue: AsyncQueue, tasks: int) -> None:
    """Leases tasks of the measured queue for longer than the measurement takes."""
    for _ in range(0, tasks, FILL_BATCH):
        await _enqueue(queue, FILL_BATCH)
        await queue.claim(COMMAND, limit=FILL_BATCH, lease=_HELD_LEASE_S)


async def _cancel(queue: AsyncQueue, tasks: int) -> None:
    """Leaves the entries of so many cancelled tasks in the pending list."""
    for _ in range(0, tasks, FILL_BATCH):
        await asyncio.gather(*map(queue.cancel, await _enqueue(queue, FILL_BATCH)))


async def _claim_behind(queue: AsyncQueue, url: str) -> Turn:
    """Claims the only task behind the cancelled ones."""
    await queue.enqueue(COMMAND, {})
    meter, started_s, started_cpu_s = RedisMeter(url), time.perf_counter(), time.process_time()
    jobs: list[Any] = []
    while not jobs:
        jobs = await queue.claim(COMMAND)
    elapsed_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    turn = Turn(1, elapsed_s, cpu_s, *meter.stop())
    await queue.complete_many(jobs)
    return turn
