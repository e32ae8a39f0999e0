"""Claims jobs for one pool whenever it has room: a full pool keeps no job of another one waiting."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic, sleep

from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.domain.requests import Claim
from codeq.sdk.backend import Backend
from codeq.sdk.encoding import new_request_id
from codeq.sdk.jobs import Job
from codeq.sdk.worker.handler import PoolKind
from codeq.sdk.worker.heartbeat import Heartbeater
from codeq.sdk.worker.pool import InFlightJobs, Pool
from codeq.wire.errors import Forbidden, Unauthenticated

log = logging.getLogger("codeq.worker")

AHEAD_S = 0.1
"""How much work is claimed ahead: enough to fill batches when tasks are short, next to nothing when they are long."""
YIELD_LOCK_S = 1e-5


class ClaimState:
    """What the claimers of one worker share."""

    def __init__(self, backend: Backend, heartbeater: Heartbeater, in_flight: InFlightJobs) -> None:
        self.backend = backend
        self.heartbeater = heartbeater
        self.in_flight = in_flight
        self.changed = asyncio.Event()
        """Set whenever there may be room for more jobs."""
        self.is_stopping = asyncio.Event()
        self.answered_s = monotonic()
        self.was_answered = False
        self.is_cut_off = False
        """Whether the last claim failed."""
        self.is_all_done: Callable[[], bool] = lambda: False
        """For a worker that stops when it is idle: whether nothing is in flight and nothing is unreported."""
        self.turn = 0
        """Counts claims that returned jobs, and reports: either may have made tasks ready."""
        self.claimers: list[Claimer] = []

    @property
    def is_idle(self) -> bool:
        """Whether no claimer has found a job since the last turn."""
        return self.is_all_done() and all(claimer.empty_turn == self.turn for claimer in self.claimers)


class Claimer:
    """The claims of one pool."""

    def __init__(
        self,
        state: ClaimState,
        pool_name: str,
        pool: Pool,
        *,
        wanted: Claim,
        size: int,
        prefetch: int | None,
        dispatch: Callable[[Sequence[Job]], None],
        until_idle: bool,
    ) -> None:
        """`size` is how many jobs the pool executes at once, `prefetch` how many it may hold; by default about a tenth
        of a second's work."""
        self._state = state
        self.pool_name = pool_name
        self.pool = pool
        self._wanted = wanted
        self._size = size
        self._prefetch = prefetch
        self._dispatch = dispatch
        self._until_idle = until_idle
        self._ended = 0
        self.rate = 0.0
        self.began_s = 0.0
        """When the claim that is under way was sent; 0 while there is none."""
        self.empty_turn = -1
        state.claimers.append(self)

    @property
    def held(self) -> int:
        return self._state.in_flight.held[self.pool_name]

    @property
    def target(self) -> int:
        """How many jobs the pool should hold."""
        if self._prefetch is not None:
            return self._prefetch
        return max(self._size, min(round(self.rate * AHEAD_S), BATCH_TASKS_MAX))

    def tick(self, passed_s: float) -> None:
        """Measures how many jobs the pool ends in a second."""
        ended = self._state.in_flight.ended[self.pool_name]
        self.rate = 0.5 * self.rate + 0.5 * (ended - self._ended) / passed_s
        self._ended = ended

    async def run(self) -> None:
        """Claims until the worker stops, or with `until_idle` until no task is ready for any pool."""
        state = self._state
        pause_s = 0.0
        request_id: str | None = None
        while not state.is_stopping.is_set():
            if not self._until_idle:
                await state.heartbeater.ready()
            room = await self._room()
            self.began_s = monotonic()
            turn = state.turn
            try:
                if not pause_s:  # else the answer to the last claim was lost, with the jobs it may have had
                    request_id = new_request_id() if state.backend.client_options is not None else None
                jobs = await state.backend.claim(_claim(self._wanted, room, request_id))
            except CodeqError as fault:
                if self._is_permanent(fault):
                    raise
                pause_s = min(pause_s + 0.5, 5.0)
                log.warning("cannot claim, trying again in %.1f s: %s", pause_s, fault)
                self.began_s, state.is_cut_off = 0.0, True
                await asyncio.sleep(pause_s)
                continue
            self.began_s = pause_s = 0.0
            state.answered_s, state.was_answered, state.is_cut_off = monotonic(), True, False
            if jobs:
                state.turn += 1
                await state.heartbeater.ready()
                self._dispatch(jobs)
                if len(jobs) < room and self.pool_name == PoolKind.THREAD:
                    # The next claim will have to wait, so the handlers need the interpreter lock more.
                    sleep(YIELD_LOCK_S)  # noqa: ASYNC251 - blocks the loop on purpose, or it would keep the lock
            elif self._until_idle and await self._is_idle_after(turn):
                return

    async def _is_idle_after(self, turn: int) -> bool:
        """Whether the worker is idle, after a claim that found nothing. If not, waits until there may be a job."""
        state = self._state
        self.empty_turn = turn
        if state.is_idle:
            return True
        if turn == state.turn:  # else what was reported meanwhile may have put a task back
            state.changed.clear()
            await state.changed.wait()
        return False

    def _is_permanent(self, fault: CodeqError) -> bool:
        """Whether only another program can help, or another token instead of one that never worked."""
        return isinstance(fault, InvalidRequest) or (
            isinstance(fault, (Unauthenticated, Forbidden)) and not self._state.was_answered
        )

    async def _room(self) -> int:
        """How many jobs to claim, once that is worth a call: always while a handler could start at once."""
        while True:
            target = self.target
            room = target - self.held
            if room > 0 and (self.held < self._size or room >= target // 2):
                return min(room, BATCH_TASKS_MAX)
            self._state.changed.clear()
            await self._state.changed.wait()


def _claim(wanted: Claim, limit: int, request_id: str | None) -> Claim:
    return Claim(
        worker=wanted.worker,
        commands=wanted.commands,
        lease_ms=wanted.lease_ms,
        wait_ms=wanted.wait_ms,
        limit=limit,
        request_id=request_id,
        info=wanted.info,
    )
