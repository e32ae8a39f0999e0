"""Reports ended jobs to the queue: results in batches, the others one by one, repeated until the queue answers."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Protocol, TypeVar

from codeq.domain.errors import CodeqError, InvalidRequest, NotFound, Refused
from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.domain.requests import Outcome
from codeq.domain.task import Status
from codeq.sdk.backend import Backend
from codeq.sdk.worker.execution import outcome_of_error
from codeq.sdk.worker.health import CommandCounts, Counts
from codeq.sdk.worker.heartbeat import Heartbeater
from codeq.sdk.worker.hooks import Failure, Hook, HookRunner
from codeq.sdk.worker.outcomes import JobOutcome, OutcomeKind
from codeq.sdk.worker.pool import InFlightJob, InFlightJobs
from codeq.sdk.worker.running_job import RunningJob, as_current
from codeq.wire.errors import Forbidden, NoRoute, TooLarge, Unexpected, WrongMedia, WrongMethod

log = logging.getLogger("codeq.worker")

RESULT_BYTES_AT_ONCE = 8 << 20
RELEASES_AT_ONCE = 16
RETRY_S = 1.0
UNEXPECTED_MAX = 5
"""So often a call is repeated after an unexpected answer: it must not delay the results of other jobs for ever."""

_COMPLETE, _FAIL, _RETRY, _ABANDON = OutcomeKind.COMPLETE, OutcomeKind.FAIL, OutcomeKind.RETRY, OutcomeKind.ABANDON
_DROP = OutcomeKind.DROP
_STATUS = {_COMPLETE: Status.COMPLETED, _FAIL: Status.FAILED}
_FINAL = (InvalidRequest, TooLarge, Refused, NotFound, Forbidden, NoRoute, WrongMethod, WrongMedia)
"""A repeated call would be answered the same."""

EndedJob = tuple[InFlightJob, JobOutcome]
T = TypeVar("T")


class HasHooks(Protocol):
    """A worker, as its completer sees it."""

    failure_hooks: list[Hook]
    death_hooks: list[Hook]


class Completer:
    """Reports outcomes of jobs until the queue acknowledges them."""

    def __init__(
        self,
        backend: Backend,
        heartbeater: Heartbeater,
        in_flight: InFlightJobs,
        reported: Callable[[], None],
        *,
        hooks: HookRunner,
        worker: HasHooks,
    ) -> None:
        """A job leaves `in_flight` when its handler has ended. `reported` is called then, and again when jobs have been
        reported."""
        self._backend = backend
        self._heartbeater = heartbeater
        self._in_flight = in_flight
        self._reported = reported
        self._hooks = hooks
        self._worker = worker
        self._ended: deque[EndedJob] = deque()
        self._has_ended = asyncio.Event()
        self._is_woken = False
        self._reporting = 0
        self._reports: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.counts = Counts()
        self._by_command: dict[str, CommandCounts] = {}
        self.running = self._loop.create_task(self._run())
        """Ends only with an error."""

    def by_command(self) -> dict[str, CommandCounts]:
        """What happened to the jobs of each command, and how long they took."""
        return self._by_command

    def ended(self, entry: InFlightJob, outcome: JobOutcome) -> None:
        """Reports the job with the next batch, unless its outcome has been decided. May be called from any thread."""
        entry.ended_s = monotonic()
        entry.is_ended = True
        self._ended.append((entry, outcome))
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the event loop has ended, and the worker with it
                self._loop.call_soon_threadsafe(self._wake)

    def report_now(self, batch: Sequence[EndedJob]) -> None:
        """Reports jobs whose outcome has been decided, without waiting for their handlers or for the current batch."""
        for entry, outcome in batch:
            self._tell(entry, outcome)
        task = self._loop.create_task(self._report(batch))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    @property
    def is_idle(self) -> bool:
        """Whether every ended job has been reported."""
        return not self._ended and not self._reporting

    async def close(self) -> None:
        """Ends without reporting what is left."""
        tasks = [self.running, *self._reports]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wake(self) -> None:
        self._is_woken = False
        self._has_ended.set()

    async def _run(self) -> None:
        while True:
            await self._has_ended.wait()
            self._has_ended.clear()
            while self._ended:
                await self._report(self._next_batch())

    def _next_batch(self) -> list[EndedJob]:
        batch: list[EndedJob] = []
        size = 0
        while self._ended and len(batch) < BATCH_TASKS_MAX and size < RESULT_BYTES_AT_ONCE:
            entry, outcome = self._ended.popleft()
            self._in_flight.remove(entry.key)
            if entry.decided_s:
                continue
            if outcome.kind is _DROP:  # nobody interrupted it
                fault = InterruptedError("the handler interrupted itself")
                outcome = outcome_of_error(entry.handler, entry.job, fault)
            self._tell(entry, outcome)
            batch.append((entry, outcome))
            size += len(outcome.result or b"")
        self._reported()
        return batch

    def _tell(self, entry: InFlightJob, outcome: JobOutcome) -> None:
        """Counts the outcome, and logs a failed try with its traceback, whether or not the queue can be reached."""
        counts = self._by_command.get(entry.job.command)
        if counts is None:
            counts = self._by_command[entry.job.command] = CommandCounts()
        counts.add(outcome, (entry.ended_s or monotonic()) - entry.started_s if entry.started_s else None)
        if outcome.error is not None:
            job = entry.job
            most = min(job.max_attempts, entry.handler.max_attempts or job.max_attempts)
            with as_current(RunningJob(job)):
                log.warning("attempt %d of %d of %s %s failed: %s", job.attempt, most, job.command, job.id,
                            outcome.error)  # fmt: skip
            self._hooks.call(self._worker.failure_hooks, _failure(entry, outcome, is_final=outcome.kind is _FAIL))

    async def _report(self, batch: Sequence[EndedJob]) -> None:
        """Returns once the queue has accepted or refused every outcome."""
        self._reporting += 1
        try:
            results = [ended for ended in batch if ended[1].kind is _COMPLETE or ended[1].kind is _FAIL]
            others = [ended for ended in batch if ended[1].kind is _RETRY or ended[1].kind is _ABANDON]
            if results:
                await self._submit(results)
            for start in range(0, len(others), RELEASES_AT_ONCE):
                await asyncio.gather(*[self._release(*ended) for ended in others[start : start + RELEASES_AT_ONCE]])
        finally:
            self._reporting -= 1
            self._heartbeater.release([entry.key for entry, _ in batch])
            self._reported()

    async def _submit(self, results: Sequence[EndedJob]) -> None:
        outcomes = [
            Outcome(
                task_id=entry.job.id,
                holder=entry.job.holder,
                status=_STATUS[outcome.kind],
                result=outcome.result,
                error=outcome.error,
                artifacts=entry.job.named_artifacts() if entry.job.attached else (),
            )
            for entry, outcome in results
        ]
        refusals: Sequence[CodeqError | None]
        try:
            refusals = await _until_answered(lambda: self._backend.submit(outcomes))
        except CodeqError as fault:
            if len(results) > 1:  # one bad result must not take the others with it
                for ended in results:
                    await self._submit([ended])
                return
            refusals = [fault]
        for (entry, outcome), refusal in zip(results, refusals, strict=True):
            if refusal is None:
                self.counts.completed += outcome.kind is _COMPLETE
                self.counts.failed += outcome.kind is _FAIL
            else:
                await self._refused(entry, outcome, refusal)

    async def _refused(self, entry: InFlightJob, outcome: JobOutcome, refusal: CodeqError) -> None:
        if isinstance(refusal, (InvalidRequest, TooLarge)) and outcome.result is not None:
            # The work may be done; its task can be replayed once the handler is mended.
            buried = JobOutcome(_RETRY, error=f"the result was refused: {refusal}", is_last=True)
            self._tell(entry, buried)
            await self._release(entry, buried)
            return
        self.counts.refused += 1
        if isinstance(refusal, (Refused, NotFound)):
            log.warning("the result of task %s came too late: %s", entry.job.id, refusal)
        else:
            log.error("the result of task %s cannot be reported: %s", entry.job.id, refusal)

    async def _release(self, entry: InFlightJob, outcome: JobOutcome) -> None:
        backend, job = self._backend, entry.job
        try:
            if outcome.kind is _RETRY:
                reason = outcome.error or ""
                released = await _until_answered(
                    lambda: backend.nack(job, outcome.delay_ms, reason, dead=outcome.is_last)
                )
                self.counts.retried += 1
                if released.is_dead:
                    self._died(entry, outcome)
            else:
                await _until_answered(lambda: backend.abandon(job, outcome.delay_ms or 0))
                self.counts.abandoned += 1
        except CodeqError as refusal:
            self.counts.refused += 1
            log.warning("task %s cannot be released: %s", job.id, refusal)

    def _died(self, entry: InFlightJob, outcome: JobOutcome) -> None:
        job = entry.job
        self._by_command[job.command].dead += 1
        with as_current(RunningJob(job)):
            log.error("%s %s is in the dead-letter queue after attempt %d: %s", job.command, job.id, job.attempt,
                      (outcome.error or "").partition("\n")[0])  # fmt: skip
        self._hooks.call(self._worker.death_hooks, _failure(entry, outcome, is_final=True))


def _failure(entry: InFlightJob, outcome: JobOutcome, *, is_final: bool) -> Failure:
    error, _, trace = (outcome.error or "").partition("\n")
    return Failure(job=entry.job, error=error, traceback=trace, is_final=is_final or outcome.is_last)


async def _until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats the call until the queue answers. While it is unreachable, leases may expire and others get the tasks."""
    unexpected = 0
    while True:
        try:
            return await call()
        except _FINAL:
            raise
        except CodeqError as fault:
            unexpected += isinstance(fault, Unexpected)
            if unexpected >= UNEXPECTED_MAX:
                raise
            log.warning("the queue cannot be reached to report jobs: %s", fault)
            await asyncio.sleep(RETRY_S)
