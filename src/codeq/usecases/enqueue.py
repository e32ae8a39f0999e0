"""Stores new tasks. Each is on disk before it is acknowledged; a repeated idempotency key returns the first task."""

from collections.abc import Sequence

from msgspec import Struct

from codeq.domain import lifecycle, validation
from codeq.domain.errors import CodeqError, IdempotencyMismatch, StoreFailed
from codeq.domain.ids import shard_of_key
from codeq.domain.requests import NewTask
from codeq.domain.task import Body, Change, Task
from codeq.usecases.core import Core, durable


class Enqueued(Struct, frozen=True, gc=False):
    task: Task
    body: Body
    is_replay: bool
    """The idempotency key was used before; `task` is the task that has it."""


@durable
async def enqueue(core: Core, tenant: str, new_tasks: Sequence[NewTask]) -> list[Enqueued | CodeqError]:
    """Returns per new task: the task, or why it was refused. One refusal does not affect the others."""
    validation.batch([new_task.payload for new_task in new_tasks], "tasks", "payload")
    validation.name(tenant, "tenant")
    now_ms = core.store.now_ms()
    answers: list[Enqueued | CodeqError | None] = [_refusal(new_task, now_ms) for new_task in new_tasks]
    places = [place for place, refusal in enumerate(answers) if refusal is None]
    changes = _changes(core, tenant, [new_tasks[place] for place in places])
    for place, change, stored in zip(places, changes, await core.store.commit(changes), strict=True):
        if stored is change.after and change.body is not None:
            answers[place] = Enqueued(stored, change.body, is_replay=False)
        else:
            answers[place] = await _replayed(core, change, stored)
    return [answer for answer in answers if answer is not None]


def _changes(core: Core, tenant: str, new_tasks: Sequence[NewTask]) -> list[Change]:
    now_ms = core.store.now_ms()
    shards = core.store.shards
    shard_numbers = [
        None if key is None else shard_of_key(tenant, key, shards) for key in (new.idempotency_key for new in new_tasks)
    ]
    ids = core.ids.generate(now_ms, shards, shard_numbers)
    return [
        lifecycle.enqueue(new, task_id, tenant, now_ms=now_ms, policy=core.policy(tenant, new.command))
        for task_id, new in zip(ids, new_tasks, strict=True)
    ]


async def _replayed(core: Core, change: Change, stored: Task | None) -> Enqueued | CodeqError:
    wanted = change.after
    [record] = await core.store.get_records(wanted.tenant, [stored.id]) if stored else [None]
    if record is None or change.body is None:
        return StoreFailed(f"the task that holds the idempotency key of {wanted.id} cannot be read")
    if record.task.command != wanted.command or record.body.payload != change.body.payload:
        return IdempotencyMismatch(
            f"idempotency key {record.body.idempotency_key!r} was used for task {record.task.id}, which has another "
            "command or payload; use a new key for a new task"
        )
    return Enqueued(record.task, record.body, is_replay=True)


def _refusal(new_task: NewTask, now_ms: int) -> CodeqError | None:
    try:
        validation.new_task(new_task, now_ms)
    except CodeqError as refusal:
        return refusal
    return None
