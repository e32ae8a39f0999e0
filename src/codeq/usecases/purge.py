"""Deletes ended tasks before their retention has passed: dead ones by id or filter, any others by time."""

from codeq.domain import lifecycle
from codeq.domain.limits import LIST_TASKS_MAX
from codeq.domain.requests import BulkResult, Filter, Selection
from codeq.domain.task import Task
from codeq.usecases.core import Core, durable
from codeq.usecases.dead_letters import move_dead
from codeq.usecases.moves import move_each


@durable
async def purge(core: Core, tenant: str, selection: Selection, *, limit: int, dry_run: bool = False) -> BulkResult:
    """Deletes the selected tasks if they are dead; up to `limit` of those that match a filter."""
    return await move_dead(core, tenant, selection, lifecycle.purge_dead, limit=limit, dry_run=dry_run)


@durable
async def purge_before(core: Core, tenant: str, before_ms: int, *, limit: int) -> int:
    """Deletes up to `limit` ended tasks whose retention passes before `before_ms`. Returns how many."""
    now_ms = core.store.now_ms()
    purged = 0
    cursor: str | None = None
    while purged < limit:
        page = await core.store.find(tenant, Filter(), cursor=cursor, limit=LIST_TASKS_MAX)
        expired = [task.id for task in page.tasks if task.status.is_final and task.purge_ms <= before_ms]
        moved = await move_each(core, tenant, expired[: limit - purged], lambda _, task: lifecycle.purge(task, now_ms))
        purged += sum(isinstance(answer, Task) for answer in moved)
        await core.store.flush()
        cursor = page.cursor
        if cursor is None:
            break
    return purged
