"""What the application asks of a queue, and two queues that answer: `codeq.priority` on Redis, and the codeQ service.

The setting `CODE_REVIEW_QUEUE` chooses: `redis://127.0.0.1:6379/0`, or `http://127.0.0.1:8080` with CODEQ_TOKEN.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from msgspec import Struct
from redis.exceptions import RedisError

import codeq
from codeq.priority import LockLost, PriorityQueue, TaskPriority

from .reviews import Priority

COMMAND = "code_review"
CODEQ_PRIORITY = {Priority.HIGH: 9, Priority.NORMAL: 4}
"""codeQ has ten priorities; this leaves room above, between and below."""
CODEQ_ATTEMPTS = 100
"""The most that codeQ allows: the database counts the tries, and a task that the queue gave up would be a review that
nobody does."""


REVIEW_ID = re.compile(r"[0-9]{1,18}")
log = logging.getLogger(__name__)


class QueueDown(Exception):
    """The queue cannot be reached. Nothing is lost: try again."""


class ClaimLost(Exception):
    """The claim ran out and somebody else has the review, or may have it."""


class Claim(Struct, frozen=True):
    """A review that this worker has."""

    review_id: int
    fencing: int
    """Higher than that of every earlier claim of the same review."""
    handle: Any
    """What the queue needs to recognise the claim."""


class ReviewQueue(Protocol):
    """Reviews by their ids, the most urgent first. Every method raises QueueDown if the queue cannot be reached."""

    async def offer(self, review_id: int, priority: Priority) -> bool:
        """Enqueues the review. Returns False, and changes nothing, if the queue has it already."""
        ...

    async def claim(self, wait_s: float) -> Claim | None:
        """Takes the most urgent review and locks it. Waits for one, and returns None if there is none in time."""
        ...

    async def renew(self, claim: Claim) -> None:
        """Locks it for longer. Raises ClaimLost."""
        ...

    async def finish(self, claim: Claim) -> None:
        """Removes it from the queue. Raises ClaimLost."""
        ...

    async def retry(self, claim: Claim, delay_s: float) -> None:
        """Gives it back, to be claimed again after the delay. Raises ClaimLost."""
        ...

    async def close(self) -> None: ...


def open_queue(url: str, *, lock_s: float, worker: str | None = None) -> ReviewQueue:
    """Opens the queue at the address. Does not connect yet."""
    if url.startswith(("redis://", "rediss://", "unix://")):
        return RedisQueue(url, lock_s=lock_s, worker=worker)
    return CodeqQueue(url, lock_s=lock_s)


class RedisQueue:
    """`codeq.priority`: a sorted set in Redis."""

    def __init__(self, url: str, *, lock_s: float, worker: str | None = None) -> None:
        self._queue = PriorityQueue(url, prefix="codereview:", lock_ttl_s=lock_s, worker=worker)

    async def offer(self, review_id: int, priority: Priority) -> bool:
        with _redis_errors():
            return await self._queue.enqueue(str(review_id), TaskPriority(priority))

    async def claim(self, wait_s: float) -> Claim | None:
        with _redis_errors():
            task = await self._queue.dequeue(wait_s)
            if task is None or REVIEW_ID.fullmatch(task.task_id):
                return None if task is None else Claim(int(task.task_id), task.fencing, task)
            log.warning("removed from the queue, since it is no review: %s", task.task_id)
            await self._queue.complete(task)
        return None

    async def renew(self, claim: Claim) -> None:
        with _redis_errors():
            await self._queue.renew(claim.handle)

    async def finish(self, claim: Claim) -> None:
        with _redis_errors():
            await self._queue.complete(claim.handle)

    async def retry(self, claim: Claim, delay_s: float) -> None:
        with _redis_errors():
            await self._queue.requeue_with_delay(claim.handle, delay_s)

    async def close(self) -> None:
        await self._queue.close()


class CodeqQueue:
    """The codeQ service, through its SDK."""

    def __init__(self, url: str, *, lock_s: float, token: str | None = None) -> None:
        # Few tries per call: the relay and the worker repeat by themselves, and say so.
        self._client = codeq.AsyncClient(url, token, retry_for=2)
        self._lock_s = lock_s

    async def offer(self, review_id: int, priority: Priority) -> bool:
        with _codeq_errors():
            task = await self._client.enqueue(
                COMMAND,
                {"review": review_id},
                priority=CODEQ_PRIORITY[priority],
                max_attempts=CODEQ_ATTEMPTS,
                idempotency_key=f"review-{review_id}",  # the task of an earlier offer is found, and left as it is
            )
            if task.status is codeq.Status.FAILED:  # dead letters: it was delivered too often, and nobody ended it
                await self._client.replay(task.id)
            return not isinstance(task, codeq.ReplayedTask)

    async def claim(self, wait_s: float) -> Claim | None:
        with _codeq_errors():
            jobs = await self._client.claim(COMMAND, lease=self._lock_s, wait=wait_s)
        return Claim(jobs[0].payload["review"], jobs[0].holder.token or 0, jobs[0]) if jobs else None

    async def renew(self, claim: Claim) -> None:
        with _codeq_errors():
            await self._client.heartbeat(claim.handle, self._lock_s)

    async def finish(self, claim: Claim) -> None:
        with _codeq_errors():
            await self._client.complete(claim.handle)

    async def retry(self, claim: Claim, delay_s: float) -> None:
        with _codeq_errors():
            await self._client.nack(claim.handle, "a try failed; the review says why", delay=delay_s)

    async def close(self) -> None:
        await self._client.close()


@contextmanager
def _redis_errors() -> Iterator[None]:
    try:
        yield
    except LockLost as fault:
        raise ClaimLost(str(fault)) from fault
    except (RedisError, OSError) as fault:
        raise QueueDown(str(fault)) from fault


@contextmanager
def _codeq_errors() -> Iterator[None]:
    try:
        yield
    except _LOST as fault:
        raise ClaimLost(str(fault)) from fault
    except _DOWN as fault:
        raise QueueDown(str(fault)) from fault


_LOST = (
    codeq.errors.AlreadyFinal,
    codeq.errors.Cancelled,
    codeq.errors.NotFound,
    codeq.errors.NotInProgress,
    codeq.errors.NotOwner,
)
_DOWN = (
    codeq.errors.RateLimited,
    codeq.errors.StoreError,
    codeq.errors.Unavailable,
    codeq.errors.Unexpected,
    codeq.errors.Unreachable,
)
