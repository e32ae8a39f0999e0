"""Executes handlers in child processes: one that crashes, hangs or uses up memory costs its task one try, no more."""

import asyncio
import atexit
import contextlib
import logging
import multiprocessing
import os
import pickle
import resource
import signal
from collections import deque
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import monotonic, sleep

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.sdk.worker.child_process import READY, decode_message, encode_message, pickled, run_jobs
from codeq.sdk.worker.execution import outcome_of_error
from codeq.sdk.worker.handler import Handler
from codeq.sdk.worker.outcomes import DROPPED, Crash
from codeq.sdk.worker.pool import Attach, Ended, InFlightJob, Report
from codeq.sdk.worker.running_job import AttachedFile, RunningJob, as_current
from codeq.sdk.worker.task_logs import log_forwarded, logger_levels

log = logging.getLogger("codeq.worker")

STARTS_MAX = 5
"""After so many children in a row that end before they are ready, the pool has a fault."""
_RESTART_S_MAX = 5.0
_JOIN_S = 2.0

MEMORY_EVERY_S = 0.5
"""How often the memory of busy children is looked at."""
EXIT_S = 0.2
"""How long a child that closed its pipe may take to exit by itself: then its exit code tells why."""


class ChildLimits(msgspec.Struct, frozen=True, kw_only=True):
    """After what a child process is replaced."""

    tasks: int | None = None
    megabytes: int | None = None


class ProcessPool:
    """A `Pool` of child processes, each with one job at a time. They are started when jobs need them."""

    def __init__(
        self,
        size: int,
        handlers: Mapping[str, Handler],
        ended: Ended,
        report: Report,
        *,
        attach: Attach,
        limits: ChildLimits,
    ) -> None:
        """Raises InvalidRequest if a handler cannot be sent to another process."""
        try:
            self.pickled_handlers = pickled(dict(handlers))
        except (pickle.PicklingError, AttributeError, TypeError) as fault:
            raise InvalidRequest(f"a handler for processes must be a function of a module: {fault}") from None
        self.ended = ended
        self.report = report
        self.attach = attach
        self._waiting: deque[InFlightJob] = deque()
        self._size = size
        self._children: list[_Child] = []
        self.limits = limits
        self.failed_starts = 0
        self.failed_start = ""
        self.is_closing = False
        self._pid = os.getpid()
        # Before multiprocessing waits for them: they ignore its signal, and a worker in another thread still runs then.
        atexit.register(self._kill_at_exit)
        self._loop = asyncio.get_running_loop()
        self._watching = self._loop.call_later(MEMORY_EVERY_S, self._watch) if limits.megabytes else None

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
        if self.failed_starts < STARTS_MAX:
            return None
        return (
            f"the processes for the handlers end before they are ready: {self.failed_start}; each of them imports"
            ' the program, so that what starts the worker belongs under `if __name__ == "__main__":`'
        )

    def close(self) -> None:
        self.is_closing = True
        atexit.unregister(self._kill_at_exit)
        if self._watching is not None:
            self._watching.cancel()
        for child in self._children:
            child.kill()
        for child in self._children:
            child.join()

    def _kill_at_exit(self) -> None:
        if self._pid == os.getpid():
            self.is_closing = True
            for child in self._children:
                child.kill()

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

    def _watch(self) -> None:
        for child in self._children:
            child.check_memory()
        self._watching = self._loop.call_later(MEMORY_EVERY_S, self._watch)

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
        self._tasks = 0
        self._reason: str | None = None
        """Why the process ends, where that is known before its exit code."""
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
            self._pipe.send_bytes(encode_message(entry.job))
        except OSError:  # the end of the pipe is read next
            self.is_ready = False
            return False
        self.current = entry
        entry.started_s = monotonic()
        return True

    def kill(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    def check_memory(self) -> None:
        """Kills a process that uses too much memory while it works."""
        most = self._pool.limits.megabytes
        if self.current is not None and most is not None and (used := self._megabytes()) > most:
            self._reason = f"the handler's process was ended because it used {used} MB of memory, more than {most}"
            self.kill()

    def _megabytes(self) -> int:
        """What the process has in memory; 0 where that cannot be read."""
        pid = None if self._process is None else self._process.pid
        try:
            with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * resource.getpagesize() >> 20
        except (OSError, ValueError, IndexError):
            return 0

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
            target=run_jobs,
            args=(theirs, self._pool.pickled_handlers, os.getpid(), logger_levels()),
            daemon=True,
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
            message = decode_message(self._pipe.recv_bytes())
        except (EOFError, OSError, msgspec.DecodeError):
            self._process_ended()
            return
        if isinstance(message, dict) and "levelno" in message:
            log_forwarded(message)
        elif not self.is_ready:
            if message != READY:
                self._reason = f"the handler's process cannot start: {message}"
                return
            self.is_ready = True
            self._pause_s = 0.0
            self._tasks = 0
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
                self._tasks += 1
                if self._is_worn_out():
                    self._replace()
                self._pool.ended(entry, message)
                self._pool.start_waiting()

    def _is_worn_out(self) -> bool:
        limits = self._pool.limits
        has_grown = limits.megabytes is not None and self._megabytes() > limits.megabytes
        return has_grown or (limits.tasks is not None and self._tasks >= limits.tasks)

    def _replace(self) -> None:
        """Ends the process, which is idle, and starts another in its place."""
        self.is_ready = False
        self.kill()
        self.join()
        self._loop.call_soon(self._start)

    async def _attach(self, entry: InFlightJob, file: AttachedFile) -> None:
        refusal = None
        try:
            await self._pool.attach(entry, file)
        except CodeqError as fault:
            refusal = fault.code, str(fault)
        if self._pipe is not None and self.current is entry:
            with contextlib.suppress(OSError):
                self._pipe.send_bytes(encode_message(refusal))

    def _process_ended(self) -> None:
        entry, self.current = self.current, None
        was_ready, self.is_ready = self.is_ready, False
        self._close_pipe()
        if self._pool.is_closing:
            return
        if self._process is not None:
            until_s = monotonic() + EXIT_S
            while self._process.is_alive() and monotonic() < until_s:  # `join` would wait for one that lives on
                sleep(0.005)
            if self._process.is_alive():
                self._reason = self._reason or "the handler's process closed its pipe and was ended"
                self.kill()
        self.join()
        reason, self._reason = self._reason or _exit_reason(self._process), None
        if entry is not None:
            if not entry.decided_s:  # else it was interrupted
                with as_current(RunningJob(entry.job)):
                    log.warning("task %s: %s", entry.job.id, reason)
            self._pool.ended(entry, outcome_of_error(entry.handler, entry.job, Crash(reason)))
        if was_ready:
            self._loop.call_soon(self._start)
        else:
            self._start_later(reason)

    def _start_later(self, reason: str) -> None:
        """Pauses: a module that cannot be imported, or a full machine, must not turn this into a busy loop."""
        self._pool.failed_starts += 1
        self._pool.failed_start = reason
        self._pause_s = min(self._pause_s + 0.5, _RESTART_S_MAX)
        log.warning("a process for handlers could not start, trying again in %.1f s: %s", self._pause_s, reason)
        self._loop.call_later(self._pause_s, self._start)

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
            self._pipe = None


def _exit_reason(process: SpawnProcess | None) -> str:
    code = None if process is None else process.exitcode
    if code is None or code >= 0:
        return f"the handler's process ended with exit code {code}; its output may tell why"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
    hint = "; out of memory?" if name == "SIGKILL" else ""
    return f"the handler's process was ended by {name}{hint}"
