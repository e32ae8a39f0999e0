"""Moves many tasks at once, by id or by filter: what replay, purge and cleanup have in common."""

from collections.abc import Callable, Sequence

import msgspec

from codeq.domain.errors import CodeqError
from codeq.domain.limits import BATCH_TASKS_MAX, LIST_TASKS_MAX, MOVE_TASKS_MAX
from codeq.domain.queue import Index
from codeq.domain.requests import BulkResult, Filter, Selection
from codeq.domain.task import Change, Task
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core
from codeq.usecases.moves import move_each

MoveFunction = Callable[[Task, int], Change]
"""A function of `lifecycle` with an ended task and the time as arguments."""


async def move_dead(
    core: Core, tenant: str, selection: Selection, move: MoveFunction, *, limit: int, dry_run: bool
) -> BulkResult:
    if isinstance(selection, Filter):
        dead = msgspec.structs.replace(selection, index=Index.DEAD)
        return await move_matching(core, tenant, dead, move, limit=limit, dry_run=dry_run)
    return await _move_ids(core, tenant, selection, move, dry_run=dry_run)


async def move_matching(
    core: Core, tenant: str, wanted: Filter, move: MoveFunction, *, limit: int, dry_run: bool = False
) -> BulkResult:
    """Moves up to `limit` tasks that match. Other calls run in between; a thousand moves share an fsync."""
    budget = LoopBudget(core, tenant)
    now_ms = core.store.now_ms()
    matched: list[str] = []
    changed = unflushed = 0
    cursor: str | None = None
    while len(matched) < limit:
        await budget.yield_if_spent()
        page = await core.store.find(tenant, wanted, cursor=cursor, limit=min(MOVE_TASKS_MAX, limit - len(matched)))
        ids = [task.id for task in page.tasks]
        matched += ids
        if not dry_run and ids:
            moved = await move_each(core, tenant, ids, lambda _, task: move(task, now_ms))
            changed += sum(isinstance(answer, Task) for answer in moved)
            unflushed += len(ids)
        if unflushed >= BATCH_TASKS_MAX:
            await core.store.flush()
            unflushed = 0
        cursor = page.cursor
        if cursor is None:
            break
    return BulkResult(len(matched), changed, matched[:LIST_TASKS_MAX])


async def _move_ids(core: Core, tenant: str, ids: Sequence[str], move: MoveFunction, *, dry_run: bool) -> BulkResult:
    """Moves these tasks, and reports the error code of each one that was refused."""
    if dry_run:
        found = [task.id for task in await core.store.get_tasks(tenant, ids) if task is not None and task.is_dead]
        return BulkResult(len(found), 0, found)
    budget = LoopBudget(core, tenant)
    now_ms = core.store.now_ms()
    moved: list[str] = []
    refused: dict[str, str] = {}
    for start in range(0, len(ids), MOVE_TASKS_MAX):
        await budget.yield_if_spent()
        part = ids[start : start + MOVE_TASKS_MAX]
        answers = await move_each(core, tenant, part, lambda _, task: move(task, now_ms))
        for task_id, answer in zip(part, answers, strict=True):
            if isinstance(answer, CodeqError):
                refused[task_id] = answer.code
            else:
                moved.append(task_id)
    return BulkResult(len(moved), len(moved), moved, refused)
