"""How a task may move. One pure function per move; nothing else in codeQ decides a status.

    (new)                --enqueue-->  PENDING
    PENDING              --promote-->  PENDING
    PENDING              --claim-->    IN_PROGRESS
    PENDING              --cancel-->   CANCELLED
    IN_PROGRESS          --complete--> COMPLETED
    IN_PROGRESS          --fail-->     FAILED
    IN_PROGRESS          --nack-->     PENDING | FAILED
    IN_PROGRESS          --expire-->   PENDING | FAILED
    IN_PROGRESS          --abandon-->  PENDING | FAILED
    IN_PROGRESS          --cancel-->   CANCELLED
    FAILED               --replay-->   PENDING
    COMPLETED            --purge-->    (gone)
    FAILED               --purge-->    (gone)
    CANCELLED            --purge-->    (gone)

A heartbeat extends a lease and changes nothing else, so it is a move without an event. A task that is FAILED
by nack, expire or abandon is dead: it is in the dead-letter queue, and only such a task can be replayed.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from codeq.domain.artifacts import Artifact, join_result
from codeq.domain.errors import (
    AlreadyFinal,
    Cancelled,
    NotDead,
    NotFinal,
    NotFound,
    NotInProgress,
    NotOwner,
    StaleTask,
)
from codeq.domain.queue import EffectivePolicy, Index, is_system
from codeq.domain.requests import NewTask
from codeq.domain.task import Body, Change, Holder, Move, Status, Task

MAX_ATTEMPTS: Final = "MAX_ATTEMPTS"
MAX_DELIVERIES: Final = "MAX_DELIVERIES"
LEASE_EXPIRED: Final = "LEASE_EXPIRED"

# Reading an enum member costs five times as much as reading a module-level name, and moves do little else.
_PENDING, _IN_PROGRESS, _COMPLETED, _FAILED, _CANCELLED = Status
(_ENQUEUE, _CLAIM, _COMPLETE, _FAIL, _NACK, _EXPIRE, _ABANDON, _PROMOTE, _CANCEL, _REPLAY, _PURGE, _HEARTBEAT) = Move
_AT_PENDING, _AT_DELAYED, _AT_IN_PROGRESS, _AT_DEAD, _AT_NONE = Index


def enqueue(new: NewTask, task_id: str, tenant: str, *, now_ms: int, policy: EffectivePolicy) -> Change:
    """Makes a pending or delayed task of what the producer sent, under the policy of its queue."""
    due_ms = now_ms + new.delay_ms if new.run_at_ms is None else new.run_at_ms
    trace = new.trace_parent
    task = Task(
        task_id, tenant, new.command, new.priority, _PENDING, 0, 0, _ENQUEUE, None, now_ms, now_ms,
        due_ms if due_ms > now_ms else 0, 0, new.max_attempts or policy.max_attempts, 0, policy.max_deliveries,
        0, None, 0, None, None, 0, 0, len(new.payload), trace[3:35] if trace else None, new.backoff,
        new.webhook is not None,
    )  # fmt: skip
    body = Body(new.payload, new.idempotency_key, new.webhook, trace, new.trace_state)
    return Change(_ENQUEUE, None, task, body)


def promote(task: Task, now_ms: int) -> Change:
    """Makes a delayed task visible once `visible_ms` has passed."""
    if task.status is not _PENDING or not task.visible_ms or task.visible_ms > now_ms:
        raise StaleTask(f"task {task.id} is not due for promotion")
    return Change(_PROMOTE, task, _moved(task, _PROMOTE, now_ms, status=_PENDING))


def claim(task: Task, worker: str, now_ms: int, *, lease_ms: int, worker_name: str | None = None) -> Change:
    """Leases a visible task to a worker, under a lease token higher than any before. Later moves keep the name."""
    if task.status is not _PENDING or task.visible_ms:
        raise StaleTask(f"task {task.id} is not ready to be claimed")
    after = _moved(
        task, _CLAIM, now_ms, status=_IN_PROGRESS, deliveries=task.deliveries + 1, lease_token=task.lease_token + 1,
        worker=worker, lease_until_ms=now_ms + lease_ms, worker_name=worker_name,
    )  # fmt: skip
    return Change(_CLAIM, task, after)


def heartbeat(task: Task, holder: Holder, now_ms: int, *, lease_ms: int, progress: str | None = None) -> Change:
    """Extends the lease to `lease_ms` from now, and records the progress. Never shortens a lease, adds no event."""
    check_held(task, holder)
    until_ms = max(task.lease_until_ms, now_ms + lease_ms)
    return Change(_HEARTBEAT, task, _extended(task, until_ms, progress or task.progress))


def complete(
    task: Task,
    holder: Holder,
    now_ms: int,
    *,
    retention_ms: int,
    result: bytes | None = None,
    artifacts: Sequence[Artifact] = (),
) -> Change:
    """Ends the task with success."""
    check_held(task, holder)
    # The last worker and token stay on the record: they distinguish a repeated submit from a late one.
    after = _moved(
        task, _COMPLETE, now_ms, status=_COMPLETED, worker=task.worker, ended_ms=now_ms, purge_ms=now_ms + retention_ms
    )
    change = Change(_COMPLETE, task, after, None, result)
    return _with_artifacts(change, artifacts) if artifacts else change


def fail(
    task: Task,
    holder: Holder,
    now_ms: int,
    *,
    error: str,
    retention_ms: int,
    result: bytes | None = None,
    artifacts: Sequence[Artifact] = (),
) -> Change:
    """Ends the task by the worker's decision. It is not retried and not dead-lettered."""
    check_held(task, holder)
    after = _moved(
        task, _FAIL, now_ms, status=_FAILED, worker=task.worker, error=error, last_error=error,
        ended_ms=now_ms, purge_ms=now_ms + retention_ms,
    )  # fmt: skip
    change = Change(_FAIL, task, after, None, result)
    return _with_artifacts(change, artifacts) if artifacts else change


def nack(
    task: Task, holder: Holder, now_ms: int, *, retry_ms: int, reason: str, retention_ms: int, is_last: bool = False
) -> Change:
    """Counts a failed delivery: retries after `retry_ms`, or dead-letters at the limit or if `is_last`."""
    check_held(task, holder)
    return _retry_or_dead_letter(
        _NACK, task, now_ms, failed=1, retry_ms=retry_ms, reason=reason, retention_ms=retention_ms, is_last=is_last
    )


def expire(task: Task, now_ms: int, *, retry_ms: int, retention_ms: int) -> Change:
    """Ends an expired lease: retries or dead-letters the task. Counts like a nack."""
    if task.status is not _IN_PROGRESS or task.lease_until_ms > now_ms:
        raise StaleTask(f"the lease of task {task.id} has not expired")
    return _retry_or_dead_letter(
        _EXPIRE, task, now_ms, failed=1, retry_ms=retry_ms, reason=LEASE_EXPIRED, retention_ms=retention_ms
    )


def abandon(task: Task, holder: Holder, now_ms: int, *, retention_ms: int, retry_ms: int = 0) -> Change:
    """Returns the task to the back of its queue, at once or after `retry_ms`, without counting an attempt."""
    check_held(task, holder)
    return _retry_or_dead_letter(
        _ABANDON, task, now_ms, failed=0, retry_ms=retry_ms, reason=None, retention_ms=retention_ms
    )


def cancel(task: Task, now_ms: int, *, retention_ms: int) -> Change:
    """Cancels a task that has not ended. A worker that holds it is refused at its next call."""
    if task.status.is_final:
        raise AlreadyFinal(f"task {task.id} is {task.status} and cannot be cancelled")
    after = _moved(
        task, _CANCEL, now_ms, status=_CANCELLED, worker=task.worker,
        ended_ms=now_ms, purge_ms=now_ms + retention_ms,
    )  # fmt: skip
    return Change(_CANCEL, task, after)


def replay(task: Task, now_ms: int) -> Change:
    """Returns a dead task to its queue with a fresh set of attempts. Its history and its lease tokens continue."""
    _check_dead(task)
    after = _moved(task, _REPLAY, now_ms, status=_PENDING, attempts=0, deliveries=0)
    return Change(_REPLAY, task, after)


def purge(task: Task, now_ms: int) -> Change:
    """Deletes an ended task. The change is its last event; record, body, result and idempotency key are deleted."""
    if not task.status.is_final:
        raise NotFinal(f"task {task.id} is {task.status} and cannot be purged")
    after = _moved(
        task, _PURGE, now_ms, status=task.status, worker=task.worker, error=task.error,
        ended_ms=task.ended_ms, purge_ms=task.purge_ms,
    )  # fmt: skip
    if task.artifacts:
        after = replace(after, artifacts=task.artifacts, artifact_bytes=task.artifact_bytes)
    return Change(_PURGE, task, after)


def purge_dead(task: Task, now_ms: int) -> Change:
    """Deletes a dead task, as `purge`; refuses any other."""
    _check_dead(task)
    return purge(task, now_ms)


def ends_with_webhook(change: Change) -> bool:
    """Returns whether the change ends a task whose producer wants to be called back."""
    after, before = change.after, change.before
    return after.has_webhook and after.status.is_final and before is not None and not before.status.is_final


def is_repeat(task: Task, holder: Holder, status: Status) -> bool:
    """Returns whether a submit with this status is the one that already ended the task, sent again."""
    ended_by_worker = task.move is _COMPLETE or task.move is _FAIL
    return ended_by_worker and task.status is status and _is_holder(task, holder)


def is_nack_repeat(task: Task, holder: Holder) -> bool:
    """Returns whether a nack is the one that ended the last delivery, sent again.

    Besides a nack, an expiry precedes a promotion, and it leaves its reason. Where a nack without a reason left the
    reason of an expiry before it, its repeat is not recognized after the promotion, and is refused. A nack after an
    abandon with a delay, by the same holder, is taken for a repeat once the task is promoted: it changes nothing.
    """
    was_nacked = task.move is _NACK or (task.move is _PROMOTE and task.last_error != LEASE_EXPIRED)
    return was_nacked and _was_last_holder(task, holder)


def is_abandon_repeat(task: Task, holder: Holder) -> bool:
    """Returns whether an abandon is the one that ended the last delivery, sent again."""
    return task.move is _ABANDON and _was_last_holder(task, holder)


def position(task: Task) -> Index:
    """Returns the index that the task belongs in. Engines place tasks by this and by nothing else."""
    status = task.status
    if status is _IN_PROGRESS:
        return _AT_IN_PROGRESS
    if status is _PENDING:
        return _AT_DELAYED if task.visible_ms else _AT_PENDING
    return _AT_DEAD if status is _FAILED and task.is_dead else _AT_NONE


def with_grace(task: Task, least_ms: int) -> Task:
    """Returns the task with a lease until `least_ms` or later: workers could not reach a store that was down."""
    if task.lease_until_ms >= least_ms:
        return task
    return _extended(task, least_ms, task.progress)


def _retry_or_dead_letter(
    move: Move,
    task: Task,
    now_ms: int,
    *,
    failed: int,
    retry_ms: int,
    reason: str | None,
    retention_ms: int,
    is_last: bool = False,
) -> Change:
    attempts = task.attempts + failed
    verdict = None
    if is_last or attempts >= task.max_attempts:
        verdict = MAX_ATTEMPTS
    elif task.deliveries >= task.max_deliveries:
        verdict = MAX_DELIVERIES
    if verdict:
        after = _moved(
            task, move, now_ms, status=_FAILED, attempts=attempts, worker=task.worker, error=verdict,
            last_error=reason, ended_ms=now_ms, purge_ms=now_ms + retention_ms,
        )  # fmt: skip
    else:
        visible_ms = now_ms + retry_ms if retry_ms > 0 else 0
        after = _moved(task, move, now_ms, status=_PENDING, attempts=attempts, visible_ms=visible_ms, last_error=reason)
    return Change(move, task, after)


def _moved(  # noqa: PLR0917 - see below
    task: Task,
    move: Move,
    now_ms: int,
    status: Status,
    visible_ms: int = 0,
    attempts: int | None = None,
    deliveries: int | None = None,
    lease_token: int | None = None,
    worker: str | None = None,
    lease_until_ms: int = 0,
    error: str | None = None,
    last_error: str | None = None,
    ended_ms: int = 0,
    purge_ms: int = 0,
    worker_name: str | None = None,
) -> Task:
    """Returns the task after a move. Fields not passed keep their value if fixed for life, and are cleared otherwise;
    the name of the last worker stays until the next delivery.

    This and `enqueue` write a task out by position: by name it takes a microsecond more, a twentieth of a task's whole
    way through the engine. The name is given by name: Python builds a list for a call with more than 30 arguments. And
    no parameter is keyword-only, though all are given by name: Python looks up the default of each such one by name.
    """
    t = task
    return Task(
        t.id, t.tenant, t.command, t.priority, status, 0, t.version, move, t.status, t.created_ms, now_ms, visible_ms,
        t.attempts if attempts is None else attempts, t.max_attempts,
        t.deliveries if deliveries is None else deliveries, t.max_deliveries,
        t.lease_token if lease_token is None else lease_token, worker, lease_until_ms, error,
        last_error or t.last_error, ended_ms, purge_ms, t.payload_bytes, t.trace_id, t.backoff, t.has_webhook,
        worker_name=t.worker_name if lease_token is None else worker_name,
    )  # fmt: skip


def _with_artifacts(change: Change, artifacts: Sequence[Artifact]) -> Change:
    """Adds the files of a result, which become visible with it."""
    size = sum([artifact.size for artifact in artifacts])
    after = replace(change.after, artifacts=len(artifacts), artifact_bytes=size)
    return replace(change, after=after, result=join_result(change.result, artifacts))


def _extended(task: Task, until_ms: int, progress: str | None) -> Task:
    return replace(task, lease_until_ms=until_ms, progress=progress)


def check_known(task: Task, holder: Holder) -> None:
    """Refuses workers at tasks of the system's queues, as if there were none: who may read them is not for workers."""
    if not holder.is_server and is_system(task.command):
        raise NotFound(f"there is no task {task.id!r}")


def check_held(task: Task, holder: Holder) -> None:
    """Refuses whoever does not hold the lease of the task."""
    if task.status is _IN_PROGRESS and _is_holder(task, holder):
        return
    check_known(task, holder)
    if task.status is _IN_PROGRESS:
        raise NotOwner(f"task {task.id} is leased to another worker or under a newer token")
    if task.status is _CANCELLED:
        raise Cancelled(f"task {task.id} was cancelled; stop working on it")
    if task.status.is_final and not _is_holder(task, holder):
        raise NotOwner(f"task {task.id} was ended by another delivery")
    raise NotInProgress(f"task {task.id} is {task.status}, not in progress")


def _check_dead(task: Task) -> None:
    if not task.is_dead:
        raise NotDead(f"task {task.id} is {task.status}, not in the dead-letter queue")


def _is_holder(task: Task, holder: Holder) -> bool:
    """Returns whether the delivery is the holder's by name and token, and the task one that it may hold."""
    token = holder.token
    is_named = task.worker == holder.worker and (token is None or token == task.lease_token)
    return is_named and (holder.is_server or not is_system(task.command))


def _was_last_holder(task: Task, holder: Holder) -> bool:
    """Returns whether the last delivery was this holder's. A pending task has no worker, so only the token tells."""
    has_token = bool(holder.token) and holder.token == task.lease_token
    may_hold = holder.is_server or not is_system(task.command)
    return has_token and may_hold and (task.worker is None or task.worker == holder.worker)
