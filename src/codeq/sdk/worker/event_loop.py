"""Async handlers on the worker's own event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

from codeq.sdk.jobs import Job
from codeq.sdk.worker.execution import InFlightJob, JobOutcome, OutcomeKind, run_handler_async
from codeq.sdk.worker.running_job import RunningJob


class EventLoopPool:
    def __init__(self, size: int, done: Callable[[JobOutcome], None], report: Callable[[Job, str], None]) -> None:
        self._size = size
        self._done = done
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[InFlightJob] = deque()
        self._running: dict[InFlightJob, tuple[asyncio.Task[None], RunningJob, float]] = {}
        self._stuck: set[asyncio.Task[None]] = set()

    def give(self, held: InFlightJob) -> None:
        self._waiting.append(held)
        self._feed()

    def interrupt(self, held: InFlightJob) -> None:
        """Cancel the handler: CancelledError is raised where it awaits."""
        if held in self._running:
            task, running, _ = self._running[held]
            running.is_cancelled = True
            task.add_done_callback(
                lambda _: self._left(held, JobOutcome(held.job, OutcomeKind.DROP))
            )  # it may not even have begun
            task.cancel()

    def write_off(self, held: InFlightJob) -> None:
        """Let another job begin in the place of one that does not heed its cancellation."""
        found = self._running.pop(held, None)
        if found is not None:
            self._stuck.add(found[0])
            found[0].add_done_callback(self._stuck.discard)
            self._feed()

    @property
    def fault(self) -> str | None:
        return None if len(self._stuck) <= self._size else "too many async handlers do not heed their cancellation"

    def take_back(self) -> list[InFlightJob]:
        """The jobs that have not begun, which will not begin any more."""
        jobs = list(self._waiting)
        self._waiting.clear()
        return jobs

    def running(self) -> list[tuple[InFlightJob, float]]:
        return [(held, started_s) for held, (_, _, started_s) in self._running.items()]

    def close(self) -> None:
        for task, running, _ in self._running.values():
            running.is_cancelled = True
            task.cancel()

    def _feed(self) -> None:
        while self._waiting and len(self._running) < self._size:
            held = self._waiting.popleft()
            if held.is_settled:
                self._done(JobOutcome(held.job, OutcomeKind.DROP))
                continue
            running = RunningJob(held.job, self._report)
            task = self._loop.create_task(self._perform(held, running))
            self._running[held] = task, running, monotonic()

    async def _perform(self, held: InFlightJob, running: RunningJob) -> None:
        ended = JobOutcome(held.job, OutcomeKind.DROP)
        try:
            ended = await run_handler_async(held.handler, running)
        except BaseException:
            if not running.is_cancelled:
                raise
        finally:
            self._left(held, ended)

    def _left(self, held: InFlightJob, ended: JobOutcome) -> None:
        if self._running.pop(held, None) is not None:
            self._done(ended)
            self._feed()
