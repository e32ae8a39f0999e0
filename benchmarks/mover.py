"""Whether promoting what is due costs the same, however many tasks wait for a later time."""

import statistics
import time
from pathlib import Path

import msgspec

import codeq
from codeq import AsyncQueue, NewTask
from codeq.testing import ClockForTests
from codeq.usecases.sweep import promote_due

COMMAND = "bench"
DUE = 10
_HOUR_MS = 3_600_000
_BATCH = 1000


class Promotion(msgspec.Struct, frozen=True):
    """Milliseconds of one `promote_due`, without the write that a later flush shares with others."""

    future: int
    due_ms: float
    """With 10 tasks due."""
    idle_ms: float
    """With none due."""
    idle_worst_ms: float


class Mover:
    def __init__(self, queue: AsyncQueue, clock: ClockForTests, future: int) -> None:
        self._queue = queue
        self._clock = clock
        self._future = future
        self._due_s: list[float] = []
        self._idle_s: list[float] = []

    @classmethod
    async def start(cls, home: Path, future: int) -> "Mover":
        """A store with so many tasks that are delayed by an hour or more, spread over another hour."""
        clock = ClockForTests()
        queue = await codeq.open_async(home, durability="process", clock=clock, sweeping=False)
        for first in range(0, future, _BATCH):
            delays = [_HOUR_MS + place * _HOUR_MS // future for place in range(first, min(first + _BATCH, future))]
            await queue.enqueue_many([NewTask(command=COMMAND, delay_ms=delay_ms) for delay_ms in delays])
        return cls(queue, clock, future)

    async def turn(self) -> None:
        """Let 10 tasks become due and time their promotion, then time one that finds nothing."""
        await self._queue.enqueue_many([NewTask(command=COMMAND, delay_ms=100)] * DUE)
        self._clock.now_ms += 200
        found, seconds = await self._promote()
        if found != DUE:
            raise RuntimeError(f"{DUE} tasks were due, {found} were promoted")
        self._due_s.append(seconds)
        await self._queue.core.store.flush()
        for _ in range(10):
            self._clock.now_ms += 1
            self._idle_s.append((await self._promote())[1])
        await self._queue.complete_many(await self._queue.claim(COMMAND, limit=DUE))

    async def close(self) -> Promotion:
        await self._queue.close()
        return Promotion(
            self._future,
            statistics.median(self._due_s) * 1000,
            statistics.median(self._idle_s) * 1000,
            max(self._idle_s) * 1000,
        )

    async def _promote(self) -> tuple[int, float]:
        started_s = time.perf_counter()
        found = await promote_due(self._queue.core)
        return found, time.perf_counter() - started_s


async def measure(directory: Path, future: int, *, turns: int) -> tuple[Promotion, Promotion]:
    """With none in the future, and with many; in turns, so that both see the same machine."""
    movers = [await Mover.start(directory / f"future-{number}", number) for number in (0, future)]
    for _ in range(turns):
        for mover in movers:
            await mover.turn()
    none, many = [await mover.close() for mover in movers]
    return none, many
