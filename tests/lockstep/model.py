"""A second, simple implementation of the rules of the queue (domain/lifecycle.py): a dictionary of tasks.

It shares only terms and error types with the product. A move by an operator returns the error that the call must
raise, or None after it has changed the model as the call must change the store; `refusal` returns the same for workers.
The model does not invent an order: a task that becomes pending gets the number of the event that made it pending,
which is what "first in" means.
"""

from collections.abc import Container
from dataclasses import dataclass, field

from codeq.domain import errors
from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.queue import Index, OnExpiry, QueueKey, QueuePolicy
from codeq.domain.task import Holder, Move, Status

BACKOFF_MS, LEASE_MS, KEEP_MS, KEEP_DEAD_MS, MAX_DELIVERIES, MAX_ATTEMPTS, FEW = 5_000, 10_000, 60_000, 90_000, 4, 3, 2

DEFAULTS = QueuePolicy(
    max_attempts=MAX_ATTEMPTS,
    max_deliveries=MAX_DELIVERIES,
    lease_ms=LEASE_MS,
    backoff=Backoff(BackoffKind.FIXED, BACKOFF_MS),
    retention_ms=KEEP_MS,
    dead_retention_ms=KEEP_DEAD_MS,
)

PLAIN, NOW, LIMITED = "plain", "now", "limited"
COMMANDS = (PLAIN, NOW, LIMITED)
"""One with the defaults, one whose expired leases are retried at once, one with few consumers."""

FINAL = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
Failure = type[errors.CodeqError] | None


def policy_of(command: str) -> QueuePolicy:
    """The rules in which the command differs from the defaults."""
    if command == NOW:
        return QueuePolicy(on_expiry=OnExpiry.IMMEDIATE)
    return QueuePolicy(max_consumers=FEW) if command == LIMITED else QueuePolicy()


@dataclass
class ModelTask:
    id: str
    tenant: str
    command: str
    priority: int
    payload: bytes
    key: str | None
    max_attempts: int
    visible_ms: int
    status: Status = Status.PENDING
    attempts: int = 0
    deliveries: int = 0
    token: int = 0
    worker: str | None = None
    lease_ms: int = 0
    saved_lease_ms: int = 0
    """The least lease that a restart must restore: heartbeats are written lazily, by sweeps."""
    dead: bool = False
    ended_by_worker: bool = False
    released_by: Move | None = None
    """What ended the last delivery without a result, unless an operator has moved the task since."""
    result: bytes | None = None
    purge_ms: int = 0
    gone: bool = False
    line: int = 0
    """The number of the event that made it pending."""
    since_ms: int = 0
    """When it became pending."""

    @property
    def shard(self) -> int:
        return int(self.id[-4:], 16)

    @property
    def queue(self) -> QueueKey:
        return QueueKey(self.tenant, self.command)

    @property
    def index(self) -> Index:
        if self.status is Status.PENDING:
            return Index.DELAYED if self.visible_ms else Index.PENDING
        if self.status is Status.IN_PROGRESS:
            return Index.IN_PROGRESS
        return Index.DEAD if self.dead else Index.NONE

    def end(self, status: Status, now_ms: int, retention_ms: int) -> None:
        self.status, self.purge_ms, self.visible_ms, self.lease_ms = status, now_ms + retention_ms, 0, 0
        self.released_by = None

    def is_held_by(self, holder: Holder) -> bool:
        return self.worker == holder.worker and holder.token in (None, self.token)


@dataclass
class Model:
    tasks: dict[str, ModelTask] = field(default_factory=dict)
    keys: dict[tuple[str, str], str] = field(default_factory=dict)
    requests: dict[tuple[str, str, str | None], list[tuple[str, int]]] = field(default_factory=dict)
    """By tenant, worker and request id: the tasks of the last claim, with their tokens."""

    # -- state ---------------------------------------------------------------------------------------------------

    def kept(self) -> list[ModelTask]:
        return [task for task in self.tasks.values() if not task.gone]

    def at(self, index: Index) -> list[ModelTask]:
        return [task for task in self.kept() if task.index is index]

    def counts(self, tenant: str) -> dict[str, tuple[int, int, int, int]]:
        counted: dict[str, tuple[int, int, int, int]] = {}
        for command in COMMANDS:
            of_queue = [task.index for task in self.kept() if task.queue == (tenant, command)]
            row = tuple(of_queue.count(i) for i in (Index.PENDING, Index.DELAYED, Index.IN_PROGRESS, Index.DEAD))
            if any(row):
                counted[command] = row  # type: ignore[assignment]
        return counted

    def oldest_ms(self, queue: QueueKey) -> int | None:
        return min((task.since_ms for task in self.at(Index.PENDING) if task.queue == queue), default=None)

    def head(self, queue: QueueKey, shard: int) -> ModelTask | None:
        """Returns the next task of one queue and shard: the highest priority, and the first in it."""
        line = [task for task in self.at(Index.PENDING) if task.queue == queue and task.shard == shard]
        return min(line, key=lambda task: (-task.priority, task.line), default=None)

    def highest(self, queue: QueueKey) -> int:
        """Returns the highest priority that waits in the queue, over all shards; -1 if nothing does."""
        return max((task.priority for task in self.at(Index.PENDING) if task.queue == queue), default=-1)

    def room(self, queue: QueueKey) -> int:
        held = sum(task.queue == queue for task in self.at(Index.IN_PROGRESS))
        return FEW - held if queue.command == LIMITED else 1 << 30

    def claimable(self, queue: QueueKey) -> int:
        waiting = sum(task.queue == queue for task in self.at(Index.PENDING))
        return max(0, min(waiting, self.room(queue)))

    # -- time ----------------------------------------------------------------------------------------------------

    def promote(self, now_ms: int, queues: Container[QueueKey] | None = None) -> list[tuple[Move, str]]:
        """Promotes what is due in these queues; in all for None."""
        due = [
            task
            for task in self.at(Index.DELAYED)
            if task.visible_ms <= now_ms and (queues is None or task.queue in queues)
        ]
        for task in due:
            task.visible_ms = 0
        return [(Move.PROMOTE, task.id) for task in due]

    def expire(self, now_ms: int, queues: Container[QueueKey] | None = None) -> list[tuple[Move, str]]:
        """Ends the expired leases of these queues; of all for None, which also stores the extended ones."""
        held = self.at(Index.IN_PROGRESS)
        due = [task for task in held if task.lease_ms <= now_ms and (queues is None or task.queue in queues)]
        for task in held if queues is None else ():
            task.saved_lease_ms = task.lease_ms
        for task in due:
            self._delivery_failed(task, now_ms, 0 if task.command == NOW else BACKOFF_MS)
            task.released_by = Move.EXPIRE
        return [(Move.EXPIRE, task.id) for task in due]

    def purge_due(self, now_ms: int) -> list[tuple[Move, str]]:
        due = [task for task in self.kept() if task.status in FINAL and task.purge_ms <= now_ms]
        for task in due:
            self._forget(task)
        return [(Move.PURGE, task.id) for task in due]

    # -- workers -------------------------------------------------------------------------------------------------

    def claim(self, task: ModelTask, worker: str, now_ms: int, lease_ms: int) -> None:
        task.status, task.worker, task.released_by = Status.IN_PROGRESS, worker, None
        task.deliveries += 1
        task.token += 1
        task.lease_ms = task.saved_lease_ms = now_ms + lease_ms

    def asked_before(self, tenant: str, worker: str, request_id: str | None) -> list[ModelTask]:
        """Returns the tasks that an earlier claim with this request id still holds."""
        leased = self.requests.get((tenant, worker, request_id), ())
        found = [(self.tasks[task_id], token) for task_id, token in leased]
        return [task for task, token in found if task.status is Status.IN_PROGRESS and task.token == token]

    def refusal(self, task: ModelTask, tenant: str, holder: Holder) -> Failure:
        """Returns why a worker may not move the task, or None if it may."""
        if task.gone or task.tenant != tenant:
            return errors.NotFound
        if task.status is Status.IN_PROGRESS:
            return None if task.is_held_by(holder) else errors.NotOwner
        if task.status is Status.CANCELLED:
            return errors.Cancelled
        if task.status in FINAL and not task.is_held_by(holder):
            return errors.NotOwner
        return errors.NotInProgress

    def is_repeat(self, task: ModelTask, status: Status, tenant: str, holder: Holder) -> bool:
        known = not task.gone and task.tenant == tenant
        return known and task.ended_by_worker and task.status is status and task.is_held_by(holder)

    def is_release_repeat(self, task: ModelTask, move: Move, tenant: str, holder: Holder) -> bool:
        """Returns whether the nack or abandon is the one that ended the last delivery, by the same holder."""
        known = not task.gone and task.tenant == tenant
        return (
            known and task.released_by is move and task.token == holder.token and task.worker in (None, holder.worker)
        )

    def submit(self, task: ModelTask, status: Status, result: bytes | None, now_ms: int) -> None:
        task.end(status, now_ms, KEEP_MS)
        task.ended_by_worker, task.result = True, result

    def nack(self, task: ModelTask, delay_ms: int | None, now_ms: int) -> None:
        self._delivery_failed(task, now_ms, BACKOFF_MS if delay_ms is None else delay_ms)
        task.released_by = Move.NACK

    def abandon(self, task: ModelTask, now_ms: int) -> None:
        if task.deliveries >= MAX_DELIVERIES:
            self._bury(task, now_ms)
        else:
            self._back(task, now_ms, 0)
        task.released_by = Move.ABANDON

    # -- operators -----------------------------------------------------------------------------------------------

    def cancel(self, task: ModelTask, now_ms: int) -> Failure:
        if task.gone:
            return errors.NotFound
        if task.status in FINAL:
            return errors.AlreadyFinal
        task.end(Status.CANCELLED, now_ms, KEEP_MS)
        return None

    def replay(self, task: ModelTask) -> Failure:
        if task.gone:
            return errors.NotFound
        if not task.dead:
            return errors.NotDead
        task.status, task.dead, task.attempts, task.deliveries, task.worker = Status.PENDING, False, 0, 0, None
        task.purge_ms, task.released_by = 0, None
        return None

    def purge(self, task: ModelTask) -> Failure:
        if task.gone:
            return errors.NotFound
        if task.status not in FINAL:
            return errors.NotFinal
        self._forget(task)
        return None

    # -- shared --------------------------------------------------------------------------------------------------

    def _delivery_failed(self, task: ModelTask, now_ms: int, retry_ms: int) -> None:
        task.attempts += 1
        if task.attempts >= task.max_attempts or task.deliveries >= MAX_DELIVERIES:
            self._bury(task, now_ms)
        else:
            self._back(task, now_ms, retry_ms)

    def _back(self, task: ModelTask, now_ms: int, retry_ms: int) -> None:
        task.status, task.worker, task.lease_ms = Status.PENDING, None, 0
        task.visible_ms = now_ms + retry_ms if retry_ms else 0

    def _bury(self, task: ModelTask, now_ms: int) -> None:
        task.end(Status.FAILED, now_ms, KEEP_DEAD_MS)
        task.dead = True

    def _forget(self, task: ModelTask) -> None:
        task.gone = True
        if task.key is not None:
            del self.keys[task.tenant, task.key]
