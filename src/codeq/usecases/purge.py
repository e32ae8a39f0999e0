"""Deletes ended tasks before their retention has passed: dead ones by id or filter, any others by time."""

from collections.abc import Sequence

from codeq.domain import lifecycle
from codeq.domain.limits import LIST_TASKS_MAX
from codeq.domain.requests import BulkResult, Filter
from codeq.domain.task import Task
from codeq.usecases import dead_letters
from codeq.usecases.core import Core, durable
from codeq.usecases.moves import move_each


@durable
async def purge(core: Core, tenant: str, ids: Sequence[str], *, dry_run: bool = False) -> BulkResult:
    """Deletes these tasks, if they are dead."""
    return await dead_letters.move_ids(core, tenant, ids, lifecycle.purge_dead, dry_run=dry_run)


@durable
async def purge_matching(core: Core, tenant: str, wanted: Filter, *, limit: int, dry_run: bool = False) -> BulkResult:
    """Deletes up to `limit` dead tasks that match."""
    return await dead_letters.move_matching(core, tenant, wanted, lifecycle.purge, limit=limit, dry_run=dry_run)


@durable
async def purge_before(core: Core, tenant: str, before_ms: int, *, limit: int) -> int:
    """Deletes up to `limit` ended tasks whose retention passes before then. Returns how many."""
    now_ms = core.now_ms()
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
