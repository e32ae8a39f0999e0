"""Executes handlers in child processes: one that crashes, hangs or uses up memory costs its task one try, no more."""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import monotonic
from typing import Any

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.sdk.jobs import Job
from codeq.sdk.worker.execution import DROPPED, Interrupted, JobOutcome, outcome_of_error, run_handler
from codeq.sdk.worker.handler import Handler
from codeq.sdk.worker.parent_death import die_with_parent
from codeq.sdk.worker.pool import Attach, Ended, InFlightJob, Report
from codeq.sdk.worker.running_job import AttachedFile, RunningJob, name_tasks_in_logs
from codeq.wire.errors import error_of

log = logging.getLogger("codeq.worker")

STARTS_MAX = 5
"""After so many children in a row that end before they are ready, the pool has a fault."""
_RESTART_S_MAX = 5.0
_JOIN_S = 2.0
_PIPE_BYTES = 64 * 1024

ChildMessage = str | JobOutcome | dict[str, Any]
"""What a child sends: one text when it is ready; then, for each job, progress texts, files to upload (the fields of an
`AttachedFile`), and finally the outcome. To each file it gets an answer: nothing, or the code and text of an error."""

_encode = msgspec.msgpack.Encoder().encode
_decode_job = msgspec.msgpack.Decoder(Job).decode
_decode_refusal = msgspec.msgpack.Decoder(tuple[str, str] | None).decode
_decode_message = msgspec.msgpack.Decoder(ChildMessage).decode


class Crash(Exception):
    """The process that executed the handler has ended."""


class ProcessPool:
    """A `Pool` of child processes, each with one job at a time. They are started when jobs need them."""

    def __init__(
        self, size: int, handlers: Mapping[str, Handler], ended: Ended, report: Report, *, attach: Attach
    ) -> None:
        """Raises InvalidRequest if a handler cannot be sent to another process."""
        try:
            self.pickled_handlers = pickle.dumps(dict(handlers))
        except (pickle.PicklingError, AttributeError, TypeError) as fault:
            raise InvalidRequest(f"a handler for processes must be a function of a module: {fault}") from None
        self.ended = ended
        self.report = report
        self.attach = attach
        self._waiting: deque[InFlightJob] = deque()
        self._size = size
        self._children: list[_Child] = []
        self.failed_starts = 0
        self.is_closing = False

    def submit(self, entry: InFlightJob) -> None:
        self._waiting.append(entry)
        self.start_waiting()

    def drain(self) -> list[InFlightJob]:
        entries = list(self._waiting)
        self._waiting.clear()
        return entries

    def interrupt(self, entry: InFlightJob) -> None:
        for child in self._children:
            if child.current is entry:
                child.kill()

    def discard(self, entry: InFlightJob) -> None:
        """Does nothing: no process can ignore SIGKILL."""

    @property
    def fault(self) -> str | None:
        return None if self.failed_starts < STARTS_MAX else "the processes for the handlers end before they are ready"

    def close(self) -> None:
        self.is_closing = True
        for child in self._children:
            child.kill()
        for child in self._children:
            child.join()

    def start_waiting(self) -> None:
        """Gives the waiting jobs to free children, and starts as many more children as the rest of them needs."""
        for child in self._children:
            if child.is_free:
                entry = self._next()
                if entry is None:
                    return
                if not child.start_job(entry):
                    self._waiting.appendleft(entry)
        starting = sum(not child.is_ready for child in self._children)
        for _ in range(min(len(self._waiting) - starting, self._size - len(self._children))):
            self._children.append(_Child(self))

    def _next(self) -> InFlightJob | None:
        while self._waiting:
            entry = self._waiting.popleft()
            if not entry.decided_s:
                return entry
            self.ended(entry, DROPPED)
        return None


class _Child:
    """One slot of the pool and the process in it, which is replaced whenever it has ended."""

    def __init__(self, pool: ProcessPool) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._pipe: Connection | None = None
        self._process: SpawnProcess | None = None
        self._pause_s = 0.0
        self.is_ready = False
        self.current: InFlightJob | None = None
        self._uploads: set[asyncio.Task[None]] = set()
        self._start()

    @property
    def is_free(self) -> bool:
        return self.is_ready and self.current is None

    def start_job(self, entry: InFlightJob) -> bool:
        """False if the process has ended meanwhile."""
        if self._pipe is None:
            return False
        try:
            self._pipe.send_bytes(_encode(entry.job))
        except OSError:  # the end of the pipe is read next
            self.is_ready = False
            return False
        self.current = entry
        entry.started_s = monotonic()
        return True

    def kill(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    def join(self) -> None:
        self._close_pipe()
        if self._process is not None:
            self._process.join(_JOIN_S)

    def _start(self) -> None:
        if self._pool.is_closing:
            return
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_run_jobs, args=(theirs, self._pool.pickled_handlers, os.getpid()), daemon=True
        )
        try:
            process.start()
        except OSError as fault:
            ours.close()
            self._start_later(str(fault))
            return
        finally:
            theirs.close()
        self._process, self._pipe = process, ours
        self._loop.add_reader(ours.fileno(), self._readable)

    def _readable(self) -> None:
        if self._pipe is None:
            return
        try:
            message = _decode_message(self._pipe.recv_bytes())
        except (EOFError, OSError, msgspec.DecodeError):
            self._process_ended()
            return
        if not self.is_ready:
            self.is_ready = True
            self._pause_s = 0.0
            self._pool.failed_starts = 0
            self._pool.start_waiting()
        elif self.current is not None:
            if isinstance(message, str):
                self._pool.report(self.current.key, message)
            elif isinstance(message, dict):
                file = msgspec.convert(message, AttachedFile)
                uploading = self._loop.create_task(self._attach(self.current, file))
                self._uploads.add(uploading)
                uploading.add_done_callback(self._uploads.discard)
            else:
                entry, self.current = self.current, None
                self._pool.ended(entry, message)
                self._pool.start_waiting()

    async def _attach(self, entry: InFlightJob, file: AttachedFile) -> None:
        refusal = None
        try:
            await self._pool.attach(entry, file)
        except CodeqError as fault:
            refusal = fault.code, str(fault)
        if self._pipe is not None and self.current is entry:
            with contextlib.suppress(OSError):
                self._pipe.send_bytes(_encode(refusal))

    def _process_ended(self) -> None:
        entry, self.current = self.current, None
        was_ready, self.is_ready = self.is_ready, False
        self._close_pipe()
        if self._pool.is_closing:
            return
        self.kill()  # it may have closed the pipe and live on; one that is ending keeps its exit code
        self.join()
        reason = _exit_reason(None if self._process is None else self._process.exitcode)
        if entry is not None:
            log.warning("task %s: %s", entry.job.id, reason)
            self._pool.ended(entry, outcome_of_error(entry.handler, entry.job, Crash(reason)))
        if was_ready:
            self._loop.call_soon(self._start)
        else:
            self._start_later(reason)

    def _start_later(self, reason: str) -> None:
        """Pauses: a module that cannot be imported, or a full machine, must not turn this into a busy loop."""
        self._pool.failed_starts += 1
        self._pause_s = min(self._pause_s + 0.5, _RESTART_S_MAX)
        log.warning("a process for handlers could not start, trying again in %.1f s: %s", self._pause_s, reason)
        self._loop.call_later(self._pause_s, self._start)

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
            self._pipe = None


def _exit_reason(code: int | None) -> str:
    if code is None or code >= 0:
        return f"the handler's process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
    hint = "; out of memory?" if name == "SIGKILL" else ""
    return f"the handler's process was ended by {name}{hint}"


def _run_jobs(pipe: Connection, pickled_handlers: bytes, parent: int) -> None:
    """The main function of a child: receives a job, runs its handler, sends the outcome, and so on."""
    # The parent decides when to stop, also if the whole process group gets the signal. A handler that does nothing is,
    # unlike SIG_IGN, not inherited by programs that are started from here.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    die_with_parent(parent)
    name_tasks_in_logs()
    handlers: dict[str, Handler] = pickle.loads(pickled_handlers)  # noqa: S301 - made by the parent
    lock = threading.Lock()

    def send(message: ChildMessage) -> None:
        with lock:
            pipe.send_bytes(_encode(message))

    def report(_: str, text: str) -> None:
        with contextlib.suppress(OSError):
            send(text)

    attaching = threading.Lock()

    def attach(file: AttachedFile) -> None:
        """Has the parent upload the file: it has the connection, and the lease."""
        with attaching, _as_path(file) as passed:
            send(msgspec.structs.asdict(passed))
            refusal = _decode_refusal(pipe.recv_bytes())
        if refusal is not None:
            raise error_of(*refusal)

    with contextlib.suppress(EOFError, OSError):
        send("ready")
        while True:
            job = _decode_job(pipe.recv_bytes())
            outcome = DROPPED
            with contextlib.suppress(Interrupted):  # raised by the handler itself: the parent interrupts with SIGKILL
                outcome = run_handler(handlers[job.command], RunningJob(job, report, attach))
            with contextlib.suppress(AttributeError, ValueError, OSError):
                sys.stdout.flush()
            send(outcome)


@contextlib.contextmanager
def _as_path(file: AttachedFile) -> Iterator[AttachedFile]:
    """Writes content that is too long for a pipe to a temporary file."""
    if file.content is None or len(file.content) <= _PIPE_BYTES:
        yield file
        return
    with tempfile.NamedTemporaryFile(prefix="codeq-artifact-") as passed:
        passed.write(file.content)
        passed.flush()
        yield msgspec.structs.replace(file, content=None, path=passed.name)
