"""Renews the leases of the jobs that a worker holds, reports their progress, and notices lost leases."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from codeq.domain.errors import CodeqError, NotFound, Refused
from codeq.sdk.backend import Backend
from codeq.sdk.jobs import Job
from codeq.sdk.worker.lease_watch import LeaseWatch
from codeq.wire.errors import Unauthenticated

log = logging.getLogger("codeq.worker")

BEATS_PER_LEASE = 3
TICK_S = 0.25
PROGRESS_S = 1.0
"""How often the progress of one job is sent at most."""
BEATS_AT_ONCE = 32
ANSWER_S_MIN = 1.0

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
        self._beating: dict[str, asyncio.Task[None]] = {}
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
        tasks = [self.running, self._watching, *self._beating.values()]
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
        self._due = deque([key for _, key in due])
        self._start_beats()

    def _start_beats(self) -> None:
        while self._due and len(self._beating) < BEATS_AT_ONCE:
            key = self._due.popleft()
            if key in self._held and key not in self._beating:
                self._beating[key] = self._loop.create_task(self._beat(key, self._held[key]))

    async def _beat(self, key: str, lease: _HeldLease) -> None:
        lease_s = lease.lease_ms / 1000
        # If this one fails, the next is soon: several fit into a lease.
        next_s = lease_s / (BEATS_PER_LEASE * 4)
        progress, lease.sent_s = lease.progress, self._loop.time()
        try:
            async with asyncio.timeout(max(ANSWER_S_MIN, lease_s / BEATS_PER_LEASE)):
                changed = progress if progress != lease.sent_progress else None
                await self._backend.heartbeat(lease.job, lease.lease_ms, changed)
            lease.sent_progress = progress
            next_s = lease_s / BEATS_PER_LEASE
        except (Refused, NotFound) as refusal:
            self._refused(key, refusal.code)
        except Unauthenticated as refusal:
            log.warning("a heartbeat was refused: %s", refusal)
            self._lost("", refusal.code)
        except (CodeqError, TimeoutError) as fault:
            log.warning("a heartbeat failed: %s", str(fault) or "no answer")
        finally:
            del self._beating[key]
            lease.due_s = self._loop.time() + next_s
            self._start_beats()
