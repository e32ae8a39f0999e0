"""Returns a task from its worker to its queue, without counting an attempt."""

from codeq.domain import lifecycle, validation
from codeq.domain.limits import BACKOFF_MS_MAX
from codeq.domain.task import Change, Holder, Task
from codeq.usecases.core import Core, durable
from codeq.usecases.moves import move_one


@durable
async def abandon(core: Core, tenant: str, task_id: str, holder: Holder, *, delay_ms: int = 0) -> Task:
    """Moves the task to the back of its queue, at once or after `delay_ms`. A repeated abandon with its lease token
    returns the task as it is, until the task is promoted or delivered again."""
    now_ms = core.store.now_ms()
    validation.integer(delay_ms, "delay in milliseconds", 0, BACKOFF_MS_MAX)

    def decide(task: Task) -> Change | None:
        if lifecycle.is_abandon_repeat(task, holder):
            return None
        return lifecycle.abandon(task, holder, now_ms, retention_ms=core.dead_retention_ms(task), retry_ms=delay_ms)

    task = await move_one(core, tenant, task_id, decide, from_memory=True)
    core.slot_freed(task)
    return task
