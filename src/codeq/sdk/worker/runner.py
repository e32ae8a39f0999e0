"""A worker at work: claim ahead, hand out, send results back in batches, and stop without losing anything."""

import asyncio
import contextlib
import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.sdk.client import AsyncClient
from codeq.sdk.jobs import Job
from codeq.sdk.verbs import Verbs
from codeq.sdk.worker.completer import Completer
from codeq.sdk.worker.event_loop import EventLoopPool
from codeq.sdk.worker.execution import InFlightJob, JobOutcome, OutcomeKind, Place, TimedOut, fault_of
from codeq.sdk.worker.health import Counts, serve_health
from codeq.sdk.worker.heartbeat import Heartbeater, HeartbeatProcess, LeaseRef, LoopHeartbeater
from codeq.sdk.worker.processes import ProcessPool
from codeq.sdk.worker.running_job import name_tasks_in_logs
from codeq.sdk.worker.threads import ThreadPool
from codeq.wire.errors import Forbidden, Unauthenticated

if TYPE_CHECKING:
    from codeq.sdk.worker.worker import Worker

log = logging.getLogger("codeq.worker")

CLAIM_WAIT_S = 20.0
TICK_S = 0.1
AHEAD_S = 0.1
"""How much work is fetched ahead. Enough to fill batches when tasks are short, next to nothing when they are long."""
LET_GO_S = 1e-5
PROGRESS_S = 1.0
ANSWER_S, ANSWER_INSIDE_S = 0.5, 0.2
"""A claim this young may be about to be answered with jobs, so a worker that stops waits for it that long (less on a
queue inside the process); one that is older waits for a task to come."""
INTERRUPT_S = 2.0
"""How long a handler may take to heed its interruption."""
LAST_WORDS_S = 5.0
RESULT_BYTES_AT_ONCE = 8 << 20

_DROP, _ABANDON = OutcomeKind.DROP, OutcomeKind.ABANDON


class Stuck(CodeqError):
    """The worker has nothing left to work with. Another process would."""

    code = "stuck"


class Runner:
    def __init__(self, worker: "Worker", verbs: Verbs, *, until_idle: bool) -> None:
        self._worker = worker
        self._verbs = verbs
        self._until_idle = until_idle
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, InFlightJob] = {}
        self._ended: deque[JobOutcome] = deque()
        self._has_ended = asyncio.Event()
        self._is_woken = False
        self._has_room = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._is_hurried = asyncio.Event()
        self._settling = 0
        self._finished = 0
        self._rate = 0.0
        self._asked_s = 0.0
        """Since when a claim is under way; 0 while none is."""
        self._heard_s = monotonic()
        self._was_heard = False
        self._progress: dict[str, str] = {}
        self._counts = Counts()
        self._teller = Completer(verbs.backend, self._counts)
        self._tasks: set[asyncio.Task[None]] = set()
        self._crews: dict[Place, Any] = {}
        self._heart: Heartbeater

    async def run(self, *, signals: bool) -> None:
        name_tasks_in_logs()
        working: list[asyncio.Task[None]] = []
        async with contextlib.AsyncExitStack() as stack:
            if self._worker.health:
                server = await serve_health(self._worker.health, self._state)
                stack.callback(server.close)
            self._make_crews()
            self._heart = self._make_heart()
            stack.push_async_callback(self._heart.close)
            for crew in self._crews.values():
                stack.callback(crew.close)
            loops = (self._claim_all(), self._settle_all(), self._tick())
            working += [self._loop.create_task(loop) for loop in loops]
            stack.push_async_callback(self._leave, working)
            stack.enter_context(self._signals() if signals else contextlib.nullcontext())
            cancelled = await self._until_told([*working, self._heart.running])
            await self._stop(working[0])
        for task in (*working, self._heart.running):
            if not task.cancelled() and (fault := task.exception()) is not None:
                raise fault
        if cancelled:
            raise asyncio.CancelledError

    # Starting and stopping.

    def _make_heart(self) -> Heartbeater:
        only_children = all(handler.place is Place.PROCESS for handler in self._worker.handlers.values())
        if isinstance(self._verbs, AsyncClient) and not only_children and not self._until_idle:
            return HeartbeatProcess(self._verbs, self._lost)
        return LoopHeartbeater(self._verbs.backend, self._lost)

    def _make_crews(self) -> None:
        handlers, size = self._worker.handlers, self._worker.concurrency
        places = {handler.place for handler in handlers.values()}
        if Place.PROCESS in places:
            mine = {command: handler for command, handler in handlers.items() if handler.place is Place.PROCESS}
            self._crews[Place.PROCESS] = ProcessPool(size, mine, self._done, self._report)
        if Place.THREAD in places:
            self._crews[Place.THREAD] = ThreadPool(size, self._done, self._report)
        if Place.LOOP in places:
            self._crews[Place.LOOP] = EventLoopPool(size, self._done, self._report)

    async def _until_told(self, working: "list[asyncio.Task[None]]") -> bool:
        """Return once it is time to stop; True if that is because this was cancelled."""
        told = self._loop.create_task(self._is_stopping.wait())
        try:
            await asyncio.wait([told, *working], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            return True
        finally:
            told.cancel()
        return False

    async def _stop(self, claiming: "asyncio.Task[None]") -> None:
        """Hand back what has not begun, let the rest finish within the grace, and tell the queue how all ended."""
        self._is_stopping.set()
        for crew in self._crews.values():
            for held in crew.take_back():
                self._done(JobOutcome(held.job, _ABANDON))
        if self._asked_s:
            answer_s = ANSWER_S if isinstance(self._verbs, AsyncClient) else ANSWER_INSIDE_S
            await self._until(claiming.done, self._asked_s + answer_s - monotonic(), unless=self._is_hurried)
        claiming.cancel()
        await self._until(lambda: not self._held, self._worker.grace_s, unless=self._is_hurried)
        self._decide([(held, JobOutcome(held.job, _ABANDON)) for held in self._held.values()])
        await self._until(lambda: not self._held, INTERRUPT_S)
        await self._until(lambda: not self._ended and not self._settling, LAST_WORDS_S)

    async def _leave(self, working: "list[asyncio.Task[None]]") -> None:
        under_way = [*working, *self._tasks]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _until(self, is_so: Callable[[], bool], seconds: float, *, unless: asyncio.Event | None = None) -> None:
        deadline_s = monotonic() + seconds
        while not is_so() and monotonic() < deadline_s and not (unless is not None and unless.is_set()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # once per stop, and what is waited for ends in other threads

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are not for other threads to hear; who started this one must cancel it
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            self._loop.add_signal_handler(number, self._told_to_stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                self._loop.remove_signal_handler(number)
                if handler is not None:
                    signal.signal(number, handler)

    def _told_to_stop(self) -> None:
        if self._is_stopping.is_set():
            log.warning("told again: stopping at once")
            self._is_hurried.set()
        else:
            log.info("stopping: %d jobs are held, %.0f s to finish", len(self._held), self._worker.grace_s)
            self._is_stopping.set()

    # Claiming.

    async def _claim_all(self) -> None:
        commands, name = self._worker.commands, self._worker.name
        lease_ms = min(handler.lease_ms for handler in self._worker.handlers.values())
        # Several polls fit into the silence that a healthy worker may keep.
        wait_s = 0.0 if self._until_idle else min(CLAIM_WAIT_S, self._worker.silence_s / 3)
        pause_s = 0.0
        while not self._is_stopping.is_set():
            await self._heart.ready()
            room = await self._room()
            self._asked_s = monotonic()
            try:
                jobs = await self._verbs.claim(*commands, worker=name, limit=room, lease=lease_ms / 1000, wait=wait_s)
            except CodeqError as fault:
                if self._is_hopeless(fault):
                    raise
                pause_s = min(pause_s + 0.5, 5.0)
                log.warning("cannot claim, trying again in %.1f s: %s", pause_s, fault)
                self._asked_s = 0.0
                await asyncio.sleep(pause_s)
                continue
            self._asked_s = pause_s = 0.0
            self._heard_s, self._was_heard = monotonic(), True
            if jobs:
                await self._heart.ready()
                self._take(jobs, lease_ms)
                if len(jobs) < room and Place.THREAD in self._crews:
                    # The next claim will have to wait, so the handlers need the interpreter's lock more.
                    sleep(LET_GO_S)  # noqa: ASYNC251 - the loop is to stand still, or it would keep the lock
            elif self._until_idle:
                if not self._held and not self._ended and not self._settling:
                    return
                self._has_room.clear()
                await self._has_room.wait()

    def _is_hopeless(self, fault: CodeqError) -> bool:
        """Nothing will mend this but another program, or another token for one that never worked."""
        return isinstance(fault, InvalidRequest) or (
            isinstance(fault, (Unauthenticated, Forbidden)) and not self._was_heard
        )

    async def _room(self) -> int:
        """How many jobs to fetch, once that is worth a call: always while a handler could begin at once."""
        while True:
            target = self._target()
            room = target - len(self._held)
            if room > 0 and (len(self._held) < self._worker.concurrency or room >= target // 2):
                return min(room, BATCH_TASKS_MAX)
            self._has_room.clear()
            await self._has_room.wait()

    def _target(self) -> int:
        if self._worker.prefetch is not None:
            return self._worker.prefetch
        return max(self._worker.concurrency, min(round(self._rate * AHEAD_S), BATCH_TASKS_MAX))

    def _take(self, jobs: Sequence[Job], claimed_ms: int) -> None:
        handlers = self._worker.handlers
        self._heart.hold(
            [
                LeaseRef(job.id, job.holder.worker, job.holder.token or 0, handlers[job.command].lease_ms, claimed_ms)
                for job in jobs
            ]
        )
        for job in jobs:
            handler = handlers[job.command]
            held = self._held[job.key] = InFlightJob(job, handler)
            if self._is_stopping.is_set():
                self._done(JobOutcome(job, _ABANDON))
            else:
                self._crews[handler.place].give(held)

    # What handlers tell, from any thread.

    def _done(self, ended: JobOutcome) -> None:
        self._ended.append(ended)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is gone: so is the worker
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_woken = False
        self._has_ended.set()

    def _report(self, job: Job, text: str) -> None:
        self._progress[job.key] = text

    # What the heart tells.

    def _lost(self, key: str, code: str) -> None:
        held = self._held.get(key)
        if held is not None and not held.is_settled:
            log.warning("task %s is no longer ours: %s", held.job.id, code)
            self._counts.lost += 1
            self._decide([(held, JobOutcome(held.job, _DROP))])

    def _decide(self, ends: Sequence[tuple[InFlightJob, JobOutcome]]) -> None:
        """End jobs whatever their handlers are still doing, and interrupt those."""
        decided = [(held, ended) for held, ended in ends if not held.is_settled]
        if not decided:
            return
        for held, _ in decided:
            held.is_settled = True
            held.settled_s = monotonic()
        self._start(self._settle([ended for _, ended in decided]))
        for held, _ in decided:
            self._crews[held.handler.place].interrupt(held)

    def _start(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Telling the queue.

    async def _settle_all(self) -> None:
        while True:
            await self._has_ended.wait()
            self._has_ended.clear()
            while self._ended:
                await self._settle(self._next_ended())

    def _next_ended(self) -> list[JobOutcome]:
        batch: list[JobOutcome] = []
        size = 0
        while self._ended and len(batch) < BATCH_TASKS_MAX and size < RESULT_BYTES_AT_ONCE:
            ended = self._ended.popleft()
            self._finished += 1
            held = self._held.pop(ended.job.key, None)
            if held is None or held.is_settled:
                continue
            if ended.end is _DROP:  # nobody interrupted it: it raised that by itself
                ended = fault_of(held.handler, held.job, InterruptedError("the handler interrupted itself"))
            batch.append(ended)
            size += len(ended.result or b"")
        self._has_room.set()
        return batch

    async def _settle(self, batch: Sequence[JobOutcome]) -> None:
        self._settling += 1
        try:
            await self._teller.tell(batch)
        finally:
            self._settling -= 1
            self._heart.release([ended.job.key for ended in batch])
            self._has_room.set()
        if self._progress:
            for ended in batch:
                self._progress.pop(ended.job.key, None)

    # Looking after things.

    async def _tick(self) -> None:
        while True:
            before_s, before = monotonic(), self._finished
            await asyncio.sleep(TICK_S)
            now_s = monotonic()
            self._rate = 0.5 * self._rate + 0.5 * (self._finished - before) / (now_s - before_s)
            self._has_room.set()
            for crew in self._crews.values():
                self._check_times(crew.running(), now_s)
                if crew.fault is not None:
                    raise Stuck(crew.fault)
            self._tell_progress(now_s)

    def _check_times(self, running: Sequence[tuple[InFlightJob, float]], now_s: float) -> None:
        late = []
        for held, started_s in running:
            limit_s = held.handler.timeout_s
            if held.is_settled:
                if now_s - held.settled_s > INTERRUPT_S:
                    log.error("the handler of task %s does not heed its interruption and is left behind", held.job.id)
                    self._held.pop(held.job.key, None)
                    self._crews[held.handler.place].write_off(held)
            elif limit_s is not None and now_s - started_s > limit_s:
                fault = TimedOut(f"it took longer than {limit_s:g} s")
                late.append((held, fault_of(held.handler, held.job, fault)))
        self._decide(late)

    def _tell_progress(self, now_s: float) -> None:
        for key, text in self._progress.copy().items():
            held = self._held.get(key)
            if held is None:
                self._progress.pop(key, None)
            elif text != held.progress and now_s - held.progress_s >= PROGRESS_S:
                held.progress, held.progress_s = text, now_s
                self._start(self._beat(held, text))

    async def _beat(self, held: InFlightJob, text: str) -> None:
        with contextlib.suppress(CodeqError):  # the heart has the last word on whether the job is ours
            await self._verbs.backend.heartbeat(held.job, held.handler.lease_ms, text)

    def _state(self) -> tuple[bool, dict[str, Any]]:
        silent_s = monotonic() - self._heard_s
        is_full = len(self._held) >= self._target()
        is_stopping = self._is_stopping.is_set()
        is_good = not is_stopping and (silent_s < self._worker.silence_s or is_full)
        return is_good, {
            "status": "ok" if is_good else "stopping" if is_stopping else "no word from the queue",
            "held": len(self._held),
            "rate": round(self._rate, 1),
            "silent_seconds": round(silent_s, 1),
            **msgspec.structs.asdict(self._counts),
            "commands": list(self._worker.commands),
            "progress": {held.job.id: held.progress for held in self._held.values() if held.progress},
        }
