"""A worker at work: claim ahead, hand out, send results back in batches, and stop without losing anything."""

import asyncio
import contextlib
import logging
import signal
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest, NotFound, Refused
from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.domain.requests import Outcome
from codeq.domain.task import Status
from codeq.sdk.client import AsyncClient
from codeq.sdk.jobs import Job
from codeq.sdk.verbs import Verbs
from codeq.sdk.worker.children import ChildCrew
from codeq.sdk.worker.handling import End, Ended, Handler, Place
from codeq.sdk.worker.health import Counts, serve_health
from codeq.sdk.worker.heart import Beating, Heart, HeartProcess, Pulse
from codeq.sdk.worker.onloop import LoopCrew
from codeq.sdk.worker.running_job import name_tasks_in_logs
from codeq.sdk.worker.threads import ThreadCrew
from codeq.wire.errors import TooLarge

if TYPE_CHECKING:
    from codeq.sdk.worker.registry import Worker

log = logging.getLogger("codeq.worker")

CLAIM_WAIT_S = 20.0
SILENCE_S_MAX = 60.0
"""Without word from the queue for this long, three long polls, the worker does not call itself healthy."""
TICK_S = 0.1
AHEAD_S = 0.1
"""How much work is fetched ahead. Enough to fill batches when tasks are short, next to nothing when they are long."""
PROGRESS_S = 1.0
LAST_WORDS_S = 5.0
INTERRUPT_S = 2.0
GIVING_BACK_AT_ONCE = 16
RESULT_BYTES_AT_ONCE = 8 << 20

_COMPLETE, _FAIL, _RETRY, _ABANDON, _DROP = End.COMPLETE, End.FAIL, End.RETRY, End.ABANDON, End.DROP
_STATUS = {_COMPLETE: Status.COMPLETED, _FAIL: Status.FAILED}


class Held(msgspec.Struct, gc=False, eq=False):
    """A job between its claim and the moment its handler is done with it."""

    job: Job
    handler: Handler
    is_settled: bool = False
    """What becomes of it has been decided without the handler: it took too long, or the lease was lost."""
    progress: str = ""


class Runner:
    def __init__(self, worker: "Worker", verbs: Verbs, *, until_idle: bool) -> None:
        self._worker = worker
        self._verbs = verbs
        self._until_idle = until_idle
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, Held] = {}
        self._ended: deque[Ended] = deque()
        self._has_ended = asyncio.Event()
        self._is_woken = False
        self._has_room = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._is_hurried = asyncio.Event()
        self._settling = 0
        self._finished = 0
        self._rate = 0.0
        self._heard_s = monotonic()
        self._progress: dict[str, str] = {}
        self._counts = Counts()
        self._tasks: list[asyncio.Task[None]] = []
        self._crews: dict[Place, Any] = {}
        self._heart: Heart

    async def run(self, *, signals: bool) -> None:
        name_tasks_in_logs()
        self._heart = self._make_heart()
        server = await serve_health(self._worker.health, self._state) if self._worker.health else None
        settling = self._loop.create_task(self._settle_all())
        ticking = self._loop.create_task(self._tick())
        claiming = self._loop.create_task(self._claim_all())
        try:
            with self._signals() if signals else contextlib.nullcontext():
                self._make_crews()
                cancelled = await self._until_told([claiming, settling, ticking])
                await self._stop(claiming)
        finally:
            for task in (claiming, ticking, settling):
                task.cancel()
            await asyncio.gather(claiming, ticking, settling, return_exceptions=True)
            for crew in self._crews.values():
                crew.close()
            await self._heart.close()
            if server is not None:
                server.close()
        for task in (claiming, settling, ticking):
            if not task.cancelled() and (fault := task.exception()) is not None:
                raise fault
        if cancelled:
            raise asyncio.CancelledError

    # Starting and stopping.

    def _make_heart(self) -> Heart:
        only_children = all(handler.place is Place.PROCESS for handler in self._worker.handlers.values())
        if isinstance(self._verbs, AsyncClient) and not only_children and not self._until_idle:
            return HeartProcess(self._verbs.url, self._verbs.given, self._lost)
        return Beating(self._verbs.backend, self._lost)

    def _make_crews(self) -> None:
        handlers, size = self._worker.handlers, self._worker.concurrency
        places = {handler.place for handler in handlers.values()}
        if Place.THREAD in places:
            self._crews[Place.THREAD] = ThreadCrew(size, self._done, self._report)
        if Place.LOOP in places:
            self._crews[Place.LOOP] = LoopCrew(size, self._done, self._report)
        if Place.PROCESS in places:
            mine = {command: handler for command, handler in handlers.items() if handler.place is Place.PROCESS}
            self._crews[Place.PROCESS] = ChildCrew(size, mine, self._done, self._report)

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
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        self._is_stopping.set()
        for crew in self._crews.values():
            for job in crew.take_back():
                self._done(Ended(job, _ABANDON))
        await self._until(lambda: not self._held, self._worker.grace_s, unless=self._is_hurried)
        for held in list(self._held.values()):
            self._decide(held, Ended(held.job, _ABANDON))
        await self._until(lambda: not self._held, INTERRUPT_S)
        await self._until(lambda: not self._ended and not self._settling, LAST_WORDS_S)

    async def _until(self, is_so: Any, seconds: float, *, unless: asyncio.Event | None = None) -> None:
        deadline_s = monotonic() + seconds
        while not is_so() and monotonic() < deadline_s and not (unless is not None and unless.is_set()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # once per stop, and what is waited for ends in other threads

    @contextlib.contextmanager
    def _signals(self) -> Any:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._told_to_stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.remove_signal_handler(number)

    def _told_to_stop(self) -> None:
        if self._is_stopping.is_set():
            log.warning("told again: stopping at once")
            self._is_hurried.set()
        else:
            log.info("stopping: %d jobs are held, %.0f s to finish", len(self._held), self._worker.grace_s)
            self._is_stopping.set()

    # Claiming.

    async def _claim_all(self) -> None:
        commands = self._worker.commands
        lease_s = min(handler.lease_ms for handler in self._worker.handlers.values()) / 1000
        wait_s = 0.0 if self._until_idle else CLAIM_WAIT_S
        pause_s = 0.0
        while not self._is_stopping.is_set():
            room = await self._room()
            try:
                jobs = await self._verbs.claim(
                    *commands, worker=self._worker.name, limit=room, lease=lease_s, wait=wait_s
                )
            except InvalidRequest:
                raise  # nothing will mend this but another program
            except CodeqError as fault:
                pause_s = min(pause_s + 0.5, 5.0)
                log.warning("cannot claim, trying again in %.1f s: %s", pause_s, fault)
                await asyncio.sleep(pause_s)
                continue
            pause_s = 0.0
            self._heard_s = monotonic()
            if jobs:
                self._take(jobs)
            elif self._until_idle:
                if not self._held and not self._ended and not self._settling:
                    return
                await asyncio.sleep(0.002)

    async def _room(self) -> int:
        """How many jobs to fetch, once that is worth a call."""
        while True:
            target = self._target()
            room = target - len(self._held)
            if room >= max(1, target // 2):
                return min(room, BATCH_TASKS_MAX)
            self._has_room.clear()
            await self._has_room.wait()

    def _target(self) -> int:
        if self._worker.prefetch is not None:
            return self._worker.prefetch
        return max(self._worker.concurrency, min(round(self._rate * AHEAD_S), BATCH_TASKS_MAX))

    def _take(self, jobs: Sequence[Job]) -> None:
        handlers = self._worker.handlers
        self._heart.hold(
            [Pulse(job.id, job.holder.worker, job.holder.token or 0, handlers[job.command].lease_ms) for job in jobs]
        )
        for job in jobs:
            handler = handlers[job.command]
            self._held[job.key] = Held(job, handler)
            self._crews[handler.place].give(handler, job)

    # What handlers tell, from any thread.

    def _done(self, ended: Ended) -> None:
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
            self._decide(held, Ended(held.job, _DROP))

    def _decide(self, held: Held, ended: Ended) -> None:
        """End the job whatever its handler is still doing, and interrupt that."""
        if not held.is_settled:
            held.is_settled = True
            self._settling += 1
            self._loop.create_task(self._settle([ended])).add_done_callback(self._one_settled)
            self._crews[held.handler.place].interrupt(held.job.key)

    def _one_settled(self, _: "asyncio.Task[None]") -> None:
        self._settling -= 1

    # Telling the queue.

    async def _settle_all(self) -> None:
        while True:
            await self._has_ended.wait()
            self._has_ended.clear()
            while self._ended:
                self._settling += 1
                try:
                    await self._settle(self._next_ended())
                finally:
                    self._settling -= 1

    def _next_ended(self) -> list[Ended]:
        batch: list[Ended] = []
        size = 0
        while self._ended and len(batch) < BATCH_TASKS_MAX and size < RESULT_BYTES_AT_ONCE:
            ended = self._ended.popleft()
            self._finished += 1
            held = self._held.pop(ended.job.key, None)
            if held is not None and not held.is_settled:
                batch.append(ended)
                size += len(ended.result or b"")
        self._has_room.set()
        return batch

    async def _settle(self, batch: Sequence[Ended]) -> None:
        """Tell the queue how these ended, and go on telling until it has heard."""
        results = [ended for ended in batch if ended.end is _COMPLETE or ended.end is _FAIL]
        others = [ended for ended in batch if ended.end is _RETRY or ended.end is _ABANDON]
        if results:
            await self._submit(results)
        for start in range(0, len(others), GIVING_BACK_AT_ONCE):
            await asyncio.gather(*[self._give_back(ended) for ended in others[start : start + GIVING_BACK_AT_ONCE]])
        self._heart.release([ended.job.key for ended in batch])
        for ended in batch:
            self._progress.pop(ended.job.key, None)

    async def _submit(self, results: Sequence[Ended]) -> None:
        outcomes = [
            Outcome(
                task_id=ended.job.id,
                holder=ended.job.holder,
                status=_STATUS[ended.end],
                result=ended.result,
                error=ended.error,
            )
            for ended in results
        ]
        try:
            refusals = await self._insist(lambda: self._verbs.backend.submit(outcomes))
        except (InvalidRequest, TooLarge) as fault:
            refusals = [fault] * len(results)
        for ended, refusal in zip(results, refusals, strict=True):
            if refusal is None:
                self._counts.completed += ended.end is _COMPLETE
                self._counts.failed += ended.end is _FAIL
            elif isinstance(refusal, (Refused, NotFound)):
                self._counts.refused += 1
                log.warning("the result of task %s came too late: %s", ended.job.id, refusal)
            elif ended.result is not None:  # too large, most likely; without it the end can still be told
                await self._submit([Ended(ended.job, _FAIL, None, f"the result was refused: {refusal}")])
            else:
                log.error("task %s cannot be ended: %s", ended.job.id, refusal)

    async def _give_back(self, ended: Ended) -> None:
        backend, job = self._verbs.backend, ended.job
        try:
            if ended.end is _RETRY:
                reason = ended.error or ""
                await self._insist(lambda: backend.nack(job, ended.delay_ms, reason, dead=ended.is_last))
                self._counts.retried += 1
                log.info("task %s will be tried again: %s", job.id, reason)
            else:
                await self._insist(lambda: backend.abandon(job))
                self._counts.abandoned += 1
        except CodeqError as refusal:
            self._counts.refused += 1
            log.warning("task %s cannot be given back: %s", job.id, refusal)

    async def _insist(self, call: Any) -> Any:
        """Call until there is an answer. While the queue is away the jobs stay held, and others may get them."""
        while True:
            try:
                return await call()
            except (InvalidRequest, TooLarge, Refused, NotFound):
                raise
            except CodeqError as fault:
                log.warning("the queue cannot be told yet: %s", fault)
                await asyncio.sleep(1)

    # Looking after things.

    async def _tick(self) -> None:
        told: dict[str, tuple[str, float]] = {}
        while True:
            before_s, before = monotonic(), self._finished
            await asyncio.sleep(TICK_S)
            now_s = monotonic()
            self._rate = 0.5 * self._rate + 0.5 * (self._finished - before) / (now_s - before_s)
            self._has_room.set()
            for crew in self._crews.values():
                for key, started_s in crew.running():
                    self._check_time(self._held.get(key), now_s - started_s)
            self._tell_progress(told, now_s)

    def _check_time(self, held: Held | None, taken_s: float) -> None:
        if held is None or held.is_settled or held.handler.timeout_s is None or taken_s <= held.handler.timeout_s:
            return
        handler, job = held.handler, held.job
        is_last = handler.max_attempts is not None and job.attempt >= handler.max_attempts
        error = f"timed out after {handler.timeout_s:g} s"
        self._decide(held, Ended(job, _RETRY, error=error, is_last=is_last))

    def _tell_progress(self, told: dict[str, tuple[str, float]], now_s: float) -> None:
        for key, text in list(self._progress.items()):
            held = self._held.get(key)
            last, at_s = told.get(key, ("", 0.0))
            if held is None:
                self._progress.pop(key, None)
                told.pop(key, None)
            elif text != last and now_s - at_s >= PROGRESS_S:
                told[key] = text, now_s
                held.progress = text
                self._tasks = [task for task in self._tasks if not task.done()]
                self._tasks.append(self._loop.create_task(self._beat(held, text)))

    async def _beat(self, held: Held, text: str) -> None:
        with contextlib.suppress(CodeqError):  # the heart has the last word on whether the job is ours
            await self._verbs.backend.heartbeat(held.job, held.handler.lease_ms, text)

    def _state(self) -> tuple[bool, dict[str, Any]]:
        silent_s = monotonic() - self._heard_s
        is_full = len(self._held) >= self._target()
        is_good = not self._is_stopping.is_set() and (silent_s < SILENCE_S_MAX or is_full)
        return is_good, {
            "status": "ok" if is_good else "stopping" if self._is_stopping.is_set() else "no word from the queue",
            "held": len(self._held),
            "rate": round(self._rate, 1),
            "silent_seconds": round(silent_s, 1),
            **msgspec.structs.asdict(self._counts),
            "commands": list(self._worker.commands),
            "progress": {held.job.id: held.progress for held in self._held.values() if held.progress},
        }
