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
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import msgspec

from codeq.domain.errors import InvalidRequest
from codeq.sdk.jobs import Job
from codeq.sdk.worker.handling import End, Ended, Handler, fault_of, perform
from codeq.sdk.worker.running_job import name_tasks_in_logs

log = logging.getLogger("codeq.worker")

_PR_SET_PDEATHSIG = 1
_RESTART_S_MAX = 5.0

_pack = msgspec.msgpack.Encoder().encode
_job = msgspec.msgpack.Decoder(Job).decode


class Crash(Exception):
    """The process that worked on the task is gone."""


class Told(msgspec.Struct, array_like=True):
    """What a child says: how its job ended, or (with no end) how far it is."""

    end: End | None
    result: bytes | None = None
    error: str | None = None
    delay_ms: int | None = None
    is_last: bool = False


_told = msgspec.msgpack.Decoder(Told).decode


class ChildCrew:
    """A fixed number of children, each with one job at a time. Lives on the event loop."""

    def __init__(
        self,
        size: int,
        handlers: Mapping[str, Handler],
        done: Callable[[Ended], None],
        report: Callable[[Job, str], None],
    ) -> None:
        try:
            self._handlers = pickle.dumps(dict(handlers))
        except (pickle.PicklingError, AttributeError, TypeError) as fault:
            raise InvalidRequest(f"a handler for processes must be a function of a module: {fault}") from None
        self._done = done
        self._report = report
        self._waiting: deque[tuple[Handler, Job]] = deque()
        self._is_closing = False
        self._size = size
        self._children: list[_Child] = []

    def give(self, handler: Handler, job: Job) -> None:
        self._waiting.append((handler, job))
        self.feed()

    def feed(self) -> None:
        for child in self._children:
            if not self._waiting:
                return
            if child.is_free:
                child.give(*self._waiting.popleft())
        while self._waiting and len(self._children) < self._size:  # each takes a while to start, so only as needed
            child = _Child(self)
            self._children.append(child)
            child.give(*self._waiting.popleft())

    def interrupt(self, key: str) -> None:
        """End the process that works on the job, at once."""
        for child in self._children:
            if child.job is not None and child.job.key == key:
                child.kill()

    def take_back(self) -> list[Job]:
        """The jobs that have not begun, which will not begin any more."""
        jobs = [job for _, job in self._waiting]
        self._waiting.clear()
        return jobs

    def running(self) -> list[tuple[str, float]]:
        return [(child.job.key, child.started_s) for child in self._children if child.job is not None]

    def close(self) -> None:
        self._is_closing = True
        for child in self._children:
            child.kill()
        for child in self._children:
            child.bury()

    # What children tell.

    @property
    def handlers(self) -> bytes:
        return self._handlers

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    def told(self, job: Job, told: Told) -> None:
        if told.end is None:
            self._report(job, told.error or "")
            return
        self._done(Ended(job, told.end, told.result, told.error, told.delay_ms, told.is_last))
        self.feed()

    def crashed(self, handler: Handler, job: Job, why: str) -> None:
        self._done(fault_of(handler, job, Crash(why)))


class _Child:
    def __init__(self, crew: ChildCrew) -> None:
        self._crew = crew
        self._loop = asyncio.get_running_loop()
        self._link: Connection | None = None
        self._process: Any = None
        self._restart_s = 0.0
        self.handler: Handler | None = None
        self.job: Job | None = None
        self.started_s = 0.0
        self._start()

    @property
    def is_free(self) -> bool:
        return self.job is None and self._link is not None

    def give(self, handler: Handler, job: Job) -> None:
        self.handler, self.job, self.started_s = handler, job, monotonic()
        try:
            if self._link is not None:
                self._link.send_bytes(_pack(job))
        except OSError:
            pass  # it died idle: its end of the pipe is read next, and tells so

    def kill(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    def bury(self) -> None:
        self._drop()
        if self._process is not None:
            self._process.join(2)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_live, args=(theirs, self._crew.handlers, os.getpid()), daemon=True)
        self._process.start()
        theirs.close()
        self._link = ours
        self._loop.add_reader(ours.fileno(), self._readable)

    def _readable(self) -> None:
        link = self._link
        if link is None:
            return
        try:
            told = _told(link.recv_bytes())
        except (EOFError, OSError):
            self._ended()
            return
        job = self.job
        if job is None:
            return
        if told.end is not None:
            self.handler = self.job = None
            self._restart_s = 0.0
        self._crew.told(job, told)

    def _ended(self) -> None:
        self._drop()
        handler, job = self.handler, self.job
        self.handler = self.job = None
        if self._crew.is_closing:
            return
        self._process.join(1)
        why = _how(self._process.exitcode)
        if handler is not None and job is not None:
            log.warning("task %s: %s", job.id, why)
            self._crew.crashed(handler, job, why)
        # A module that cannot even be imported must not turn this into a busy loop.
        self._loop.call_later(self._restart_s, self._restart)
        self._restart_s = min(self._restart_s + 0.5, _RESTART_S_MAX)

    def _restart(self) -> None:
        if not self._crew.is_closing:
            self._start()
            self._crew.feed()

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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with_parent(parent)
    name_tasks_in_logs()
    known: dict[str, Handler] = pickle.loads(handlers)  # noqa: S301 - made by the parent

    def report(_: Job, text: str) -> None:
        with contextlib.suppress(OSError):
            link.send_bytes(_pack(Told(None, error=text)))

    while True:
        try:
            job = _job(link.recv_bytes())
        except (EOFError, OSError):
            return
        ended = perform(known[job.command], job, report)
        sys.stdout.flush()
        link.send_bytes(_pack(Told(ended.end, ended.result, ended.error, ended.delay_ms, ended.is_last)))


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it was gone before the wish could be made
