"""Whether claims grow slower with every task served: in a naive LSM queue, deletion marks pile up before the head.

Each figure is compared twice. With the series' own figure at 1 k: the goal, but it drifts with the load of the machine.
And with a twin, a new store that has served 1 k and is measured in turns: free of drift, but blind to what slows down
the whole process, such as compaction or garbage collection, because that hits the twin as well. Read both.
"""

import shutil
import statistics
import time
from pathlib import Path

import msgspec
from benchmarks.cycles import COMMAND, payloads
from benchmarks.machine import percentile

import codeq
from codeq import AsyncQueue, NewTask

BASE_SERVED = 1_000
SHALLOW_BACKLOG, DEEP_BACKLOG = 64, 5_000
"""The first is always in memory; the second is larger than the window of 1024, so that claims read ahead from disk."""
_SERVE_BATCH = 128
_BLOCK = 64


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds of the claim alone; the completion and the refill that keep the backlog are not counted."""

    mean: float
    p50: float
    p99: float
    most: float


class Point(msgspec.Struct, frozen=True):
    backlog: int
    served: int
    limit: int
    latency: Latency
    twin: Latency
    """The twin's: a store that has served 1 k, measured in the same moments and the same process."""


def ratios(now: Latency, then: Latency) -> tuple[float, float, float]:
    """How much slower: p50, p99 and mean."""
    return now.p50 / then.p50, now.p99 / then.p99, now.mean / then.mean


class Series:
    """A store whose served tasks grow from one measurement to the next, while its backlog stays the same."""

    def __init__(self, queue: AsyncQueue, directory: Path, backlog: int) -> None:
        self._queue = queue
        self._directory = directory
        self._backlog = backlog
        self._served = 0

    @classmethod
    async def start(cls, directory: Path, backlog: int) -> "Series":
        return cls(await _stocked(directory / f"served-{backlog}", backlog), directory, backlog)

    async def close(self) -> None:
        await self._queue.close()

    async def measure(self, served: int, claims: dict[int, int]) -> list[Point]:
        """Serve up to that many, then time so many claims per limit against a store that has served 1 k."""
        await _serve(self._queue, served - self._served)
        self._served = max(served, self._served)
        home = self._directory / f"base-{self._backlog}-{served}"
        base = await _stocked(home, self._backlog)
        try:
            await _serve(base, BASE_SERVED)
            return [await self._point(base, served, limit, number) for limit, number in claims.items()]
        finally:
            await base.close()
            shutil.rmtree(home)

    async def _point(self, base: AsyncQueue, served: int, limit: int, number: int) -> Point:
        times: dict[AsyncQueue, list[float]] = {self._queue: [], base: []}
        for queue in times:
            await _timed_claims(queue, limit, _BLOCK)
        for _ in range(0, number, _BLOCK):
            for queue in times:
                times[queue] += await _timed_claims(queue, limit, _BLOCK)
        self._served += (len(times[self._queue]) + _BLOCK) * limit
        return Point(self._backlog, served, limit, _latency(times[self._queue]), _latency(times[base]))


async def _stocked(home: Path, backlog: int) -> AsyncQueue:
    queue = await codeq.open_async(home, durability="process")
    new = _new_tasks(min(backlog, 1000))
    for _ in range(0, backlog, len(new)):
        await queue.enqueue_many(new)
    return queue


async def _serve(queue: AsyncQueue, tasks: int) -> None:
    new = _new_tasks(_SERVE_BATCH)
    for _ in range(0, tasks, _SERVE_BATCH):
        await queue.enqueue_many(new)
        await queue.complete_many(await queue.claim(COMMAND, limit=_SERVE_BATCH))


async def _timed_claims(queue: AsyncQueue, limit: int, number: int) -> list[float]:
    new = _new_tasks(limit)
    times = []
    for _ in range(number):
        started_s = time.perf_counter()
        jobs = await queue.claim(COMMAND, limit=limit)
        times.append(time.perf_counter() - started_s)
        if len(jobs) != limit:
            raise RuntimeError(f"a claim of {limit} got {len(jobs)}: the backlog was not kept")
        await queue.complete_many(jobs)
        await queue.enqueue_many(new)
    return times


def _new_tasks(number: int) -> list[NewTask]:
    return [NewTask(command=COMMAND, payload=payload) for payload in payloads(200, number)]


def _latency(times_s: list[float]) -> Latency:
    ms = [value * 1000 for value in times_s]
    return Latency(statistics.fmean(ms), percentile(ms, 0.5), percentile(ms, 0.99), max(ms))
