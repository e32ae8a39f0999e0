"""Deletes ended tasks before their retention has passed: dead ones by id or filter, any others by time."""

from codeq.domain import lifecycle
from codeq.domain.requests import BulkResult, Filter, Selection
from codeq.usecases.core import Core, durable
from codeq.usecases.dead_letters import move_dead, move_matching


@durable
async def purge(core: Core, tenant: str, selection: Selection, *, limit: int, dry_run: bool = False) -> BulkResult:
    """Deletes the selected tasks if they are dead; up to `limit` of those that match a filter."""
    return await move_dead(core, tenant, selection, lifecycle.purge_dead, limit=limit, dry_run=dry_run)


@durable
async def purge_before(core: Core, tenant: str, before_ms: int, *, limit: int) -> int:
    """Deletes up to `limit` ended tasks whose retention passes before `before_ms`. Returns how many."""
    wanted = Filter(purge_to_ms=before_ms)
    return (await move_matching(core, tenant, wanted, lifecycle.purge, limit=limit)).changed
