"""Async handlers on the worker's own event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

from codeq.sdk.jobs import Job
from codeq.sdk.worker.handling import End, Ended, Handler, fault_of, perform_async
from codeq.sdk.worker.running_job import RunningJob


class LoopCrew:
    def __init__(self, size: int, done: Callable[[Ended], None], report: Callable[[Job, str], None]) -> None:
        self._size = size
        self._done = done
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Handler, Job]] = deque()
        self._running: dict[str, tuple[asyncio.Task[None], RunningJob, float]] = {}

    def give(self, handler: Handler, job: Job) -> None:
        self._waiting.append((handler, job))
        self._feed()

    def interrupt(self, key: str) -> None:
        """Cancel the handler: CancelledError is raised where it awaits."""
        if key in self._running:
            task, running, _ = self._running[key]
            running.is_cancelled = True
            task.cancel()

    def take_back(self) -> list[Job]:
        """The jobs that have not begun, which will not begin any more."""
        jobs = [job for _, job in self._waiting]
        self._waiting.clear()
        return jobs

    def running(self) -> list[tuple[str, float]]:
        return [(key, started_s) for key, (_, _, started_s) in self._running.items()]

    def close(self) -> None:
        for task, _, _ in self._running.values():
            task.cancel()

    def _feed(self) -> None:
        while self._waiting and len(self._running) < self._size:
            handler, job = self._waiting.popleft()
            try:
                running = RunningJob(job, self._report)
            except ValueError as fault:
                self._done(fault_of(handler, job, fault))
                continue
            task = self._loop.create_task(self._perform(handler, running))
            self._running[job.key] = task, running, monotonic()

    async def _perform(self, handler: Handler, running: RunningJob) -> None:
        ended = Ended(running.job, End.DROP)
        try:
            ended = await perform_async(handler, running)
        finally:
            del self._running[running.job.key]
            self._done(ended)
            self._feed()
