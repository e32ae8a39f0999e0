"""Handlers in threads of this process: cheap to hand a job to, and interrupted when the job is no longer wanted."""

import contextlib
import ctypes
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic

from codeq.sdk.jobs import Job
from codeq.sdk.worker.execution import InFlightJob, Interrupted, JobOutcome, OutcomeKind, run_handler
from codeq.sdk.worker.running_job import RunningJob

Done = Callable[[JobOutcome], None]
"""Told of every end, from the thread in which it happened."""
Report = Callable[[Job, str], None]


class ThreadPool:
    def __init__(self, size: int, done: Done, report: Report) -> None:
        self._inbox: SimpleQueue[InFlightJob | None] = SimpleQueue()
        self._size = size
        self._done = done
        self._report = report
        self._hands = [self._make(number) for number in range(size)]
        self._stuck: list[_Hand] = []

    def give(self, held: InFlightJob) -> None:
        self._inbox.put(held)

    def interrupt(self, held: InFlightJob) -> None:
        """Raise Interrupted in the thread that works on the job, at the next step it takes in Python."""
        for hand in self._hands:
            if hand.interrupt(held):
                return

    def write_off(self, held: InFlightJob) -> None:
        """Put another thread in the place of one that does not heed its interruption. It ends when its handler does."""
        for hand in self._hands:
            if hand.write_off(held):
                self._hands.remove(hand)
                self._stuck = [stuck for stuck in self._stuck if stuck.is_alive()]
                self._stuck.append(hand)
                if len(self._stuck) <= self._size:
                    self._hands.append(self._make(len(self._hands)))
                return

    @property
    def fault(self) -> str | None:
        return None if self._hands else "every thread is stuck in a handler that does not heed its interruption"

    def take_back(self) -> list[InFlightJob]:
        """The jobs that have not begun, which will not begin any more."""
        jobs = []
        with contextlib.suppress(Empty):
            while (held := self._inbox.get_nowait()) is not None:
                jobs.append(held)
        return jobs

    def running(self) -> list[tuple[InFlightJob, float]]:
        found = [(hand.current, hand.started_s) for hand in self._hands]
        return [(held, started_s) for held, started_s in found if held is not None]

    def close(self) -> None:
        """Let the threads end when they have nothing more to do; does not wait for them."""
        for _ in self._hands:
            self._inbox.put(None)

    def _make(self, number: int) -> "_Hand":
        return _Hand(self._inbox, self._done, self._report, number)


class _Hand(threading.Thread):
    def __init__(self, inbox: "SimpleQueue[InFlightJob | None]", done: Done, report: Report, number: int) -> None:
        super().__init__(name=f"codeq-worker-{number}", daemon=True)
        self._inbox = inbox
        self._done = done
        self._report = report
        self._turn = threading.Lock()
        self.current: InFlightJob | None = None
        self.started_s = 0.0
        self._running: RunningJob | None = None
        self._is_interrupted = False
        self._is_written_off = False
        self.start()

    def run(self) -> None:
        while not self._is_written_off and (held := self._inbox.get()) is not None:
            ended = JobOutcome(held.job, OutcomeKind.DROP)
            try:
                try:
                    running = self._begin(held)
                    if not held.is_settled:
                        ended = run_handler(held.handler, running)
                finally:
                    self._leave()
            except Interrupted:
                self._leave()  # each job is interrupted once at most, so nothing can reach into this
            self._done(ended)

    def interrupt(self, held: InFlightJob) -> bool:
        with self._turn:
            if self.current is not held or self._running is None:
                return False
            self._running.is_cancelled = True
            self._is_interrupted = True
            _raise_in(self.ident, Interrupted)
            return True

    def write_off(self, held: InFlightJob) -> bool:
        with self._turn:
            self._is_written_off = self.current is held
            return self._is_written_off

    def _begin(self, held: InFlightJob) -> RunningJob:
        running = self._running = RunningJob(held.job, self._report)
        self.started_s = monotonic()
        self.current = held  # from here on it can be interrupted; what was settled before is seen next
        return running

    def _leave(self) -> None:
        """From here on no interruption is meant for this thread; one that is on its way is called back."""
        with self._turn:
            self.current = None
            if self._is_interrupted:
                self._is_interrupted = False
                _raise_in(self.ident, None)


def _raise_in(thread_id: int | None, kind: type[BaseException] | None) -> None:
    given = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id or 0), given)
