"""The main loop of a worker: claims jobs ahead, submits them to pools, enforces timeouts, and stops gracefully."""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest, NotOwner
from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.domain.requests import Claim
from codeq.sdk.artifacts import upload
from codeq.sdk.backend import Backend
from codeq.sdk.encoding import new_request_id
from codeq.sdk.jobs import Job
from codeq.sdk.worker.completer import Completer, EndedJob
from codeq.sdk.worker.event_loop import EventLoopPool
from codeq.sdk.worker.execution import ABANDONED, DROPPED, TimedOut, outcome_of_error
from codeq.sdk.worker.handler import PoolKind
from codeq.sdk.worker.health import serve_health
from codeq.sdk.worker.heartbeat import Heartbeater, LoopHeartbeater
from codeq.sdk.worker.heartbeat_process import HeartbeatProcess
from codeq.sdk.worker.pool import InFlightJob, Pool
from codeq.sdk.worker.processes import ProcessPool
from codeq.sdk.worker.running_job import AttachedFile, name_tasks_in_logs
from codeq.sdk.worker.threads import ThreadPool
from codeq.sdk.worker_info import worker_info
from codeq.wire.errors import Forbidden, Unauthenticated

if TYPE_CHECKING:
    from codeq.sdk.worker.worker import Worker

log = logging.getLogger("codeq.worker")

CLAIM_WAIT_MS = 20_000
TICK_S = 0.1
AHEAD_S = 0.1
"""How much work is claimed ahead: enough to fill batches when tasks are short, next to nothing when they are long."""
YIELD_LOCK_S = 1e-5
ANSWER_S, ANSWER_LOCAL_S = 0.5, 0.2
"""A claim this young may be about to return jobs, so a worker that stops waits for it that long (less for a queue in
the same process); an older one is waiting for new tasks."""
INTERRUPT_S = 2.0
"""How long a handler may take to end after it was interrupted."""
LAST_REPORTS_S = 5.0
LEAVE_S, LEAVE_SILENT_S = 5.0, 1.0
"""Time to be taken off the list of workers; less if the last claim failed, as the server may be gone."""


class Stuck(CodeqError):
    """Every execution slot is unusable: handlers ignore cancellation, or child processes fail to start. Restart the
    process."""

    code = "stuck"


class Runner:
    """One run of a worker, on one event loop."""

    def __init__(self, worker: "Worker", backend: Backend, *, until_idle: bool) -> None:
        self._worker = worker
        self._backend = backend
        self._until_idle = until_idle
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[str, InFlightJob] = {}
        self._changed = asyncio.Event()
        """Set whenever there may be room for more jobs."""
        self._is_stopping = asyncio.Event()
        self._is_hurried = asyncio.Event()
        self._rate = 0.0
        self._claim_began_s = 0.0
        """When the claim that is under way was sent; 0 while there is none."""
        self._answered_s = monotonic()
        self._was_answered = False
        self._is_cut_off = False
        """Whether the last claim failed."""
        self._heartbeater = self._make_heartbeater()
        self._completer = Completer(backend, self._heartbeater, self._in_flight, self._changed)
        self._pools: dict[PoolKind, Pool] = {}
        label = None if worker.name == "worker" else worker.name
        self._info = worker_info(label, slots=worker.concurrency, commands=worker.commands)
        self._progress: dict[str, str] = {}
        """What handlers have reported since the last tick."""

    async def run(self, *, signals: bool) -> None:
        """Works until it is stopped by a signal or a cancellation, or until idle. Raises the error that ended it."""
        name_tasks_in_logs()
        loops: list[asyncio.Task[None]] = [self._completer.running, self._heartbeater.running]
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._heartbeater.close)
            stack.push_async_callback(self._completer.close)
            if self._worker.health:
                server = await serve_health(self._worker.health, self._state)
                stack.callback(server.close)
            self._start_pools(stack)
            claiming = self._loop.create_task(self._claim_jobs())
            ticking = self._loop.create_task(self._tick())
            loops += [claiming, ticking]
            stack.push_async_callback(_cancel, claiming, ticking)
            stack.enter_context(self._signals() if signals else contextlib.nullcontext())
            was_cancelled = await self._until_stopped(loops)
            await self._stop(claiming)
        for task in loops:
            if not task.cancelled() and (fault := task.exception()) is not None:
                raise fault
        if was_cancelled:
            raise asyncio.CancelledError

    # Starting.

    def _make_heartbeater(self) -> Heartbeater:
        handlers = self._worker.handlers.values()
        leases_ms = {handler.command: handler.lease_ms for handler in handlers}
        options = self._backend.client_options
        # Handlers in child processes alone cannot stop this process from sending heartbeats.
        only_children = all(handler.pool is PoolKind.PROCESS for handler in handlers)
        if options is not None and not only_children and not self._until_idle:
            return HeartbeatProcess(self._backend, options, leases_ms, self._lease_lost)
        return LoopHeartbeater(self._backend, leases_ms, self._lease_lost)

    def _start_pools(self, stack: contextlib.AsyncExitStack) -> None:
        handlers, size, ended = self._worker.handlers, self._worker.concurrency, self._completer.ended
        kinds = {handler.pool for handler in handlers.values()}
        if PoolKind.PROCESS in kinds:
            theirs = {command: handler for command, handler in handlers.items() if handler.pool is PoolKind.PROCESS}
            self._pools[PoolKind.PROCESS] = ProcessPool(size, theirs, ended, self._report, attach=self._attach)
        if PoolKind.THREAD in kinds:
            self._pools[PoolKind.THREAD] = ThreadPool(size, ended, self._report, self._attach)
        if PoolKind.LOOP in kinds:
            self._pools[PoolKind.LOOP] = EventLoopPool(size, ended, self._report, self._attach)
        for pool in self._pools.values():
            stack.callback(pool.close)

    # Claiming and dispatching.

    async def _claim_jobs(self) -> None:
        name, commands = self._worker.name, self._worker.commands
        lease_ms = min(handler.lease_ms for handler in self._worker.handlers.values())
        # Several claims fit into the silence after which the worker counts as unhealthy.
        wait_ms = 0 if self._until_idle else min(CLAIM_WAIT_MS, round(self._worker.silence_s * 1000 / 3))
        pause_s = 0.0
        request_id: str | None = None
        while not self._is_stopping.is_set():
            await self._heartbeater.ready()
            room = await self._room()
            self._claim_began_s = monotonic()
            try:
                if not pause_s:  # else the answer to the last claim was lost, with the jobs it may have had
                    request_id = new_request_id() if self._backend.client_options is not None else None
                wanted = Claim(
                    worker=name,
                    commands=commands,
                    limit=room,
                    lease_ms=lease_ms,
                    wait_ms=wait_ms,
                    request_id=request_id,
                    info=self._info,
                )
                jobs = await self._backend.claim(wanted)
            except CodeqError as fault:
                if self._is_permanent(fault):
                    raise
                pause_s = min(pause_s + 0.5, 5.0)
                log.warning("cannot claim, trying again in %.1f s: %s", pause_s, fault)
                self._claim_began_s, self._is_cut_off = 0.0, True
                await asyncio.sleep(pause_s)
                continue
            self._claim_began_s = pause_s = 0.0
            self._answered_s, self._was_answered, self._is_cut_off = monotonic(), True, False
            if jobs:
                await self._heartbeater.ready()
                self._dispatch(jobs)
                if len(jobs) < room and PoolKind.THREAD in self._pools:
                    # The next claim will have to wait, so the handlers need the interpreter lock more.
                    sleep(YIELD_LOCK_S)  # noqa: ASYNC251 - blocks the loop on purpose, or it would keep the lock
            elif self._until_idle:
                if not self._in_flight and self._completer.is_idle:
                    return
                self._changed.clear()
                await self._changed.wait()

    def _is_permanent(self, fault: CodeqError) -> bool:
        """Whether only another program can help, or another token instead of one that never worked."""
        return isinstance(fault, InvalidRequest) or (
            isinstance(fault, (Unauthenticated, Forbidden)) and not self._was_answered
        )

    async def _room(self) -> int:
        """How many jobs to claim, once that is worth a call: always while a handler could start at once."""
        while True:
            target = self._target()
            room = target - len(self._in_flight)
            if room > 0 and (len(self._in_flight) < self._worker.concurrency or room >= target // 2):
                return min(room, BATCH_TASKS_MAX)
            self._changed.clear()
            await self._changed.wait()

    def _target(self) -> int:
        """How many jobs the worker should hold."""
        if self._worker.prefetch is not None:
            return self._worker.prefetch
        return max(self._worker.concurrency, min(round(self._rate * AHEAD_S), BATCH_TASKS_MAX))

    def _dispatch(self, jobs: Sequence[Job]) -> None:
        self._heartbeater.hold(jobs)
        for job in jobs:
            handler = self._worker.handlers[job.command]
            key = job.key
            entry = self._in_flight[key] = InFlightJob(job, handler, key)
            if self._is_stopping.is_set():
                self._completer.ended(entry, ABANDONED)
            else:
                self._pools[handler.pool].submit(entry)

    def _report(self, key: str, text: str) -> None:
        """Notes the progress of a handler. Handlers call it from any thread, and as often as they like."""
        self._progress[key] = text

    async def _attach(self, entry: InFlightJob, file: AttachedFile) -> None:
        """Uploads a file for the result of a job whose handler still runs."""
        if entry.decided_s:
            raise NotOwner(f"task {entry.job.id} was taken from this worker")
        content = file.content if file.content is not None else file.path or ""
        await upload(self._backend, entry.job, file.name, content, content_type=file.content_type)

    def _send_progress(self) -> None:
        progress = {key: self._progress.pop(key) for key in list(self._progress)}
        for key in progress.keys() & self._in_flight.keys():
            self._in_flight[key].progress = progress[key]
        if progress:
            self._heartbeater.report(progress)

    # Outcomes that are decided without the handler.

    def _lease_lost(self, key: str, code: str) -> None:
        entry = self._in_flight.get(key)
        if entry is not None and not entry.decided_s:
            log.warning("the lease of task %s was lost: %s", entry.job.id, code)
            self._completer.counts.lost += 1
            self._decide([(entry, DROPPED)])

    async def _tick(self) -> None:
        while True:
            before_s, before = monotonic(), self._completer.ended_jobs
            await asyncio.sleep(TICK_S)
            now_s = monotonic()
            self._rate = 0.5 * self._rate + 0.5 * (self._completer.ended_jobs - before) / (now_s - before_s)
            self._changed.set()
            self._check_times(now_s)
            self._send_progress()
            for pool in self._pools.values():
                if pool.fault is not None:
                    raise Stuck(pool.fault)

    def _check_times(self, now_s: float) -> None:
        late: list[EndedJob] = []
        for entry in [entry for entry in self._in_flight.values() if entry.started_s and not entry.is_ended]:
            timeout_s = entry.handler.timeout_s
            if entry.decided_s:
                if now_s - entry.decided_s > INTERRUPT_S:
                    log.error("the handler of task %s ignores its interruption and is discarded", entry.job.id)
                    del self._in_flight[entry.key]
                    self._pools[entry.handler.pool].discard(entry)
            elif timeout_s is not None and now_s - entry.started_s > timeout_s:
                fault = TimedOut(f"it took longer than {timeout_s:g} s")
                late.append((entry, outcome_of_error(entry.handler, entry.job, fault)))
        self._decide(late)

    def _decide(self, outcomes: Sequence[EndedJob]) -> None:
        """Reports these outcomes now, and interrupts the handlers. Whatever those return is ignored."""
        decided = [(entry, outcome) for entry, outcome in outcomes if not entry.decided_s]
        if not decided:
            return
        for entry, _ in decided:
            entry.decided_s = monotonic()
        self._completer.report_now(decided)
        for entry, _ in decided:
            self._pools[entry.handler.pool].interrupt(entry)

    # Stopping.

    async def _until_stopped(self, loops: "list[asyncio.Task[None]]") -> bool:
        """Returns once it is time to stop; True if that is because this was cancelled."""
        stopping = self._loop.create_task(self._is_stopping.wait())
        try:
            await asyncio.wait([stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            return True
        finally:
            stopping.cancel()
        return False

    async def _stop(self, claiming: "asyncio.Task[None]") -> None:
        """Abandons jobs that have not started, lets the others finish within the grace, and reports all outcomes."""
        self._is_stopping.set()
        for pool in self._pools.values():
            for entry in pool.drain():
                self._completer.ended(entry, ABANDONED)
        if self._claim_began_s:
            answer_s = ANSWER_LOCAL_S if self._backend.client_options is None else ANSWER_S
            await _wait_until(claiming.done, self._claim_began_s + answer_s - monotonic(), unless=self._is_hurried)
        await _cancel(claiming)  # it must have ended before the worker leaves, or it might list it again
        await _wait_until(lambda: not self._in_flight, self._worker.grace_s, unless=self._is_hurried)
        self._decide([(entry, ABANDONED) for entry in self._in_flight.values()])
        await _wait_until(lambda: not self._in_flight, INTERRUPT_S)
        await _wait_until(lambda: self._completer.is_idle, LAST_REPORTS_S)
        await self._leave()

    async def _leave(self) -> None:
        """Takes the worker off the list of workers, where it would stay for a while."""
        with contextlib.suppress(CodeqError, TimeoutError):
            async with asyncio.timeout(LEAVE_SILENT_S if self._is_cut_off else LEAVE_S):
                await self._backend.leave(self._worker.name, self._info.name)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can handle signals; other threads are stopped by a cancellation
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            self._loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number, handler in before.items():
                self._loop.remove_signal_handler(number)
                if handler is not None:
                    signal.signal(number, handler)

    def _signalled(self) -> None:
        if self._is_stopping.is_set():
            log.warning("signalled again: stopping at once")
            self._is_hurried.set()
        else:
            log.info("stopping: %d jobs are held, %.0f s to finish", len(self._in_flight), self._worker.grace_s)
            self._is_stopping.set()

    # The page for probes.

    def _state(self) -> tuple[bool, dict[str, Any]]:
        silent_s = monotonic() - self._answered_s
        is_full = len(self._in_flight) >= self._target()
        is_stopping = self._is_stopping.is_set()
        is_good = not is_stopping and (silent_s < self._worker.silence_s or is_full)
        return is_good, {
            "status": "ok" if is_good else "stopping" if is_stopping else "no word from the queue",
            "held": len(self._in_flight),
            "rate": round(self._rate, 1),
            "silent_seconds": round(silent_s, 1),
            **msgspec.structs.asdict(self._completer.counts),
            "commands": list(self._worker.commands),
            "progress": {entry.job.id: entry.progress for entry in self._in_flight.values() if entry.progress},
        }


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_until(is_so: Callable[[], bool], seconds: float, *, unless: asyncio.Event | None = None) -> None:
    deadline_s = monotonic() + seconds
    while not is_so() and monotonic() < deadline_s and not (unless is not None and unless.is_set()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # once per stop, and what is waited for ends in other threads
