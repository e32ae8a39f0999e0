"""Puts dead tasks back into their queues, with a fresh set of attempts."""

from collections.abc import Sequence

from codeq.domain import lifecycle
from codeq.domain.requests import BulkResult, Filter
from codeq.usecases import dead_letters
from codeq.usecases.core import Core, durable


@durable
async def replay(core: Core, tenant: str, ids: Sequence[str], *, dry_run: bool = False) -> BulkResult:
    """Replays these tasks, if they are dead."""
    return await dead_letters.move_ids(core, tenant, ids, lifecycle.replay, dry_run=dry_run)


@durable
async def replay_matching(core: Core, tenant: str, wanted: Filter, *, limit: int, dry_run: bool = False) -> BulkResult:
    """Replays up to `limit` dead tasks that match."""
    return await dead_letters.move_matching(core, tenant, wanted, lifecycle.replay, limit=limit, dry_run=dry_run)
