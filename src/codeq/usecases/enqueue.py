"""Take tasks in. Each is on disk before it is acknowledged, and a repeated idempotency key answers the first one."""

from collections.abc import Sequence

from msgspec import Struct

from codeq.domain import lifecycle, validation
from codeq.domain.errors import CodeqError, IdempotencyMismatch, StoreFailed
from codeq.domain.ids import shard_for
from codeq.domain.requests import NewTask
from codeq.domain.task import Body, Change, Task
from codeq.usecases.core import Core, durable


class Enqueued(Struct, frozen=True, gc=False):
    task: Task
    body: Body
    is_replay: bool
    """The idempotency key was used before; `task` is the task that has it."""


@durable
async def enqueue(core: Core, tenant: str, orders: Sequence[NewTask]) -> list[Enqueued | CodeqError]:
    """Per order: the task, or why it was refused. One order's refusal leaves the others alone."""
    validation.batch([order.payload for order in orders], "tasks", "payload")
    validation.name(tenant, "tenant")
    now_ms = core.now_ms()
    answers: list[Enqueued | CodeqError | None] = [_refusal(order, now_ms) for order in orders]
    places = [place for place, refusal in enumerate(answers) if refusal is None]
    changes = _changes(core, tenant, [orders[place] for place in places])
    for place, change, stored in zip(places, changes, await core.store.commit(changes), strict=True):
        if stored is change.after and change.body is not None:
            answers[place] = Enqueued(stored, change.body, is_replay=False)
        else:
            answers[place] = await _replayed(core, change, stored)
    return [answer for answer in answers if answer is not None]


def _changes(core: Core, tenant: str, orders: Sequence[NewTask]) -> list[Change]:
    now_ms = core.now_ms()
    shards = core.store.shards
    homes = [
        None if order.idempotency_key is None else shard_for(tenant, order.idempotency_key, shards) for order in orders
    ]
    changes = []
    for task_id, order in zip(core.ids.mint(now_ms, shards, homes), orders, strict=True):
        policy = core.policy(tenant, order.command)
        trace = order.trace_parent
        task = lifecycle.new(
            task_id,
            tenant,
            order.command,
            now_ms=now_ms,
            priority=order.priority,
            visible_ms=now_ms + order.delay_ms if order.run_at_ms is None else order.run_at_ms,
            max_attempts=order.max_attempts or policy.max_attempts,
            max_deliveries=policy.max_deliveries,
            payload_bytes=len(order.payload),
            trace_id=trace[3:35] if trace else None,
            backoff=order.backoff,
            has_webhook=order.webhook is not None,
        )
        body = Body(order.payload, order.idempotency_key, order.webhook, trace, order.trace_state)
        changes.append(lifecycle.enqueue(task, body))
    return changes


async def _replayed(core: Core, change: Change, stored: Task | None) -> Enqueued | CodeqError:
    asked = change.after
    [record] = await core.store.get_records(asked.tenant, [stored.id]) if stored else [None]
    if record is None or change.body is None:
        return StoreFailed(f"the task that holds the idempotency key of {asked.id} cannot be read")
    if record.task.command != asked.command or record.body.payload != change.body.payload:
        return IdempotencyMismatch(
            f"idempotency key {record.body.idempotency_key!r} was used for task {record.task.id}, which has another "
            "command or payload; use a new key for a new task"
        )
    return Enqueued(record.task, record.body, is_replay=True)


def _refusal(order: NewTask, now_ms: int) -> CodeqError | None:
    try:
        validation.new_task(order, now_ms)
    except CodeqError as refusal:
        return refusal
    return None
