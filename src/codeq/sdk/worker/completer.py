"""What the queue is told of jobs that ended: results together, the rest one by one, again and again until it hears."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from codeq.domain.errors import CodeqError, InvalidRequest, NotFound, Refused
from codeq.domain.requests import Outcome
from codeq.domain.task import Status
from codeq.sdk.backend import Backend
from codeq.sdk.worker.execution import JobOutcome, OutcomeKind
from codeq.sdk.worker.health import Counts
from codeq.wire.errors import Forbidden, NoRoute, TooLarge, Unexpected, WrongMedia, WrongMethod

log = logging.getLogger("codeq.worker")

GIVING_BACK_AT_ONCE = 16
AGAIN_S = 1.0
ODD_MAX = 5
"""So often an answer that nobody foresaw is asked for again: it must not keep the results of other tasks waiting."""

_COMPLETE, _FAIL, _RETRY, _ABANDON = OutcomeKind.COMPLETE, OutcomeKind.FAIL, OutcomeKind.RETRY, OutcomeKind.ABANDON
_STATUS = {_COMPLETE: Status.COMPLETED, _FAIL: Status.FAILED}
_FINAL = (InvalidRequest, TooLarge, Refused, NotFound, Forbidden, NoRoute, WrongMethod, WrongMedia)
"""Asking again would be answered the same."""

Answer = TypeVar("Answer")


class Completer:
    def __init__(self, backend: Backend, counts: Counts) -> None:
        self._backend = backend
        self._counts = counts

    async def tell(self, batch: Sequence[JobOutcome]) -> None:
        """Returns once the queue has heard of all, or has said that it does not want to."""
        results = [ended for ended in batch if ended.end is _COMPLETE or ended.end is _FAIL]
        others = [ended for ended in batch if ended.end is _RETRY or ended.end is _ABANDON]
        if results:
            await self._submit(results)
        for start in range(0, len(others), GIVING_BACK_AT_ONCE):
            await asyncio.gather(*[self._give_back(ended) for ended in others[start : start + GIVING_BACK_AT_ONCE]])

    async def _submit(self, results: Sequence[JobOutcome]) -> None:
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
        refusals: Sequence[CodeqError | None]
        try:
            refusals = await _insist(lambda: self._backend.submit(outcomes))
        except CodeqError as fault:
            if len(results) > 1:  # one bad result must not take the others with it
                for ended in results:
                    await self._submit([ended])
                return
            refusals = [fault]
        for ended, refusal in zip(results, refusals, strict=True):
            if refusal is None:
                self._counts.completed += ended.end is _COMPLETE
                self._counts.failed += ended.end is _FAIL
            else:
                await self._refused(ended, refusal)

    async def _refused(self, ended: JobOutcome, refusal: CodeqError) -> None:
        if isinstance(refusal, (InvalidRequest, TooLarge)) and ended.result is not None:
            # Without the result the end can still be told.
            await self._submit([JobOutcome(ended.job, _FAIL, None, f"the result was refused: {refusal}")])
            return
        self._counts.refused += 1
        if isinstance(refusal, (Refused, NotFound)):
            log.warning("the result of task %s came too late: %s", ended.job.id, refusal)
        else:
            log.error("the end of task %s cannot be told: %s", ended.job.id, refusal)

    async def _give_back(self, ended: JobOutcome) -> None:
        backend, job = self._backend, ended.job
        try:
            if ended.end is _RETRY:
                reason = ended.error or ""
                await _insist(lambda: backend.nack(job, ended.delay_ms, reason, dead=ended.is_last))
                self._counts.retried += 1
                log.info("a try of task %s failed: %s", job.id, reason)
            else:
                await _insist(lambda: backend.abandon(job))
                self._counts.abandoned += 1
        except CodeqError as refusal:
            self._counts.refused += 1
            log.warning("task %s cannot be given back: %s", job.id, refusal)


async def _insist(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Call until there is an answer. While the queue is away the jobs stay held, and others may get them."""
    odd = 0
    while True:
        try:
            return await call()
        except _FINAL:
            raise
        except CodeqError as fault:
            odd += isinstance(fault, Unexpected)
            if odd >= ODD_MAX:
                raise
            log.warning("the queue cannot be told yet: %s", fault)
            await asyncio.sleep(AGAIN_S)
