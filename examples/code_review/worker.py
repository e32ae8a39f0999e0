"""Claims reviews, runs the reviewers, stores what they find. Start as many workers as there is work for."""

import asyncio
import logging
import signal
import sqlite3
from collections.abc import Sequence

from .database import ATTEMPTS_MAX, Database
from .git_changes import NotYet, Unreviewable, read_change
from .queues import Claim, ClaimLost, QueueDown, ReviewQueue, open_queue
from .reviewers import Reviewer, load_reviewers, review_all
from .reviews import Finding, Review, Status, now_ms
from .settings import Settings

CLAIM_WAIT_S = 2.0
"""How long a worker without work takes at most to notice that it should stop."""
PAUSE_S = 1.0
"""Between two tries to reach a queue or a database that does not answer."""
DELAY_S_MAX = 300.0
NOT_YET_ATTEMPTS_MAX = 60
"""Tries for commits that are not in the local repository yet: about four hours, for mirrors that are fetched slowly."""
ERROR_CHARS_MAX = 500
log = logging.getLogger(__name__)


async def run_worker(settings: Settings) -> None:
    """Works until SIGTERM or Ctrl-C. A review that has begun is finished first."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    queue = open_queue(settings.queue, lock_s=settings.lock_s)
    try:
        await Worker(settings, Database(settings.database), queue).run(stop)
    finally:
        await queue.close()


class Worker:
    """Does one review at a time. It may be killed at any moment: another worker claims what it had."""

    def __init__(
        self, settings: Settings, database: Database, queue: ReviewQueue, *, reviewers: Sequence[Reviewer] | None = None
    ) -> None:
        self._settings = settings
        self._database = database
        self._queue = queue
        self._reviewers = load_reviewers(settings.reviewers) if reviewers is None else reviewers

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                claim = await self._queue.claim(CLAIM_WAIT_S)
                if claim is not None:
                    await self.review(claim)
            except ClaimLost as fault:
                log.warning("another worker has the review by now: %s", fault)
            except (QueueDown, sqlite3.OperationalError) as fault:
                log.warning("the queue or the database does not answer: %s", fault)
                await asyncio.sleep(PAUSE_S)

    async def review(self, claim: Claim) -> None:
        """Does one claimed review. It ends in the database before it leaves the queue, so a crash between the two
        leaves a claim of a review that has ended; `begin` recognises it."""
        review = await asyncio.to_thread(self._database.begin, claim.review_id, claim.fencing, now_ms())
        if review is None:
            log.info("review %d has ended, or another worker has it", claim.review_id)
            await self._queue.finish(claim)
            return
        try:
            findings = await self._find(claim, review)
        except ClaimLost:
            raise
        except Exception as fault:  # noqa: BLE001 - a reviewer may raise anything; it costs its review one try
            await self._put_back(claim, review, fault)
            return
        if await asyncio.to_thread(self._database.store, review, findings, now_ms()):
            log.info("review %d, %s: %d findings", review.id, review.title, len(findings))
        await self._queue.finish(claim)

    async def _find(self, claim: Claim, review: Review) -> list[Finding]:
        """Runs the reviewers in a thread, and renews the claim meanwhile. Raises ClaimLost as soon as that fails."""
        renewing = asyncio.create_task(self._renew(claim))
        work = asyncio.create_task(asyncio.to_thread(self._run_reviewers, review))
        try:
            await asyncio.wait({renewing, work}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else renewing.result()
        finally:
            renewing.cancel()

    def _run_reviewers(self, review: Review) -> list[Finding]:
        return review_all(self._reviewers, read_change(self._settings.repositories, review))

    async def _renew(self, claim: Claim) -> list[Finding]:
        while True:
            await asyncio.sleep(self._settings.lock_s / 3)
            try:
                await self._queue.renew(claim)
            except QueueDown as fault:
                log.warning("review %d cannot be renewed: %s", claim.review_id, fault)

    async def _put_back(self, claim: Claim, review: Review, fault: Exception) -> None:
        """Ends a failed try: in the database first, so that the outbox knows of it even if the queue is down."""
        log.warning("review %d, try %d failed: %s", review.id, review.attempts, fault)
        delay_s = min(DELAY_S_MAX, self._settings.retry_s * 2 ** min(review.attempts - 1, 20))
        again_ms = now_ms() + round((delay_s + self._settings.offer_again_s) * 1000)
        error = (str(fault) or type(fault).__name__)[:ERROR_CHARS_MAX]
        attempts_max = ATTEMPTS_MAX
        if isinstance(fault, Unreviewable | NotYet):
            attempts_max = 0 if isinstance(fault, Unreviewable) else NOT_YET_ATTEMPTS_MAX
        status = await asyncio.to_thread(
            lambda: self._database.put_back(
                review, error, now_ms=now_ms(), again_ms=again_ms, attempts_max=attempts_max
            )
        )
        if status is Status.WAITING:
            await self._queue.retry(claim, delay_s)
        else:
            await self._queue.finish(claim)
