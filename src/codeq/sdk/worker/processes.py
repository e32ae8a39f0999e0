"""Handlers in child processes: one that crashes, hangs or eats all memory costs its task one try, and nothing else."""

import asyncio
import contextlib
import ctypes
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import msgspec

from codeq.domain.errors import InvalidRequest
from codeq.sdk.jobs import Job
from codeq.sdk.worker.execution import Handler, InFlightJob, Interrupted, JobOutcome, OutcomeKind, fault_of, run_handler
from codeq.sdk.worker.running_job import RunningJob, name_tasks_in_logs

log = logging.getLogger("codeq.worker")

STARTS_MAX = 5
"""So many children in a row that end before they are ready, and the worker says that it cannot work."""
_RESTART_S_MAX = 5.0
_PR_SET_PDEATHSIG = 1

_pack = msgspec.msgpack.Encoder().encode
_job = msgspec.msgpack.Decoder(Job).decode


class Crash(Exception):
    """The process that worked on the task is gone."""


class Told(msgspec.Struct, array_like=True):
    """What a child says: first that it is ready, then how its job ended, or (with no end) how far it is."""

    end: OutcomeKind | None
    result: bytes | None = None
    error: str | None = None
    delay_ms: int | None = None
    is_last: bool = False


_told = msgspec.msgpack.Decoder(Told).decode


class ProcessPool:
    """A bounded number of children, each with one job at a time. Lives on the event loop."""

    def __init__(
        self,
        size: int,
        handlers: Mapping[str, Handler],
        done: Callable[[JobOutcome], None],
        report: Callable[[Job, str], None],
    ) -> None:
        try:
            self.handlers = pickle.dumps(dict(handlers))
        except (pickle.PicklingError, AttributeError, TypeError) as fault:
            raise InvalidRequest(f"a handler for processes must be a function of a module: {fault}") from None
        self._done = done
        self._report = report
        self._waiting: deque[InFlightJob] = deque()
        self._size = size
        self._children: list[_Child] = []
        self.failed_starts = 0
        self.is_closing = False

    def give(self, held: InFlightJob) -> None:
        self._waiting.append(held)
        self.feed()

    def feed(self) -> None:
        """Hand out what waits, and start children for the rest: each takes a while to start, so only as needed."""
        for child in self._children:
            if child.is_free:
                held = self._next()
                if held is None:
                    return
                child.give(held)
        starting = sum(not child.is_ready for child in self._children)
        for _ in range(min(len(self._waiting) - starting, self._size - len(self._children))):
            self._children.append(_Child(self))

    def interrupt(self, held: InFlightJob) -> None:
        """End the process that works on the job, at once."""
        for child in self._children:
            if child.held is held:
                child.kill()

    def write_off(self, held: InFlightJob) -> None:
        """Nothing to do: no process can help being ended."""

    @property
    def fault(self) -> str | None:
        return None if self.failed_starts < STARTS_MAX else "the processes for the handlers end before they are ready"

    def take_back(self) -> list[InFlightJob]:
        """The jobs that have not begun, which will not begin any more."""
        jobs = list(self._waiting)
        self._waiting.clear()
        return jobs

    def running(self) -> list[tuple[InFlightJob, float]]:
        return [(child.held, child.started_s) for child in self._children if child.held is not None]

    def close(self) -> None:
        self.is_closing = True
        for child in self._children:
            child.kill()
        for child in self._children:
            child.bury()

    # What children tell.

    def told(self, held: InFlightJob, told: Told) -> None:
        if told.end is None:
            self._report(held.job, told.error or "")
            return
        self._done(JobOutcome(held.job, told.end, told.result, told.error, told.delay_ms, told.is_last))
        self.feed()

    def crashed(self, held: InFlightJob, why: str) -> None:
        log.warning("task %s: %s", held.job.id, why)
        self._done(fault_of(held.handler, held.job, Crash(why)))

    def put_back(self, held: InFlightJob) -> None:
        self._waiting.appendleft(held)

    def _next(self) -> InFlightJob | None:
        while self._waiting:
            held = self._waiting.popleft()
            if not held.is_settled:
                return held
            self._done(JobOutcome(held.job, OutcomeKind.DROP))
        return None


class _Child:
    """One slot of the crew, and the process in it: another one whenever the last has ended."""

    def __init__(self, crew: ProcessPool) -> None:
        self._crew = crew
        self._loop = asyncio.get_running_loop()
        self._link: Connection | None = None
        self._process: Any = None
        self._pause_s = 0.0
        self.is_ready = False
        self.held: InFlightJob | None = None
        self.started_s = 0.0
        self._start()

    @property
    def is_free(self) -> bool:
        return self.is_ready and self.held is None

    def give(self, held: InFlightJob) -> None:
        if self._link is None:
            return self._crew.put_back(held)
        try:
            self._link.send_bytes(_pack(held.job))
        except OSError:  # it died idle: its end of the pipe is read next
            self.is_ready = False
            return self._crew.put_back(held)
        self.held, self.started_s = held, monotonic()
        return None

    def kill(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    def bury(self) -> None:
        self._drop()
        if self._process is not None:
            self._process.join(2)

    def _start(self) -> None:
        if self._crew.is_closing:
            return
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_live, args=(theirs, self._crew.handlers, os.getpid()), daemon=True)
        try:
            process.start()
        except OSError as fault:
            ours.close()
            self._start_later(str(fault))
            return
        finally:
            theirs.close()
        self._process, self._link = process, ours
        self._loop.add_reader(ours.fileno(), self._readable)

    def _readable(self) -> None:
        if self._link is None:
            return
        try:
            told = _told(self._link.recv_bytes())
        except (EOFError, OSError, msgspec.DecodeError):
            self._ended()
            return
        if not self.is_ready:
            self.is_ready = True
            self._pause_s = 0.0
            self._crew.failed_starts = 0
            self._crew.feed()
        elif self.held is not None:
            held = self.held
            if told.end is not None:
                self.held = None
            self._crew.told(held, told)

    def _ended(self) -> None:
        self._drop()
        held, self.held = self.held, None
        was_ready, self.is_ready = self.is_ready, False
        if self._crew.is_closing:
            return
        self.kill()  # it may have closed the pipe and live on; one that is ending keeps its exit code
        self._process.join(2)
        why = _how(self._process.exitcode)
        if held is not None:
            self._crew.crashed(held, why)
        if was_ready:
            self._loop.call_soon(self._start)
        else:
            self._start_later(why)

    def _start_later(self, why: str) -> None:
        """A module that cannot be imported, or a machine that is full, must not turn this into a busy loop."""
        self._crew.failed_starts += 1
        self._pause_s = min(self._pause_s + 0.5, _RESTART_S_MAX)
        log.warning("a process for handlers could not start, trying again in %.1f s: %s", self._pause_s, why)
        self._loop.call_later(self._pause_s, self._start)

    def _drop(self) -> None:
        if self._link is not None:
            self._loop.remove_reader(self._link.fileno())
            self._link.close()
            self._link = None


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"the handler's process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
    hint = "; out of memory?" if name == "SIGKILL" else ""
    return f"the handler's process was ended by {name}{hint}"


def _live(link: Connection, handlers: bytes, parent: int) -> None:
    """A child's whole life: take a job, do it, say how it ended."""
    # The parent decides when to stop, also when everyone is sent the signal. A handler that does nothing is, unlike
    # SIG_IGN, not inherited by programs that are started from here.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    _die_with_parent(parent)
    name_tasks_in_logs()
    known: dict[str, Handler] = pickle.loads(handlers)  # noqa: S301 - made by the parent
    turn = threading.Lock()

    def say(told: Told) -> None:
        with turn:
            link.send_bytes(_pack(told))

    def report(_: Job, text: str) -> None:
        with contextlib.suppress(OSError):
            say(Told(None, error=text))

    with contextlib.suppress(EOFError, OSError):
        say(Told(None))
        while True:
            job = _job(link.recv_bytes())
            ended = JobOutcome(job, OutcomeKind.DROP)
            with contextlib.suppress(Interrupted):  # the handler's own: this process is ended, not interrupted
                ended = run_handler(known[job.command], RunningJob(job, report))
            with contextlib.suppress(AttributeError, ValueError, OSError):
                sys.stdout.flush()
            say(Told(ended.end, ended.result, ended.error, ended.delay_ms, ended.is_last))


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it was gone before the wish could be made
