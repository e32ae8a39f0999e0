"""Executes async handlers on the worker's event loop, where cancellation interrupts them."""

import asyncio
from collections import deque
from functools import partial
from time import monotonic

from codeq.sdk.worker.execution import run_handler_async
from codeq.sdk.worker.outcomes import DROPPED, JobOutcome
from codeq.sdk.worker.pool import Attach, Ended, InFlightJob, Report
from codeq.sdk.worker.running_job import RunningJob


class EventLoopPool:
    """A `Pool` of asyncio tasks."""

    def __init__(self, size: int, ended: Ended, report: Report, attach: Attach) -> None:
        self._size = size
        self._ended = ended
        self._report = report
        self._attach = attach
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[InFlightJob] = deque()
        self._running: dict[InFlightJob, tuple[asyncio.Task[None], RunningJob]] = {}
        self._discarded: set[asyncio.Task[None]] = set()

    def submit(self, entry: InFlightJob) -> None:
        self._waiting.append(entry)
        self._start_waiting()

    def drain(self) -> list[InFlightJob]:
        entries = list(self._waiting)
        self._waiting.clear()
        return entries

    def interrupt(self, entry: InFlightJob) -> None:
        if entry in self._running:
            task, running = self._running[entry]
            running.is_cancelled = True
            task.add_done_callback(lambda _: self._leave(entry, DROPPED))  # a task may be cancelled before it began
            task.cancel()

    def discard(self, entry: InFlightJob) -> None:
        found = self._running.pop(entry, None)
        if found is not None:
            self._discarded.add(found[0])
            found[0].add_done_callback(self._discarded.discard)
            self._start_waiting()

    @property
    def fault(self) -> str | None:
        return None if len(self._discarded) <= self._size else "too many async handlers ignore their cancellation"

    def close(self) -> None:
        for task, running in self._running.values():
            running.is_cancelled = True
            task.cancel()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._size:
            entry = self._waiting.popleft()
            if entry.decided_s:
                self._ended(entry, DROPPED)
                continue
            running = RunningJob(entry.job, self._report, partial(self._attach, entry))
            task = self._loop.create_task(self._run(entry, running))
            self._running[entry] = task, running
            entry.started_s = monotonic()

    async def _run(self, entry: InFlightJob, running: RunningJob) -> None:
        outcome = DROPPED
        try:
            outcome = await run_handler_async(entry.handler, running)
        except BaseException:
            if not running.is_cancelled:
                raise
        finally:
            self._leave(entry, outcome)

    def _leave(self, entry: InFlightJob, outcome: JobOutcome) -> None:
        if self._running.pop(entry, None) is not None:
            self._ended(entry, outcome)
            self._start_waiting()
