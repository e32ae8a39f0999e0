"""Handlers in threads of this process: cheap to hand a job to, and interrupted when the job is no longer wanted."""

import contextlib
import ctypes
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic

from codeq.sdk.jobs import Job
from codeq.sdk.worker.handling import End, Ended, Handler, Interrupted, perform

Done = Callable[[Ended], None]
"""Told of every end, from the thread in which it happened."""
Report = Callable[[Job, str], None]


class ThreadCrew:
    def __init__(self, size: int, done: Done, report: Report) -> None:
        self._inbox: SimpleQueue[tuple[Handler, Job] | None] = SimpleQueue()
        self._hands = [_Hand(self._inbox, done, report, number) for number in range(size)]

    def give(self, handler: Handler, job: Job) -> None:
        self._inbox.put((handler, job))

    def interrupt(self, key: str) -> None:
        """Raise Interrupted in the thread that works on the job, at the next step it takes in Python."""
        for hand in self._hands:
            if hand.interrupt(key):
                return

    def take_back(self) -> list[Job]:
        """The jobs that have not begun, which will not begin any more."""
        jobs = []
        with contextlib.suppress(Empty):
            while (given := self._inbox.get_nowait()) is not None:
                jobs.append(given[1])
        return jobs

    def running(self) -> list[tuple[str, float]]:
        return [(hand.current, hand.started_s) for hand in self._hands if hand.current is not None]

    def close(self) -> None:
        """Let the threads end when they have nothing more to do; does not wait for them."""
        for _ in self._hands:
            self._inbox.put(None)


class _Hand(threading.Thread):
    def __init__(
        self, inbox: "SimpleQueue[tuple[Handler, Job] | None]", done: Done, report: Report, number: int
    ) -> None:
        super().__init__(name=f"codeq-worker-{number}", daemon=True)
        self._inbox = inbox
        self._done = done
        self._report = report
        self._turn = threading.Lock()
        self.current: str | None = None
        self.started_s = 0.0
        self._is_interrupted = False
        self.start()

    def run(self) -> None:
        while (given := self._inbox.get()) is not None:
            handler, job = given
            ended = Ended(job, End.DROP)
            try:
                self.started_s = monotonic()
                self.current = job.key
                ended = perform(handler, job, self._report)
            except Interrupted:
                pass
            self._leave()
            self._done(ended)

    def interrupt(self, key: str) -> bool:
        with self._turn:
            if self.current != key:
                return False
            self._is_interrupted = True
            _raise_in(self.ident, Interrupted)
            return True

    def _leave(self) -> None:
        """From here on no interruption is meant for this thread; one that is on its way is called back."""
        while True:
            try:
                with self._turn:
                    self.current = None
                    if self._is_interrupted:
                        self._is_interrupted = False
                        _raise_in(self.ident, None)
            except Interrupted:
                continue
            else:
                return


def _raise_in(thread_id: int | None, kind: type[BaseException] | None) -> None:
    given = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id or 0), given)
