"""Renews the leases of the jobs that a worker holds, reports their progress, and notices lost leases."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from codeq.domain.errors import CodeqError, NotFound, NotInProgress, NotOwner
from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.domain.requests import LeaseExtension
from codeq.sdk.backend import Backend
from codeq.sdk.jobs import Job
from codeq.sdk.worker.lease_watch import LeaseWatch
from codeq.wire.errors import Forbidden, NoRoute, Unauthenticated, WrongMethod

log = logging.getLogger("codeq.worker")

BEATS_PER_LEASE = 3
TICK_S = 0.25
PROGRESS_S = 1.0
"""How often the progress of one job is sent at most."""
CALLS_MAX, SINGLE_CALLS_MAX = 4, 32
"""Calls under way: of up to a thousand heartbeats each, or of one each where a server takes no batches."""
ANSWER_S_MIN = 1.0
_LOST = (NotOwner, NotInProgress, NotFound)
"""Refusals that say that the lease is lost. After any other, the next heartbeat may extend it."""

Lost = Callable[[str, str], None]
"""Called with the key of a job whose lease was lost, and the code of the refusal."""


class Heartbeater(Protocol):
    """Sends all heartbeats of a worker. All methods are called on the event loop."""

    async def ready(self) -> None:
        """Returns once the leases of held jobs are renewed whatever their handlers do to this process."""

    def hold(self, jobs: Sequence[Job]) -> None:
        """Renews the leases of these jobs from now on."""

    def release(self, keys: Sequence[str]) -> None:
        """Stops renewing the leases of these jobs, which may have been lost or released already."""

    def report(self, progress: Mapping[str, str]) -> None:
        """Sends progress texts, by the key of their job, within about a second. Ignores jobs that are not held."""

    async def close(self) -> None: ...

    @property
    def running(self) -> "asyncio.Task[None]":
        """Ends only with an error."""


class _HeldLease(Struct):
    job: Job
    lease_ms: int
    due_s: float
    since_s: float
    progress: str = ""
    sent_progress: str = ""
    sent_s: float = 0.0

    @property
    def changed_progress(self) -> str | None:
        """None if the queue has it."""
        return self.progress if self.progress != self.sent_progress else None

    def beat(self, now_s: float) -> LeaseExtension:
        self.sent_s = now_s
        job, progress = self.job, self.changed_progress
        return LeaseExtension(task_id=job.id, holder=job.holder, extend_ms=self.lease_ms, progress=progress)

    def is_due(self, now_s: float) -> bool:
        return self.due_s <= now_s or (self.progress != self.sent_progress and now_s - self.sent_s >= PROGRESS_S)


class LoopHeartbeater:
    """Sends heartbeats from the running event loop. `leases_ms` has the lease of each command."""

    def __init__(self, backend: Backend, leases_ms: Mapping[str, int], lost: Lost) -> None:
        self._backend = backend
        self._leases_ms = leases_ms
        self._lost = lost
        self._held: dict[str, _HeldLease] = {}
        self._due: deque[str] = deque()
        self._beating: set[str] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._one_by_one = False
        self._is_silent = False
        """Whether the last call failed, which is told once."""
        self._loop = asyncio.get_running_loop()
        self._watch = LeaseWatch(backend, self._held, self._refused)
        self._watching = self._loop.create_task(self._watch.run())
        self.running = self._loop.create_task(self._tick())

    async def ready(self) -> None:
        pass

    def hold(self, jobs: Sequence[Job], *, at_once: bool = False) -> None:
        """With `at_once` the first heartbeats are sent now, because it is not known when the last ones were."""
        # A claim for several commands asks for the shortest of their leases.
        first_s = 0.0 if at_once else min(self._leases_ms.values()) / 1000 / BEATS_PER_LEASE
        now_s = self._loop.time()
        due_s = now_s + first_s
        for job in jobs:
            self._held[job.key] = _HeldLease(job, self._leases_ms[job.command], due_s, now_s)
        self._watch.hold()
        if at_once:
            self._send_due()

    def release(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._held.pop(key, None)

    def report(self, progress: Mapping[str, str]) -> None:
        for key in progress.keys() & self._held.keys():
            self._held[key].progress = progress[key]
        self._send_due()

    async def close(self) -> None:
        self._held.clear()
        self._due.clear()
        tasks = [self.running, self._watching, *self._calls]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _refused(self, key: str, code: str) -> None:
        if self._held.pop(key, None) is not None:
            self._lost(key, code)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._send_due()

    def _send_due(self) -> None:
        """The longest overdue come first, so that none is passed over for ever when there are too many."""
        now_s = self._loop.time()
        due = sorted([(lease.due_s, key) for key, lease in self._held.items() if lease.is_due(now_s)])
        self._due = deque([key for _, key in due if key not in self._beating])
        self._start_calls()

    def _start_calls(self) -> None:
        calls_max, beats_max = (SINGLE_CALLS_MAX, 1) if self._one_by_one else (CALLS_MAX, BATCH_TASKS_MAX)
        while self._due and len(self._calls) < calls_max:
            keys = [self._due.popleft() for _ in range(min(beats_max, len(self._due)))]
            leases = {key: self._held[key] for key in keys if key in self._held and key not in self._beating}
            if leases:
                self._beating |= leases.keys()
                call = self._loop.create_task(self._beat(leases))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _beat(self, leases: Mapping[str, _HeldLease]) -> None:
        lease_s = min(lease.lease_ms for lease in leases.values()) / 1000
        beats = [lease.beat(self._loop.time()) for lease in leases.values()]
        answers: Sequence[int | CodeqError | None] = [None] * len(beats)
        try:
            async with asyncio.timeout(max(ANSWER_S_MIN, lease_s / BEATS_PER_LEASE)):
                answers = await (self._send_one(*leases.values()) if len(beats) == 1 else self._send_many(beats))
            if self._is_silent:
                self._is_silent = False
                log.warning("heartbeats are answered again")
        except Unauthenticated as refusal:
            log.warning("a heartbeat was refused: %s", refusal)
            self._lost("", refusal.code)
        except (CodeqError, TimeoutError) as fault:
            level, self._is_silent = logging.DEBUG if self._is_silent else logging.WARNING, True
            log.log(level, "heartbeats fail, and are repeated: %s", str(fault) or "no answer")
        finally:
            self._beating -= leases.keys()
            faults = [each for each in answers if isinstance(each, CodeqError) and not isinstance(each, _LOST)]
            if faults:
                log.warning("%d of %d heartbeats failed: %s", len(faults), len(beats), faults[0])
            for (key, lease), beat, answer in zip(leases.items(), beats, answers, strict=True):
                self._take_answer(key, lease, beat, answer)
            self._loop.call_soon(self._start_calls)

    async def _send_one(self, lease: _HeldLease) -> Sequence[int | CodeqError]:
        try:
            return [await self._backend.heartbeat(lease.job, lease.lease_ms, lease.changed_progress)]
        except _LOST as refusal:
            return [refusal]

    async def _send_many(self, beats: Sequence[LeaseExtension]) -> Sequence[int | CodeqError | None]:
        try:
            return await self._backend.heartbeat_many(beats)
        except (NotFound, NoRoute, WrongMethod, Forbidden) as refusal:
            # An older server, where a missing route is told as a missing task is; or a token that no longer names the
            # commands of all of them.
            log.info("heartbeats are sent one by one: %s", refusal)
            self._one_by_one = True
            return [None] * len(beats)

    def _take_answer(self, key: str, lease: _HeldLease, beat: LeaseExtension, answer: int | CodeqError | None) -> None:
        lease_s = lease.lease_ms / 1000
        # If this one failed, the next is soon: several fit into a lease.
        next_s = lease_s / (BEATS_PER_LEASE * 4)
        if isinstance(answer, _LOST):
            self._refused(key, answer.code)
        elif isinstance(answer, int):
            lease.sent_progress = beat.progress if beat.progress is not None else lease.sent_progress
            next_s = lease_s / BEATS_PER_LEASE
        lease.due_s = self._loop.time() + next_s
