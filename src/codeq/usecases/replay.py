"""Returns dead tasks to their queues, with a fresh set of attempts."""

from codeq.domain import lifecycle
from codeq.domain.requests import BulkResult, Selection
from codeq.usecases.core import Core, durable
from codeq.usecases.dead_letters import move_dead


@durable
async def replay(core: Core, tenant: str, selection: Selection, *, limit: int, dry_run: bool = False) -> BulkResult:
    """Replays the selected tasks if they are dead; up to `limit` of those that match a filter."""
    return await move_dead(core, tenant, selection, lifecycle.replay, limit=limit, dry_run=dry_run)
