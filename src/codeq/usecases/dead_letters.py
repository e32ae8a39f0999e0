"""Moves many dead tasks at once, by id or by filter: what replay and purge have in common."""

from collections.abc import Callable, Sequence

import msgspec

from codeq.domain.errors import CodeqError
from codeq.domain.limits import LIST_TASKS_MAX
from codeq.domain.queue import Index
from codeq.domain.requests import BulkResult, Filter, Selection
from codeq.domain.task import Change, Task
from codeq.usecases.core import Core
from codeq.usecases.moves import move_each

MoveFunction = Callable[[Task, int], Change]
"""A function of `lifecycle` with a dead task and the time as arguments."""


async def move_dead(
    core: Core, tenant: str, selection: Selection, move: MoveFunction, *, limit: int, dry_run: bool
) -> BulkResult:
    if isinstance(selection, Filter):
        return await _move_matching(core, tenant, selection, move, limit=limit, dry_run=dry_run)
    return await _move_ids(core, tenant, selection, move, dry_run=dry_run)


async def _move_ids(core: Core, tenant: str, ids: Sequence[str], move: MoveFunction, *, dry_run: bool) -> BulkResult:
    """Moves these tasks, and reports the error code of each one that was refused."""
    if dry_run:
        found = [task.id for task in await core.store.get_tasks(tenant, ids) if task is not None and task.is_dead]
        return BulkResult(len(found), 0, found)
    now_ms = core.store.now_ms()
    answers = await move_each(core, tenant, ids, lambda _, task: move(task, now_ms))
    moved: list[str] = []
    refused: dict[str, str] = {}
    for task_id, answer in zip(ids, answers, strict=True):
        if isinstance(answer, CodeqError):
            refused[task_id] = answer.code
        else:
            moved.append(task_id)
    return BulkResult(len(moved), len(moved), moved, refused)


async def _move_matching(
    core: Core, tenant: str, wanted: Filter, move: MoveFunction, *, limit: int, dry_run: bool
) -> BulkResult:
    """Moves up to `limit` dead tasks that match, a page and an fsync at a time."""
    now_ms = core.store.now_ms()
    dead = msgspec.structs.replace(wanted, index=Index.DEAD)
    matched: list[str] = []
    changed = 0
    cursor: str | None = None
    while len(matched) < limit:
        page = await core.store.find(tenant, dead, cursor=cursor, limit=min(LIST_TASKS_MAX, limit - len(matched)))
        matched += [task.id for task in page.tasks]
        if not dry_run and page.tasks:
            moved = await move_each(core, tenant, [t.id for t in page.tasks], lambda _, task: move(task, now_ms))
            changed += sum(isinstance(answer, Task) for answer in moved)
            await core.store.flush()
        cursor = page.cursor
        if cursor is None:
            break
    return BulkResult(len(matched), changed, matched[:LIST_TASKS_MAX])
