"""Counts a failed delivery: the task is retried later, or dead-lettered at its limit."""

from codeq.domain import lifecycle, validation
from codeq.domain.limits import BACKOFF_MS_MAX
from codeq.domain.task import Change, Holder, Task
from codeq.usecases.core import Core, durable
from codeq.usecases.moves import move_one


@durable
async def nack(
    core: Core,
    tenant: str,
    task_id: str,
    holder: Holder,
    *,
    delay_ms: int | None = None,
    reason: str = "",
    is_last: bool = False,
) -> Task:
    """Retries the task after `delay_ms` (0 for the back of the queue now), by default after its backoff; at its last
    attempt, or with `is_last`, dead-letters it, with `reason` as its last error. A repeated nack with its lease token
    returns the task as it is, until the task is delivered again."""
    now_ms = core.store.now_ms()
    if delay_ms is not None:
        validation.integer(delay_ms, "delay in milliseconds", 0, BACKOFF_MS_MAX)
    message = validation.message(reason)

    def decide(task: Task) -> Change | None:
        if lifecycle.is_nack_repeat(task, holder):
            return None
        retry_ms = core.retry_ms(task) if delay_ms is None else delay_ms
        retention_ms = core.dead_retention_ms(task)
        return lifecycle.nack(
            task, holder, now_ms, retry_ms=retry_ms, reason=message, retention_ms=retention_ms, is_last=is_last
        )

    task = await move_one(core, tenant, task_id, decide, from_memory=True)
    core.slot_freed(task)
    return task
