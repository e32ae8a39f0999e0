"""Waits until a worker has lost one of its leases, so that it hears of a cancellation at once."""

from collections.abc import Sequence

from codeq.domain import lifecycle
from codeq.domain.errors import CodeqError, InvalidRequest, NotFound
from codeq.domain.limits import WATCHED_LEASES_MAX
from codeq.domain.task import Holder
from codeq.usecases.budget import LoopBudget, is_short
from codeq.usecases.core import Core

LostLease = tuple[str, str]
"""The id of the task, and the code of the refusal that a heartbeat would get."""


async def watch_leases(
    core: Core, tenant: str, leases: Sequence[tuple[str, Holder]], *, wait_ms: int = 0
) -> list[LostLease]:
    """Returns those of the leases that are lost. If none is, waits for a task among them to end, up to `wait_ms`: an
    expired lease, whose task goes on, is found by its next heartbeat."""
    if len(leases) > WATCHED_LEASES_MAX:
        raise InvalidRequest(f"a call watches at most {WATCHED_LEASES_MAX} leases, not {len(leases)}")
    lost = await _lost(core, tenant, leases)
    if lost or not wait_ms:
        return lost

    async def has_lost() -> bool:
        nonlocal lost
        lost = await _lost(core, tenant, leases)
        return bool(lost)

    async with core.store.peers.watch_moves():
        await core.waiters.wait_for_end([task_id for task_id, _ in leases], wait_ms, has_lost)
    return lost or await _lost(core, tenant, leases)


async def _lost(core: Core, tenant: str, leases: Sequence[tuple[str, Holder]]) -> list[LostLease]:
    if not is_short(len(leases)):
        await LoopBudget(core, tenant).yield_if_spent()  # thousands of calls may look at once
    tasks = await core.store.get_tasks(tenant, [task_id for task_id, _ in leases])
    lost: list[LostLease] = []
    for (task_id, holder), task in zip(leases, tasks, strict=True):
        try:
            if task is None:
                raise NotFound(f"there is no task {task_id[:64]!r}")
            lifecycle.check_held(task, holder)
        except CodeqError as refusal:
            lost.append((task_id, refusal.code))
    return lost
