"""Cancels tasks that have not ended."""

from collections.abc import Sequence

from codeq.domain import lifecycle
from codeq.domain.errors import CodeqError, NotFound
from codeq.domain.queue import is_system
from codeq.domain.task import Change, Task
from codeq.usecases.core import Core, durable
from codeq.usecases.moves import move_each


@durable
async def cancel(core: Core, tenant: str, ids: Sequence[str]) -> list[Task | CodeqError]:
    """Ends pending and delayed tasks at once; a worker that holds one hears of it if it watches its leases, and is
    refused at its next heartbeat."""
    now_ms = core.store.now_ms()

    def decide(_: int, task: Task) -> Change:
        if is_system(task.command):  # whoever gets a callback knows its id
            raise NotFound(f"there is no task {task.id!r}")
        return lifecycle.cancel(task, now_ms, retention_ms=core.retention_ms(task))

    answers = await move_each(core, tenant, ids, decide)
    for answer in answers:
        if isinstance(answer, Task):
            core.slot_freed(answer)
    return answers
