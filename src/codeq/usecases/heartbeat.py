"""Extends the leases of tasks that their worker still processes."""

from collections.abc import Sequence

from codeq.domain import lifecycle, validation
from codeq.domain.errors import CodeqError
from codeq.domain.limits import PROGRESS_CHARS_MAX
from codeq.domain.requests import LeaseExtension
from codeq.domain.task import Change, Holder, Task
from codeq.usecases.core import Core
from codeq.usecases.moves import move_each, move_one


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
    beat = LeaseExtension(task_id=task_id, holder=holder, extend_ms=extend_ms, progress=progress)
    _check(beat)
    task = await move_one(core, tenant, task_id, lambda task: _change(core, task, beat, now_ms))
    await core.workers.beats(task, lease_ms=extend_ms or 0, call=call)
    return task


async def heartbeat_many(core: Core, tenant: str, beats: Sequence[LeaseExtension]) -> list[Task | CodeqError]:
    """Extends up to 1000 leases as `heartbeat` does. Returns per lease: the task, or why it was refused."""
    now_ms, call = core.store.now_ms(), core.workers.begin()

    def decide(place: int, task: Task) -> Change:
        _check(beats[place])
        return _change(core, task, beats[place], now_ms)

    answers = await move_each(core, tenant, [beat.task_id for beat in beats], decide)
    workers: dict[tuple[str | None, str | None], tuple[Task, int]] = {}
    for beat, task in zip(beats, answers, strict=True):
        if isinstance(task, Task):
            workers[task.worker_name, task.worker] = (task, beat.extend_ms or 0)
    for task, lease_ms in workers.values():
        await core.workers.beats(task, lease_ms=lease_ms, call=call)
    return answers


def _check(beat: LeaseExtension) -> None:
    if beat.extend_ms is not None:
        validation.lease_ms(beat.extend_ms)
    if beat.progress is not None:
        validation.text(beat.progress, "progress", PROGRESS_CHARS_MAX)


def _change(core: Core, task: Task, beat: LeaseExtension, now_ms: int) -> Change:
    lease_ms = beat.extend_ms or core.policy(task.tenant, task.command).lease_ms
    return lifecycle.heartbeat(task, beat.holder, now_ms, lease_ms=lease_ms, progress=beat.progress)
