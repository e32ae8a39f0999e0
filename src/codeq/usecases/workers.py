"""Lists the workers of a tenant with what each holds, and removes those that stop."""

from collections import defaultdict

from msgspec import Struct
from msgspec.structs import replace

from codeq.domain import validation
from codeq.domain.limits import LIST_TASKS_MAX, WORKER_TASKS_SHOWN_MAX, WORKERS_SCAN_MAX
from codeq.domain.queue import Index
from codeq.domain.requests import Filter
from codeq.domain.workers import WorkerStatus
from codeq.usecases import queries
from codeq.usecases.attendance import registered
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core

_IN_PROGRESS = Filter(index=Index.IN_PROGRESS)


class WorkerList(Struct, frozen=True, gc=False):
    workers: list[WorkerStatus]
    is_complete: bool
    """Whether all tasks in progress were counted. There may be more than a list may read."""


async def list_workers(core: Core, tenant: str) -> WorkerList:
    """Returns the workers that were heard from lately and those that hold tasks, by name."""
    validation.tenant(tenant)
    budget = LoopBudget(core, tenant)
    await budget.yield_if_spent()
    listed = {(each.name, each.subject): each for each in await registered(core, tenant, budget)}
    held, is_complete = await _held(core, tenant)
    gone = {place: WorkerStatus(name=place[0], subject=place[1]) for place in held.keys() - listed.keys()}
    found: list[WorkerStatus] = []
    for place, worker in (listed | gone).items():
        if budget.is_spent:
            await budget.yield_if_spent()
        tasks = held[place]
        found.append(replace(worker, holds=len(tasks), tasks=tuple(tasks[:WORKER_TASKS_SHOWN_MAX])))
    return WorkerList(sorted(found, key=lambda worker: (worker.name, worker.subject)), is_complete)


async def leave(core: Core, tenant: str, subject: str, name: str) -> bool:
    """Removes a worker that stops from the list, so that nobody counts on it. Returns whether it was there.

    What cannot be a name is not remembered as that of a worker that has left: a path may have thousands of characters.
    """
    if name and not validation.is_worker_name(name):
        return False
    return await core.workers.leaves(tenant, subject, name)


async def _held(core: Core, tenant: str) -> tuple[defaultdict[tuple[str, str], list[str]], bool]:
    """Returns the ids of tasks in progress by name and subject of their worker, and whether these are all."""
    held: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    cursor: str | None = None
    for _ in range(0, WORKERS_SCAN_MAX, LIST_TASKS_MAX):
        page = await queries.find(core, tenant, _IN_PROGRESS, cursor=cursor, limit=LIST_TASKS_MAX)
        for task in page.tasks:
            held[task.worker_name or "", task.worker or ""].append(task.id)
        cursor = page.cursor
        if cursor is None:
            return held, True
    return held, False
