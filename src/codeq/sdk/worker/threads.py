"""Executes handlers in threads of the worker's process, where an exception interrupts them."""

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic

from codeq.sdk.worker.execution import run_handler
from codeq.sdk.worker.outcomes import DROPPED, Interrupted
from codeq.sdk.worker.pool import Attach, Ended, InFlightJob, Report, attach_blocking
from codeq.sdk.worker.running_job import AttachedFile, RunningJob


class ThreadPool:
    """A `Pool` of threads, all started at once."""

    def __init__(self, size: int, ended: Ended, report: Report, attach: Attach) -> None:
        self._attach = partial(attach_blocking, asyncio.get_running_loop(), attach)
        self._inbox: SimpleQueue[InFlightJob | None] = SimpleQueue()
        self._size = size
        self._ended = ended
        self._report = report
        self._threads = [self._start_thread(number) for number in range(size)]
        self._discarded: list[_WorkerThread] = []

    def submit(self, entry: InFlightJob) -> None:
        self._inbox.put(entry)

    def drain(self) -> list[InFlightJob]:
        entries = []
        with contextlib.suppress(Empty):
            while (entry := self._inbox.get_nowait()) is not None:
                entries.append(entry)
        return entries

    def interrupt(self, entry: InFlightJob) -> None:
        for thread in self._threads:
            if thread.interrupt(entry):
                return

    def discard(self, entry: InFlightJob) -> None:
        for thread in self._threads:
            if thread.discard(entry):
                self._threads.remove(thread)
                self._discarded = [each for each in self._discarded if each.is_alive()]
                self._discarded.append(thread)
                if len(self._discarded) <= self._size:
                    self._threads.append(self._start_thread(len(self._threads)))
                return

    @property
    def fault(self) -> str | None:
        return None if self._threads else "every thread is stuck in a handler that ignores its interruption"

    def close(self) -> None:
        for _ in self._threads:
            self._inbox.put(None)

    def _start_thread(self, number: int) -> "_WorkerThread":
        return _WorkerThread(self._inbox, self._ended, self._report, attach=self._attach, number=number)


class _WorkerThread(threading.Thread):
    def __init__(
        self,
        inbox: "SimpleQueue[InFlightJob | None]",
        ended: Ended,
        report: Report,
        *,
        attach: Callable[[InFlightJob, AttachedFile], None],
        number: int,
    ) -> None:
        super().__init__(name=f"codeq-worker-{number}", daemon=True)
        self._inbox = inbox
        self._ended = ended
        self._report = report
        self._attach = attach
        self._lock = threading.Lock()
        self._current: InFlightJob | None = None
        self._running: RunningJob | None = None
        self._is_interrupted = False
        self._is_discarded = False
        self.start()

    def run(self) -> None:
        while not self._is_discarded and (entry := self._inbox.get()) is not None:
            outcome = DROPPED
            try:
                try:
                    running = self._begin(entry)
                    if not entry.decided_s:
                        outcome = run_handler(entry.handler, running)
                finally:
                    self._leave()
            except Interrupted:
                self._leave()  # a job is interrupted at most once, so this call is not interrupted
            self._ended(entry, outcome)

    def interrupt(self, entry: InFlightJob) -> bool:
        """Raises Interrupted in this thread, at the next step it takes in Python, if it works on the job."""
        with self._lock:
            if self._current is not entry or self._running is None:
                return False
            self._running.is_cancelled = True
            self._is_interrupted = True
            _set_async_exception(self.ident, Interrupted)
            return True

    def discard(self, entry: InFlightJob) -> bool:
        """Has this thread end after the job, if it works on it."""
        with self._lock:
            self._is_discarded = self._current is entry
            return self._is_discarded

    def _begin(self, entry: InFlightJob) -> RunningJob:
        running = self._running = RunningJob(entry.job, self._report, partial(self._attach, entry))
        entry.started_s = monotonic()
        self._current = entry  # from here on it can be interrupted; `decided_s` is looked at next
        return running

    def _leave(self) -> None:
        """From here on nobody interrupts this thread; an exception that is set but not yet raised is cleared."""
        with self._lock:
            self._current = None
            if self._is_interrupted:
                self._is_interrupted = False
                _set_async_exception(self.ident, None)


def _set_async_exception(thread_id: int | None, kind: type[BaseException] | None) -> None:
    exception = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id or 0), exception)
