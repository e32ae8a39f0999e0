"""Measure what each Bloom filter of the Redis engine saves: `python benchmarks/filters.py`.

Each case runs with its filter and without it, in alternating turns on one Redis with an append-only file. It prints
medians per task: commands (also those inside scripts), bytes of the file, and CPU of Redis and of this process.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncio
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from tests.redis_servers import RedisNode, start_node

from codeq.domain import lifecycle
from codeq.domain.queue import Index, QueuePolicy
from codeq.domain.requests import Claim, NewTask
from codeq.domain.task import Task
from codeq.store.interface import Store
from codeq.store.redis.filters import CLEANUP, GHOST, IDEMPOTENCY, Filters, FilterSize, RotatingFilter
from codeq.store.redis.opening import RedisOptions, open_redis
from codeq.usecases import claim as claiming
from codeq.usecases import enqueue as enqueueing
from codeq.usecases.core import Core, make_core
from codeq.usecases.enqueue import Enqueued
from codeq.usecases.waiters import Waiters

TURNS, CALLERS = 5, 16
TENANT = "acme"
OFF = FilterSize(items=0, error_rate=0.5, seconds=60)
_numbers = itertools.count()


class Cost(NamedTuple):
    """Per task."""

    commands: float
    aof_bytes: float
    redis_us: float
    process_us: float


class Installation:
    """Processes on one Redis, each with filters of its own, on keys that no other turn uses."""

    def __init__(self, node: RedisNode, *, has_filters: bool) -> None:
        self._node = node
        self._sizes = (IDEMPOTENCY, GHOST, CLEANUP) if has_filters else (OFF, OFF, OFF)
        self._prefix = f"bench{next(_numbers)}"
        self._opened: list[Store] = []

    def open(self) -> Core:
        made = [RotatingFilter(size) for size in self._sizes]
        filters = Filters(idempotency=made[0], ghost=made[1], cleanup=made[2])
        waiters = Waiters()
        store = open_redis(
            self._node.url, RedisOptions(prefix=self._prefix), process=str(next(_numbers)), listeners=[waiters],
            filters=filters,
        )  # fmt: skip
        self._opened.append(store)
        return make_core(store, waiters, QueuePolicy(retention_ms=0), randomness=random.Random())

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


class Meter:
    """Reads the counters of Redis and of this process before and after."""

    def __init__(self, node: RedisNode) -> None:
        self._client = node.client()

    async def of(self, tasks: int, work: Callable[[], Awaitable[object]]) -> Cost:
        before = self._read()
        await work()
        return Cost(*((after - earlier) / tasks for after, earlier in zip(self._read(), before, strict=True)))

    def _read(self) -> tuple[float, float, float, float]:
        stats = self._client.info("commandstats")
        cpu = self._client.info("cpu")
        commands = sum(stat["calls"] for name, stat in stats.items() if name not in ("cmdstat_info", "cmdstat_ping"))
        aof = self._client.info("persistence")["aof_current_size"]
        redis_us = (cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]) * 1e6
        return commands, aof, redis_us, time.process_time() * 1e6


Case = Callable[[Installation, Meter, int], Awaitable[Cost]]


async def enqueue_all(core: Core, new_tasks: Sequence[NewTask], *, at_once: int = 1) -> list[Task]:
    """Enqueues in calls of `at_once` tasks, by several callers."""
    waiting = [new_tasks[place : place + at_once] for place in range(0, len(new_tasks), at_once)]
    stored: list[Task] = []

    async def call() -> None:
        while waiting:
            for answer in await enqueueing.enqueue(core, TENANT, waiting.pop()):
                assert isinstance(answer, Enqueued)
                stored.append(answer.task)

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return stored


def keyed(tasks: int, payload_bytes: int) -> list[NewTask]:
    payload = b'"' + b"x" * payload_bytes + b'"'
    return [NewTask(command="work", payload=payload, idempotency_key=f"key-{number}") for number in range(tasks)]


def repeated_keys(payload_bytes: int, *, at_once: int = 1) -> Case:
    async def run(installation: Installation, meter: Meter, tasks: int) -> Cost:
        core, new_tasks = installation.open(), keyed(tasks, payload_bytes)
        await enqueue_all(core, new_tasks, at_once=100)
        return await meter.of(tasks, lambda: enqueue_all(core, new_tasks, at_once=at_once))

    return run


async def fresh_keys(installation: Installation, meter: Meter, tasks: int) -> Cost:
    core = installation.open()
    await enqueue_all(core, [NewTask(command="other", payload=b"1", idempotency_key="first")])
    return await meter.of(tasks, lambda: enqueue_all(core, keyed(tasks, 200)))


async def cancel_all(core: Core, tasks: Sequence[Task]) -> None:
    for start in range(0, len(tasks), 100):
        now_ms = core.now_ms()
        piece = tasks[start : start + 100]
        await core.store.commit([lifecycle.cancel(task, now_ms, retention_ms=60_000) for task in piece])


async def cancelled_twice(installation: Installation, meter: Meter, tasks: int) -> Cost:
    """Cancels that were decided before another call had cancelled the task."""
    core = installation.open()
    stored = await enqueue_all(core, [NewTask(command="work", payload=b"1")] * tasks, at_once=100)
    await cancel_all(core, stored)
    await asyncio.sleep(0.002)  # another time, so that it is not the same change again
    return await meter.of(tasks, lambda: cancel_all(core, stored))


async def claims_behind_cancelled(installation: Installation, meter: Meter, tasks: int) -> Cost:
    """Claims of one task each, with nine cancelled ones before each."""
    core = installation.open()
    stored = await enqueue_all(core, [NewTask(command="work", payload=b"1")] * tasks * 10, at_once=100)
    order = sorted(stored, key=lambda task: task.version)
    await cancel_all(core, [task for place, task in enumerate(order) if place % 10 != 9])

    async def claim_all() -> None:
        for _ in range(tasks):
            [_] = await claiming.claim(core, TENANT, Claim(worker="w", commands=["work"], limit=1))

    return await meter.of(tasks, claim_all)


async def two_sweepers(installation: Installation, meter: Meter, tasks: int) -> Cost:
    """Two processes purge at the same time, as when the one that swept was paused and goes on."""
    one, two = installation.open(), installation.open()
    stored = await enqueue_all(one, [NewTask(command="work", payload=b"1")] * tasks, at_once=100)
    now_ms = one.now_ms()
    for start in range(0, tasks, 100):
        piece = stored[start : start + 100]
        await one.store.commit([lifecycle.cancel(task, now_ms, retention_ms=0) for task in piece])

    async def sweep(core: Core) -> None:
        while due := await core.store.due(Index.NONE, core.now_ms() + 1000, 100):
            await core.store.commit([lifecycle.purge(task, now_ms) for task in due])

    return await meter.of(tasks, lambda: asyncio.gather(sweep(one), sweep(two)))


CASES: dict[str, Case] = {
    "idempotency: repeated keys, 200 B": repeated_keys(200),
    "idempotency: repeated keys, 5 KB": repeated_keys(5000),
    "idempotency: repeated keys, 5 KB, 16 in a call": repeated_keys(5000, at_once=16),
    "idempotency: fresh keys, 200 B": fresh_keys,
    "ghost: claims behind 9 cancelled tasks": claims_behind_cancelled,
    "ghost: cancels that come too late": cancelled_twice,
    "cleanup: two sweepers": two_sweepers,
}


async def turn(node: RedisNode, case: Case, tasks: int, *, has_filters: bool) -> Cost:
    installation = Installation(node, has_filters=has_filters)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(installation.close)
        return await case(installation, Meter(node), tasks)


def main(*, tasks: Annotated[int, typer.Option(help="tasks per turn")] = 1000) -> None:
    table = Table(title="per task, median of alternating turns: with the filter / without")
    for column in ("case", "commands", "AOF bytes", "Redis CPU µs", "process CPU µs"):
        table.add_column(column, justify="left" if column == "case" else "right")
    with tempfile.TemporaryDirectory() as folder, start_node(Path(folder), appendonly="yes") as node:
        for name, case in CASES.items():
            costs: dict[bool, list[Cost]] = {True: [], False: []}
            for number in range(2 * TURNS):
                has_filters = number % 2 == 0
                costs[has_filters].append(asyncio.run(turn(node, case, tasks, has_filters=has_filters)))
            medians = {has: Cost(*map(statistics.median, zip(*costs[has], strict=True))) for has in costs}
            pairs = zip(medians[True], medians[False], strict=True)
            table.add_row(name, *(f"{with_filter:.1f} / {without:.1f}" for with_filter, without in pairs))
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
