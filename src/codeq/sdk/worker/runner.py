"""The main loop of a worker: submits claimed jobs to pools, enforces timeouts, and stops gracefully."""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from codeq.domain.errors import CodeqError, NotOwner
from codeq.domain.requests import Claim
from codeq.sdk.artifacts import upload
from codeq.sdk.backend import Backend
from codeq.sdk.jobs import Job
from codeq.sdk.tracing import look_for_tracing
from codeq.sdk.worker.batches import BatchPool
from codeq.sdk.worker.claimer import Claimer, ClaimState
from codeq.sdk.worker.completer import Completer, EndedJob
from codeq.sdk.worker.event_loop import EventLoopPool
from codeq.sdk.worker.execution import outcome_of_error
from codeq.sdk.worker.handler import Handler, PoolKind
from codeq.sdk.worker.health import serve_health
from codeq.sdk.worker.heartbeat import Heartbeater, LoopHeartbeater
from codeq.sdk.worker.heartbeat_process import HeartbeatProcess
from codeq.sdk.worker.hooks import HookRunner
from codeq.sdk.worker.outcomes import ABANDONED, DROPPED, TimedOut
from codeq.sdk.worker.pool import InFlightJob, InFlightJobs, Pool
from codeq.sdk.worker.processes import ProcessPool
from codeq.sdk.worker.running_job import AttachedFile, RunningJob, as_current, name_tasks_in_logs
from codeq.sdk.worker.signals import give_forks
from codeq.sdk.worker.threads import ThreadPool
from codeq.sdk.worker_info import worker_info

if TYPE_CHECKING:
    from codeq.sdk.worker.worker import Worker

log = logging.getLogger("codeq.worker")

CLAIM_WAIT_MS = 20_000
TICK_S = 0.1
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
        self._in_flight = InFlightJobs()
        self._is_hurried = asyncio.Event()
        self._heartbeater = self._make_heartbeater()
        self._claims = ClaimState(backend, self._heartbeater, self._in_flight)
        self._hooks = HookRunner()
        self._completer = Completer(
            backend, self._heartbeater, self._in_flight, self._reported, hooks=self._hooks, worker=worker
        )
        self._claims.is_all_done = lambda: not self._in_flight and self._completer.is_idle
        self._pools: dict[str, Pool] = {}
        label = None if worker.name == "worker" else worker.name
        slots = sum(worker.slots(kind) for kind in {handler.pool for handler in worker.handlers.values()})
        self._info = worker_info(label, slots=slots, commands=worker.commands)
        self._progress: dict[str, str] = {}
        """What handlers have reported since the last tick."""
        self._not_started: list[InFlightJob] = []
        """Jobs to be handed back once no claim of this worker could take them again."""
        self._warned: set[str] = set()
        """Commands whose handler allows more attempts than its tasks."""

    async def run(self, *, signals: bool) -> None:
        """Works until it is stopped by a signal or a cancellation, or until idle. Raises the error that ended it."""
        name_tasks_in_logs()
        loops: list[asyncio.Task[None]] = [self._completer.running, self._heartbeater.running]
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._heartbeater.close)
            stack.push_async_callback(self._completer.close)
            stack.push_async_callback(self._hooks.close)
            if self._worker.health:
                server = await serve_health(self._worker.health, self._state)
                stack.callback(server.close)
            self._start_pools(stack)
            claiming = [self._loop.create_task(claimer.run()) for claimer in self._claims.claimers]
            ticking = self._loop.create_task(self._tick())
            loops += [*claiming, ticking]
            stack.push_async_callback(_cancel, *claiming, ticking)
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
        if options is not None and not only_children:
            return HeartbeatProcess(self._backend, options, leases_ms, self._lease_lost, at_once=not self._until_idle)
        return LoopHeartbeater(self._backend, leases_ms, self._lease_lost)

    def _start_pools(self, stack: contextlib.AsyncExitStack) -> None:
        groups: dict[str, dict[str, Handler]] = {}
        for command, handler in self._worker.handlers.items():
            handler.signature.check()
            groups.setdefault(handler.pool_name, {})[command] = handler
        # Several claims fit into the silence after which the worker counts as unhealthy.
        wait_ms = 0 if self._until_idle else min(CLAIM_WAIT_MS, round(self._worker.silence_s * 1000 / 3))
        for name, handlers in groups.items():
            pool = self._pools[name] = self._make_pool(handlers)
            stack.callback(pool.close)
            [first, *_] = handlers.values()
            wanted = Claim(
                worker=self._worker.name,
                commands=tuple(handlers),
                lease_ms=min(handler.lease_ms for handler in handlers.values()),
                wait_ms=wait_ms,
                info=self._info,
            )
            size, prefetch = self._worker.slots(first.pool), self._worker.prefetch
            if isinstance(pool, BatchPool):
                size, prefetch = pool.size, pool.prefetch
            Claimer(
                self._claims, name, pool, wanted=wanted, size=size, prefetch=prefetch, dispatch=self._dispatch,
                until_idle=self._until_idle,
            )  # fmt: skip

    def _make_pool(self, handlers: dict[str, Handler]) -> Pool:
        ended, [first, *_] = self._completer.ended, handlers.values()
        size = self._worker.slots(first.pool)
        if first.batching is not None:
            return BatchPool(first, ended, hurried=self._until_idle)
        if first.pool is PoolKind.PROCESS:
            limits = self._worker.child_limits
            return ProcessPool(size, handlers, ended, self._report, attach=self._attach, limits=limits)
        if first.pool is PoolKind.THREAD:
            return ThreadPool(size, ended, self._report, self._attach)
        return EventLoopPool(size, ended, self._report, self._attach)

    # Dispatching.

    def _dispatch(self, jobs: Sequence[Job]) -> None:
        self._heartbeater.hold(jobs)
        look_for_tracing()
        for job in jobs:
            handler = self._worker.handlers[job.command]
            entry = InFlightJob(job, handler, job.key)
            self._in_flight.add(entry)
            if handler.max_attempts is not None and handler.max_attempts > job.max_attempts:
                self._warn_of_attempts(handler, job)
            if self._claims.is_stopping.is_set():
                self._not_started.append(entry)
            else:
                self._pools[handler.pool_name].submit(entry)

    def _warn_of_attempts(self, handler: Handler, job: Job) -> None:
        if handler.command not in self._warned:
            self._warned.add(handler.command)
            log.warning(
                "the handler of %s says max_attempts=%d, but task %s was enqueued with %d, and the smaller one counts: "
                "enqueue with max_attempts, or set the policy of the queue",
                handler.command, handler.max_attempts, job.id, job.max_attempts,
            )  # fmt: skip

    def _reported(self) -> None:
        """Called when jobs have ended, and when they have been reported."""
        self._claims.turn += 1
        self._claims.changed.set()

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
        for key in progress.keys() & self._in_flight.by_key.keys():
            self._in_flight.by_key[key].progress = progress[key]
        if progress:
            self._heartbeater.report(progress)

    # Outcomes that are decided without the handler.

    def _lease_lost(self, key: str, code: str) -> None:
        entry = self._in_flight.by_key.get(key)
        if entry is not None and not entry.decided_s:
            with as_current(RunningJob(entry.job)):
                log.warning("the lease of task %s was lost: %s", entry.job.id, code)
            self._completer.counts.lost += 1
            self._decide([(entry, DROPPED)])

    async def _tick(self) -> None:
        while True:
            before_s = monotonic()
            await asyncio.sleep(TICK_S)
            now_s = monotonic()
            for claimer in self._claims.claimers:
                claimer.tick(now_s - before_s)
            self._claims.changed.set()
            self._check_times(now_s)
            self._send_progress()
            for pool in self._pools.values():
                if pool.fault is not None:
                    raise Stuck(pool.fault)

    def _check_times(self, now_s: float) -> None:
        late: list[EndedJob] = []
        for entry in [entry for entry in self._in_flight.by_key.values() if entry.started_s and not entry.is_ended]:
            timeout_s = entry.handler.timeout_s
            if entry.decided_s:
                if now_s - entry.decided_s > INTERRUPT_S:
                    log.error("the handler of task %s ignores its interruption and is discarded", entry.job.id)
                    self._in_flight.remove(entry.key)
                    self._pools[entry.handler.pool_name].discard(entry)
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
            self._pools[entry.handler.pool_name].interrupt(entry)

    # Stopping.

    async def _until_stopped(self, loops: "list[asyncio.Task[None]]") -> bool:
        """Returns once it is time to stop; True if that is because this was cancelled."""
        stopping = self._loop.create_task(self._claims.is_stopping.wait())
        try:
            await asyncio.wait([stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            return True
        finally:
            stopping.cancel()
        return False

    async def _stop(self, claiming: "Sequence[asyncio.Task[None]]") -> None:
        """Abandons jobs that have not started, lets the others finish within the grace, and reports all outcomes."""
        self._claims.is_stopping.set()
        for pool in self._pools.values():
            self._not_started += pool.drain()
        began_s = max([claimer.began_s for claimer in self._claims.claimers], default=0.0)
        if began_s:
            answer_s = ANSWER_LOCAL_S if self._backend.client_options is None else ANSWER_S
            is_done = lambda: all(task.done() for task in claiming)  # noqa: E731 - as short as a comparison
            await _wait_until(is_done, began_s + answer_s - monotonic(), unless=self._is_hurried)
        await _cancel(*claiming)  # before jobs are handed back, which a claim would take again, and the worker leaves
        for entry in self._not_started:
            self._completer.ended(entry, ABANDONED)
        await _wait_until(lambda: not self._in_flight, self._worker.grace_s, unless=self._is_hurried)
        self._decide([(entry, ABANDONED) for entry in self._in_flight.by_key.values()])
        await _wait_until(lambda: not self._in_flight, INTERRUPT_S)
        await _wait_until(lambda: self._completer.is_idle, LAST_REPORTS_S)
        await self._leave()

    async def _leave(self) -> None:
        """Takes the worker off the list of workers, where it would stay for a while."""
        with contextlib.suppress(CodeqError, TimeoutError):
            async with asyncio.timeout(LEAVE_SILENT_S if self._claims.is_cut_off else LEAVE_S):
                await self._backend.leave(self._worker.name, self._info.name)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can handle signals; other threads are stopped by a cancellation
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        give_forks(before)
        for number in before:
            self._loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            give_forks({})
            for number, handler in before.items():
                self._loop.remove_signal_handler(number)
                if handler is not None:
                    signal.signal(number, handler)

    def _signalled(self) -> None:
        if self._claims.is_stopping.is_set():
            log.warning("signalled again: stopping at once")
            self._is_hurried.set()
        else:
            log.info("stopping: %d jobs are held, %.0f s to finish", len(self._in_flight), self._worker.grace_s)
            self._claims.is_stopping.set()

    # The page for probes.

    def _state(self) -> tuple[bool, dict[str, Any]]:
        silent_s = monotonic() - self._claims.answered_s
        is_full = all(claimer.held >= claimer.target for claimer in self._claims.claimers)
        is_stopping = self._claims.is_stopping.is_set()
        is_good = not is_stopping and (silent_s < self._worker.silence_s or is_full)
        return is_good, {
            "status": "ok" if is_good else "stopping" if is_stopping else "no word from the queue",
            "held": len(self._in_flight),
            "rate": round(sum(claimer.rate for claimer in self._claims.claimers), 1),
            "silent_seconds": round(silent_s, 1),
            **msgspec.structs.asdict(self._completer.counts),
            "commands": list(self._worker.commands),
            "progress": {entry.job.id: entry.progress for entry in self._in_flight.by_key.values() if entry.progress},
            "by_command": self._completer.by_command(),
        }


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_until(is_so: Callable[[], bool], seconds: float, *, unless: asyncio.Event | None = None) -> None:
    deadline_s = monotonic() + seconds
    while not is_so() and monotonic() < deadline_s and not (unless is not None and unless.is_set()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # once per stop, and what is waited for ends in other threads
