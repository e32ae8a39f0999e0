"""Returns a task from its worker to its queue, without counting an attempt."""

from codeq.domain import lifecycle
from codeq.domain.task import Holder, Task
from codeq.usecases.core import Core, durable
from codeq.usecases.moves import move_one


@durable
async def abandon(core: Core, tenant: str, task_id: str, holder: Holder) -> Task:
    """Moves the task to the back of its queue at once."""
    now_ms = core.store.now_ms()
    task = await move_one(
        core,
        tenant,
        task_id,
        lambda task: lifecycle.abandon(task, holder, now_ms, retention_ms=core.dead_retention_ms(task)),
    )
    core.slot_freed(task)
    return task
