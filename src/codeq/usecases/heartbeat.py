"""Extends the lease of a task that its worker still processes."""

from codeq.domain import lifecycle, validation
from codeq.domain.limits import PROGRESS_CHARS_MAX
from codeq.domain.task import Holder, Task
from codeq.usecases.core import Core
from codeq.usecases.moves import move_one


async def heartbeat(
    core: Core,
    tenant: str,
    task_id: str,
    holder: Holder,
    *,
    extend_ms: int | None = None,
    progress: str | None = None,
) -> Task:
    """Extends the lease to `extend_ms` from now, by default the queue's lease, and records the progress.

    Changes memory and does not wait for the disk: losing it in a crash only shortens a lease, and a restart extends
    every lease by a grace period.
    """
    now_ms, call = core.store.now_ms(), core.workers.begin()
    if extend_ms is not None:
        validation.lease_ms(extend_ms)
    if progress is not None:
        validation.text(progress, "progress", PROGRESS_CHARS_MAX)
    task = await move_one(
        core,
        tenant,
        task_id,
        lambda task: lifecycle.heartbeat(
            task,
            holder,
            now_ms,
            lease_ms=extend_ms or core.policy(task.tenant, task.command).lease_ms,
            progress=progress,
        ),
    )
    await core.workers.beats(task, lease_ms=extend_ms or 0, call=call)
    return task
