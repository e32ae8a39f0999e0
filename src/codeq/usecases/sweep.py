"""Background work: delayed tasks become visible, lost leases expire, ended tasks and old events are deleted.

Each role does a bounded piece of work and returns how much it found; a stale change means another call was faster.
"""

import asyncio
from collections.abc import Awaitable, Callable

from codeq.domain import lifecycle
from codeq.domain.errors import StoreError
from codeq.domain.limits import SWEEP_TASKS_MAX
from codeq.domain.queue import Index
from codeq.usecases.core import Core

PROMOTE_EVERY_S, EXPIRE_EVERY_S, PURGE_EVERY_S, TRIM_EVERY_S = 0.1, 1.0, 1.0, 60.0


async def promote_due(core: Core, limit: int = SWEEP_TASKS_MAX) -> int:
    now_ms = core.store.now_ms()
    due = await core.store.due(Index.DELAYED, now_ms, limit)
    if due:
        await core.store.commit([lifecycle.promote(task, now_ms) for task in due])
    return len(due)


async def expire_leases(core: Core, limit: int = SWEEP_TASKS_MAX) -> int:
    now_ms = core.store.now_ms()
    due = await core.store.due(Index.IN_PROGRESS, now_ms, limit)
    if due:
        await core.store.commit(
            [
                lifecycle.expire(
                    task, now_ms, retry_ms=core.expiry_retry_ms(task), retention_ms=core.dead_retention_ms(task)
                )
                for task in due
            ]
        )
        for task in due:
            core.slot_freed(task)
    return len(due)


async def purge_finished(core: Core, limit: int = SWEEP_TASKS_MAX) -> int:
    now_ms = core.store.now_ms()
    due = await core.store.due(Index.NONE, now_ms, limit)
    if due:
        await core.store.commit([lifecycle.purge(task, now_ms) for task in due])
    return len(due)


async def before_claim(core: Core, limit: int) -> None:
    """Promotes and expires what a claim must not overlook. Costs two comparisons when nothing is due."""
    await promote_due(core, limit)
    await expire_leases(core, limit)


async def run(core: Core, *, events_keep_ms: int, events_keep_max: int) -> None:
    """Runs every role at its own interval, until cancelled or until the store fails."""

    async def trim(core: Core, limit: int) -> int:  # noqa: ARG001 - trims all at once
        await core.store.trim(before_ms=core.store.now_ms() - events_keep_ms, keep_max=events_keep_max)
        return 0

    await asyncio.gather(
        _every(PROMOTE_EVERY_S, promote_due, core),
        _every(EXPIRE_EVERY_S, expire_leases, core),
        _every(PURGE_EVERY_S, purge_finished, core),
        _every(TRIM_EVERY_S, trim, core),
    )


async def _every(period_s: float, role: Callable[[Core, int], Awaitable[int]], core: Core) -> None:
    try:
        while True:
            found = await role(core, SWEEP_TASKS_MAX)
            await core.store.flush()
            # A full batch means there is more: continue at once, but let waiting calls run in between.
            await asyncio.sleep(0 if found >= SWEEP_TASKS_MAX else period_s)
    except StoreError:
        return  # every call raises it already; there is nothing left to sweep
