"""The priority queue: a Redis sorted set with locks, true delays and recovery of what dead workers held."""

import asyncio
import logging
import math
import socket
import uuid
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Self

from codeq.domain.errors import InvalidRequest
from codeq.priority.connection import Client, RedisConnection
from codeq.priority.errors import LockLost
from codeq.priority.keys import QueueKeys
from codeq.priority.tasks import (
    Claimed,
    Corrupted,
    TaskPriority,
    check_priority,
    check_task_id,
    corrupted,
    priority_of,
)

LOCK_TTL_S = 300.0
LOOK_EVERY_S = 1.0
"""How long a waiting call trusts that it is woken: whoever took the wake-up may have died with it."""

AHEAD_MIN, AHEAD_MAX = 4, 64
"""How many next tasks a dequeue is told, since it must name the lock of the one it gets. More when others take them."""

_log = logging.getLogger("codeq.priority")


class PriorityQueue:
    """Tasks by priority, first in, first out inside one, for workers on any number of machines.

    A task that was enqueued is delivered until a worker completes it, at least once. Who works on it holds its lock.
    Every operation is one script: a crash leaves it done or not begun. An error of the connection means unknown: the
    operation may have been carried out.
    """

    def __init__(
        self,
        url_or_client: str | Client,
        *,
        prefix: str = "",
        hash_tag: str | None = None,
        lock_ttl_s: float = LOCK_TTL_S,
        worker: str | None = None,
        age_after_s: float | None = None,
        max_attempts: int | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """A `worker` has a name that no other has at the same time; the default is one.

        `now_ms` is for tests: without it every time is Redis's own, so that clocks of workers do not matter.
        """
        self.keys = QueueKeys(prefix, hash_tag)
        self.worker = _worker(worker)
        self._connection = RedisConnection(url_or_client, has_hash_tag=hash_tag is not None)
        self._lock_ms = _milliseconds("lock_ttl_s", lock_ttl_s, least=1)
        self._age_ms = "" if age_after_s is None else _milliseconds("age_after_s", age_after_s, least=0)
        if max_attempts is not None and not (type(max_attempts) is int and max_attempts >= 1):
            raise InvalidRequest(f"max_attempts is a whole number and at least 1, not {max_attempts!r:.60}")
        self._attempts_max = "" if max_attempts is None else max_attempts
        self._now_ms = now_ms
        self._claiming = asyncio.Lock()
        self._next: list[str] = []
        self._fresh: list[str] = []
        self._ahead = AHEAD_MIN

    async def enqueue(self, task_id: str, priority: int = TaskPriority.NORMAL) -> bool:
        """Adds the task. False if it was there already: it keeps its place, and a higher priority raises it."""
        arguments = (check_task_id(task_id), check_priority(priority))
        is_new = bool(await self._run("enqueue", *arguments))
        if is_new:
            self._remember(task_id)
            _log.info("enqueued task %s with priority %d", task_id, priority)
        else:
            _log.debug("task %s is queued already; priority %d raises it at most", task_id, priority)
        return is_new

    async def dequeue(self, wait: float = 0.0) -> Claimed | None:
        """Locks the best ready task for this worker, waiting for one up to `wait` seconds. None if there is none.

        A call that is cancelled returns its task to the queue.
        """
        if math.isnan(wait):
            raise InvalidRequest("wait is a number of seconds, not NaN")
        until_s = monotonic() + wait
        while True:
            claimed, idle_s = await self._claim_or_hand_back()
            left_s = until_s - monotonic()
            if claimed or left_s <= 0:
                return claimed
            await self._wait_for_wake(min(left_s, idle_s))

    async def renew(self, task_id: str | Claimed) -> None:
        """Extends the lock to its full time from now. Raises LockLost if this worker does not hold it."""
        await self._as_holder("renew", task_id, self._lock_ms)
        _log.debug("renewed the lock of task %s", task_id)

    async def complete(self, task_id: str | Claimed) -> None:
        """Ends the task: it is not delivered again. Raises LockLost if this worker does not hold its lock."""
        await self._as_holder("complete", task_id)
        _log.info("completed task %s", task_id)

    async def release_lock(self, task_id: str | Claimed, *, force: bool = False) -> bool:
        """Gives up the lock; the task returns to its place in the queue. False if nobody held the lock.

        Raises LockLost if another worker holds it; `force` takes it from whoever does.
        """
        answer = await self._as_holder("release", task_id, "1" if force else "")
        _log.info("released the lock of task %s" if answer else "task %s is not locked", task_id)
        return answer

    async def requeue_with_delay(
        self, task_id: str | Claimed, delay_seconds: float, priority: int | None = None
    ) -> None:
        """Gives up the lock; the task is ready again after the delay. Without a priority it keeps its own.

        Raises LockLost if this worker does not hold the lock.
        """
        delay_ms = _milliseconds("delay_seconds", delay_seconds, least=0)
        await self._as_holder("requeue", task_id, delay_ms, "" if priority is None else check_priority(priority))
        _log.info("requeued task %s with a delay of %s s", task_id, delay_seconds)

    async def queue_size(self, include_delayed: bool = False) -> int:
        """Returns how many tasks could be dequeued now, or with those that are delayed."""
        return int(await self._run("size", "1" if include_delayed else ""))

    async def is_locked(self, task_id: str | Claimed) -> bool:
        """Says whether somebody holds the lock. It may have changed when you read the answer."""
        name = _id_of(task_id)
        return bool(await self._run("is_locked", name, locks=[name]))

    async def recover(self) -> list[str]:
        """Returns the tasks of dead workers to the queue, all of them; `dequeue` does it too, some at each call."""
        recovered: list[str] = []
        while found := await self._run("recover"):
            recovered += (member.decode(errors="replace") for member in found)
        if recovered:
            _log.warning("recovered tasks whose locks had expired: %s", recovered)
        return recovered

    async def corrupted(self, limit: int = 100) -> list[Corrupted]:
        """Returns members that were found in the queue and are no tasks. They were set aside, not dropped."""
        return [corrupted(member, float(score)) for member, score in await self._members(self.keys.corrupted, limit)]

    async def dead(self, limit: int = 100) -> list[str]:
        """Returns ids of tasks that were delivered `max_attempts` times and not completed. `enqueue` revives one."""
        return [member.decode() for member, _ in await self._members(self.keys.dead, limit)]

    async def is_persistent(self) -> bool:
        """Says whether Redis writes an append-only file. Without one a crash of Redis loses what was queued."""
        return bool(await self._run("is_persistent"))

    async def close(self) -> None:
        """Closes the connections, if the queue was made from a URL. Locks stay until they expire."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _claim_or_hand_back(self) -> tuple[Claimed | None, float]:
        claiming = asyncio.ensure_future(self._claim())
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            claimed, _ = await claiming  # the script runs to its end in any case; its task must not be nobody's
            if claimed:
                await self._as_holder("release", claimed, "", "1")  # undelivered, so that it is no attempt
            raise

    async def _claim(self) -> tuple[Claimed | None, float]:
        """Returns a task, or how long nothing can become ready unless somebody enqueues."""
        options = (self.worker, self._lock_ms, self._age_ms, self._attempts_max)
        async with self._claiming:  # one call at a time knows what is next
            while True:
                expected = [*self._next, *self._fresh]
                self._fresh = []
                kind, *answer = await self._run("dequeue", *options, self._ahead, *expected, locks=expected)
                _report(answer[-1])
                if kind == b"empty":
                    _log.debug("nothing to dequeue")
                    self._next = []
                    return None, answer[0] / 1000 if answer[0] >= 0 else math.inf
                self._next = [task_id.decode(errors="replace") for task_id in answer[-2]]
                if kind == b"claimed":
                    self._ahead = max(AHEAD_MIN, self._ahead - 1)
                    return self._claimed(*answer[:4]), 0.0
                self._ahead = min(AHEAD_MAX, self._ahead * 2)

    def _claimed(self, task_id: bytes, score: bytes, attempts: int, fencing: int) -> Claimed:
        claimed = Claimed(
            task_id=task_id.decode(),
            priority=priority_of(float(score)),
            lock=f"{self.worker}:{fencing}",
            fencing=fencing,
            attempts=attempts,
        )
        _log.info("dequeued task %s (score %s, attempt %d)", claimed.task_id, score.decode(), attempts)
        return claimed

    async def _wait_for_wake(self, seconds: float) -> None:
        woken = await self._connection.pop_or_wait(self.keys.wake, min(seconds, LOOK_EVERY_S))
        if woken:
            self._remember(woken.decode(errors="replace"))

    def _remember(self, task_id: str) -> None:
        """Has the next dequeue declare the lock of a task that is new, and so may be the best one."""
        self._fresh = [*self._fresh[1 - AHEAD_MAX :], task_id]

    async def _as_holder(self, script: str, task: str | Claimed, *arguments: str | int) -> bool:
        """Runs a script of the lock's holder, known by its fencing number if the task itself is given."""
        task_id = _id_of(task)
        fencing = task.fencing if isinstance(task, Claimed) else ""
        answer = await self._run(script, self.worker, fencing, task_id, *arguments, locks=[task_id])
        if isinstance(answer, bytes):
            held_by = f"{answer.decode(errors='replace')} holds it" if answer else "it expired or was released"
            raise LockLost(f"{self.worker} does not hold the lock of task {task_id}: {held_by}")
        return bool(answer)

    async def _members(self, key: str, limit: int) -> list[tuple[bytes, bytes]]:
        if limit < 1:
            return []  # to Redis, -1 is the last member
        flat: list[Any] = await self._connection.send("ZRANGE", key, 0, limit - 1, "WITHSCORES", key=key)
        if flat and isinstance(flat[0], list):  # RESP3 answers pairs
            return [(member, score) for member, score in flat]
        return list(zip(flat[::2], flat[1::2], strict=True))

    async def _run(self, script: str, *arguments: str | int, locks: list[str] | None = None) -> Any:
        keys = (*self.keys.fixed, *map(self.keys.lock, locks or ()))
        now = "" if self._now_ms is None else self._now_ms()
        return await self._connection.run(script, keys, (now, *arguments))


def _worker(name: str | None) -> str:
    if name is None:
        return f"{socket.gethostname()}:{uuid.uuid4()}"
    if not name:
        raise InvalidRequest("a worker's name is not empty")
    return name


def _id_of(task: str | Claimed) -> str:
    return task.task_id if isinstance(task, Claimed) else check_task_id(task)


def _milliseconds(name: str, seconds: float, *, least: int) -> int:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not -1 < seconds < 10**9 or round(seconds * 1000) < least:
        raise InvalidRequest(f"{name} is {least} ms to 30 years, not {seconds!r:.60} s")
    return round(seconds * 1000)


def _report(notes: list[bytes]) -> None:
    for what, member in zip(notes[::2], notes[1::2], strict=True):
        level = logging.DEBUG if what in (b"parked", b"duplicate") else logging.WARNING
        _log.log(level, "%s: %s", what.decode(), member.decode(errors="backslashreplace"))
