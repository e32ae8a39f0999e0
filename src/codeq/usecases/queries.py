"""Reads that change nothing: a task, its result, its history, lists of tasks, and the counts of queues."""

from collections.abc import AsyncIterator, Mapping, Sequence

from codeq.domain import validation
from codeq.domain.errors import NotFound
from codeq.domain.ids import shard_of
from codeq.domain.limits import (
    DELIVERIES_MAX,
    FIND_SCAN_MAX,
    LIST_SCAN_MAX,
    LIST_TASKS_MAX,
    PAGE_BYTES_MAX,
    RESULT_WAIT_MS_MAX,
)
from codeq.domain.queue import QueueCounts, QueueKey, QueueStatus
from codeq.domain.requests import Filter, Page, Record
from codeq.domain.task import Task
from codeq.usecases.attendance import Attendance
from codeq.usecases.budget import LoopBudget, is_short, pieces
from codeq.usecases.core import Core, durable


@durable
async def get(core: Core, tenant: str, task_id: str, *, wait_ms: int = 0) -> Record:
    """Returns all that is stored of the task. With `wait_ms`, waits until it has ended or that time has passed."""
    validation.integer(wait_ms, "wait in milliseconds", 0, RESULT_WAIT_MS_MAX)
    record = await _record(core, tenant, task_id)
    if wait_ms and not record.task.status.is_final:

        async def has_ended() -> bool:
            return (await _record(core, tenant, task_id)).task.status.is_final

        async with core.store.peers.watch_moves():
            await core.waiters.wait_for_end([task_id], wait_ms, has_ended)
        record = await _record(core, tenant, task_id)
    return record


async def get_tasks(core: Core, tenant: str, ids: Sequence[str]) -> list[Task]:
    """Returns those of the tasks that exist, without body and result. Does not flush: it is for checks before another
    verb, which flushes itself or, like a heartbeat, must not wait for the disk. So they may be as this process last saw
    them, if all are known."""
    seen = [task for task in await core.store.get_tasks(tenant, ids, from_memory=True) if task is not None]
    if seen and len(seen) == len(ids):
        return seen
    if is_short(len(ids)):
        return [task for task in await core.store.get_tasks(tenant, ids) if task is not None]
    budget, found = LoopBudget(core, tenant), list[Task]()
    for piece in pieces(ids, [0] * len(ids)):
        await budget.yield_if_spent()
        found += [task for task in await core.store.get_tasks(tenant, piece) if task is not None]
    return found


@durable
async def history(core: Core, tenant: str, task_id: str) -> list[Task]:
    """Returns the task after each of its moves, oldest first, as far back as events are retained."""
    [task] = await core.store.get_tasks(tenant, [task_id])
    if task is None:
        raise _not_found(task_id)
    budget = LoopBudget(core, tenant)
    moves: list[Task] = []
    version = task.version
    while version and len(moves) < DELIVERIES_MAX:
        await budget.yield_if_spent()
        found = (await core.store.events(shard_of(task_id), version, 1)).events
        if not found or found[0].version != version:
            break  # trimmed away
        moves.append(found[0])
        version = found[0].previous
    return moves[::-1]


@durable
async def find(core: Core, tenant: str, wanted: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
    """Returns a page of tasks without their bodies. It ends where their payloads would exceed PAGE_BYTES_MAX."""
    validation.integer(limit, "limit", 1, LIST_TASKS_MAX)
    if wanted.command is not None:
        validation.queue_name(wanted.command, "command")
    budget = LoopBudget(core, tenant)
    found: list[Task] = []
    bytes_left = PAGE_BYTES_MAX
    for _ in range(LIST_SCAN_MAX // FIND_SCAN_MAX):
        await budget.yield_if_spent()
        page = await core.store.find(tenant, wanted, cursor=cursor, limit=limit - len(found), bytes_max=bytes_left)
        found += page.tasks
        cursor = page.cursor
        bytes_left -= sum([task.payload_bytes for task in page.tasks])
        if cursor is None or len(found) == limit or bytes_left <= 0:
            break
    return Page(found, cursor)


@durable
async def find_records(
    core: Core, tenant: str, wanted: Filter, *, cursor: str | None, limit: int
) -> tuple[list[Record], str | None]:
    """Returns a page of tasks with their bodies, and the cursor of the next page."""
    page = await find(core, tenant, wanted, cursor=cursor, limit=limit)
    return await bodies(core, tenant, page.tasks), page.cursor


async def bodies(core: Core, tenant: str, tasks: Sequence[Task]) -> list[Record]:
    """Returns those of the tasks that still exist, with their bodies, without results. Other calls run in between."""
    budget = LoopBudget(core, tenant)
    found: list[Record] = []
    for part in pieces(tasks, [task.payload_bytes for task in tasks]):
        await budget.yield_if_spent()
        records = await core.store.get_records(tenant, [task.id for task in part], results=False)
        found += [record for record in records if record is not None]
    return found


@durable
async def counts(core: Core, tenant: str | None, command: str | None = None) -> dict[QueueKey, QueueCounts]:
    """Returns the counts of every queue of the tenant, or of all, that holds a task, by name; or of one queue."""
    if command is not None:
        return await core.store.counts(tenant, command, ages=True)
    budget = LoopBudget(core, tenant or "")
    found: dict[QueueKey, QueueCounts] = {}
    await budget.yield_if_spent()
    for key in sorted(await core.store.counts(tenant)):
        found |= await core.store.counts(key.tenant, key.command, ages=True)
        await budget.yield_if_spent()
    return found


@durable
async def total(core: Core) -> int:
    """Returns how many tasks of all tenants wait, run or are dead."""
    found = await core.store.counts(None)
    return sum(c.pending + c.delayed + c.in_progress + c.dead for c in found.values())


def all_counts(core: Core) -> AsyncIterator[Mapping[QueueKey, QueueCounts]]:
    """Yields the counts of the queues of all tenants, a few at a time. For statistics: does not wait for the disk."""
    return core.store.all_counts()


async def count(core: Core, key: QueueKey, *, ages: bool = False) -> QueueCounts | None:
    """Returns the counts of one queue; None if it is empty. For statistics: does not wait for the disk."""
    return (await core.store.counts(*key, ages=ages)).get(key)


async def queue(core: Core, key: QueueKey) -> QueueStatus:
    """Returns one queue, whether or not it holds a task."""
    validation.queue_name(key.command, "command")
    counted = (await counts(core, key.tenant, key.command)).get(key, QueueCounts())
    return _status(core, key, counted, await Attendance.of(core, key.tenant, LoopBudget(core, key.tenant)))


async def queues(core: Core, tenant: str) -> list[QueueStatus]:
    """Returns every queue of the tenant that holds a task, by command."""
    budget = LoopBudget(core, tenant)
    found: list[QueueStatus] = []
    attendance = await Attendance.of(core, tenant, budget)
    for key, counted in (await counts(core, tenant)).items():
        found.append(_status(core, key, counted, attendance))
        await budget.yield_if_spent()
    return found


def _status(core: Core, key: QueueKey, counted: QueueCounts, attendance: Attendance) -> QueueStatus:
    age_ms = 0 if counted.oldest_ms is None else max(0, core.store.now_ms() - counted.oldest_ms)
    workers = attendance.workers_on(key.command)
    return QueueStatus(key=key, counts=counted, paused=core.policy(*key).paused, oldest_age_ms=age_ms, workers=workers)


async def _record(core: Core, tenant: str, task_id: str) -> Record:
    [record] = await core.store.get_records(tenant, [task_id])
    if record is None:
        raise _not_found(task_id)
    return record


def _not_found(task_id: str) -> NotFound:
    return NotFound(f"there is no task {task_id[:64]!r}")
