"""Stores new tasks. Each is on disk before it is acknowledged; a repeated idempotency key returns the first task."""

import asyncio
from collections.abc import Awaitable, Sequence

from msgspec import Struct

from codeq.domain import lifecycle, validation
from codeq.domain.errors import CodeqError, IdempotencyMismatch, InvalidRequest, StoreCorrupt
from codeq.domain.ids import shard_of_key
from codeq.domain.json_values import same_value
from codeq.domain.limits import BATCH_BYTES_MAX
from codeq.domain.requests import NewTask
from codeq.domain.task import Body, Change, Task
from codeq.domain.tenants import UNLIMITED
from codeq.usecases.budget import LoopBudget, fit_into_piece, is_short, pieces
from codeq.usecases.core import Core, durable
from codeq.usecases.tenant_limits import all_fit, refusals

COMPARE_AT_ONCE_BYTES = 16 * 1024
"""Longer payloads are compared in turn: even this much takes a millisecond at worst."""


class Enqueued(Struct, frozen=True, gc=False):
    task: Task
    body: Body
    is_replay: bool = False
    """The idempotency key was used before; `task` is the task that has it."""
    is_mismatch: bool = False
    """A replay whose command or payload is another than that of `task`."""


@durable
def enqueue(core: Core, tenant: str, new_tasks: Sequence[NewTask]) -> Awaitable[list[Enqueued | CodeqError]]:
    """Returns per new task: the task, or why it was refused. One refusal does not affect the others."""
    size = validation.batch([new_task.payload for new_task in new_tasks], "tasks", "payload")
    validation.tenant(tenant)
    if is_short(len(new_tasks), size):
        return _enqueue_piece(core, tenant, new_tasks, size=size, replays_bytes_max=BATCH_BYTES_MAX)
    return _enqueue_in_pieces(core, tenant, new_tasks, size)


async def _enqueue_in_pieces(
    core: Core, tenant: str, new_tasks: Sequence[NewTask], size: int
) -> list[Enqueued | CodeqError]:
    """Stores a large batch, and other calls run in between."""
    budget, answers = LoopBudget(core, tenant), list[Enqueued | CodeqError]()
    if fit_into_piece(len(new_tasks), size):
        await budget.yield_if_spent()
        return await _enqueue_piece(core, tenant, new_tasks, size=size, replays_bytes_max=BATCH_BYTES_MAX)
    bytes_left = BATCH_BYTES_MAX
    for piece in pieces(new_tasks, [len(new_task.payload) for new_task in new_tasks]):
        await budget.yield_if_spent()
        size = sum([len(new_task.payload) for new_task in piece])
        answers += (part := await _enqueue_piece(core, tenant, piece, size=size, replays_bytes_max=bytes_left))
        bytes_left -= sum([a.task.payload_bytes for a in part if isinstance(a, Enqueued) and a.is_replay])
    return answers


async def _enqueue_piece(
    core: Core, tenant: str, new_tasks: Sequence[NewTask], *, size: int, replays_bytes_max: int
) -> list[Enqueued | CodeqError]:
    """Stores a piece of a batch. Limits of the tenant are checked here, where no other call runs in between."""
    now_ms = core.store.now_ms()
    answers = _refusals(core, new_tasks, now_ms)
    places: Sequence[int] = range(len(new_tasks))
    if any(answers):
        places = [place for place, refusal in enumerate(answers) if refusal is None]
    if core.tenant_limits is not UNLIMITED and not await all_fit(core, tenant, len(places), size):
        for index, refusal in (await refusals(core, tenant, [new_tasks[place] for place in places])).items():
            answers[places[index]] = refusal
        places = [place for place in places if answers[place] is None]
    accepted = new_tasks if len(places) == len(new_tasks) else [new_tasks[place] for place in places]
    changes = _changes(core, tenant, accepted, now_ms)
    replayed_bytes = 0
    for place, change, stored in zip(places, changes, await core.store.commit(changes), strict=True):
        if stored is change.after and change.body is not None:
            answers[place] = Enqueued(stored, change.body)
        elif stored is not None and replayed_bytes >= replays_bytes_max:
            answers[place] = InvalidRequest(
                f"the idempotency key was used for task {stored.id}; the other replays of this batch have "
                f"{BATCH_BYTES_MAX} bytes already, so send this one alone to get it"
            )
        else:
            answers[place] = answer = await _replayed(core, change, stored)
            replayed_bytes += answer.task.payload_bytes if isinstance(answer, Enqueued) else 0
    return [answer for answer in answers if answer is not None]


def _changes(core: Core, tenant: str, new_tasks: Sequence[NewTask], now_ms: int) -> list[Change]:
    shards = core.store.shards
    shard_numbers = [
        None if new.idempotency_key is None else shard_of_key(tenant, new.idempotency_key, shards) for new in new_tasks
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
        return StoreCorrupt(f"the task that holds the idempotency key of {wanted.id} cannot be read")
    is_mismatch = record.task.command != wanted.command
    if not is_mismatch and record.body.payload != change.body.payload:
        # Other calls run between the comparisons of a batch, and many calls may compare long payloads at once.
        is_long = len(change.body.payload) > COMPARE_AT_ONCE_BYTES
        await (LoopBudget(core, wanted.tenant).yield_if_spent() if is_long else asyncio.sleep(0))
        is_mismatch = not same_value(record.body.payload, change.body.payload)
    if is_mismatch and core.strict_idempotency:
        return IdempotencyMismatch(
            f"idempotency key {record.body.idempotency_key!r} was used for task {record.task.id}, which has another "
            "command or payload; use a new key for a new task"
        )
    return Enqueued(record.task, record.body, is_replay=True, is_mismatch=is_mismatch)


def _refusals(core: Core, new_tasks: Sequence[NewTask], now_ms: int) -> list[Enqueued | CodeqError | None]:
    """Returns per new task why it is refused, if it is."""
    found: list[Enqueued | CodeqError | None] = [None] * len(new_tasks)
    for place, new_task in enumerate(new_tasks):
        try:
            validation.new_task(new_task, now_ms)
            if new_task.webhook is not None:
                core.webhook_rules.check(new_task.webhook)
        except CodeqError as refusal:
            found[place] = refusal
    return found
