"""Look without touching: a task, its result, its history, the tasks that match, the state of the queues."""

import asyncio
from collections.abc import Awaitable, Callable

from codeq.domain import validation
from codeq.domain.errors import NotFound
from codeq.domain.ids import shard_of
from codeq.domain.limits import (
    DELIVERIES_MAX,
    EVENTS_PAUSE_MS,
    EVENTS_PIECE_MAX,
    EVENTS_POLITE_PIECES,
    EVENTS_READ_MAX,
    LIST_TASKS_MAX,
    RESULT_WAIT_MS_MAX,
)
from codeq.domain.queue import QueueCounts, QueueKey
from codeq.domain.requests import Filter, Page
from codeq.domain.task import Task
from codeq.store.interface import Events, Record
from codeq.usecases.core import Core, durable


@durable
async def get(core: Core, tenant: str, task_id: str, *, wait_ms: int = 0) -> Record:
    """All that is kept of the task. With `wait_ms`, not before it has ended or that time has passed."""
    validation.whole(wait_ms, "wait in milliseconds", 0, RESULT_WAIT_MS_MAX)
    record = await _read(core, tenant, task_id)
    if wait_ms and not record.task.status.is_final:
        await core.waiters.wait_for_end(task_id, wait_ms)
        record = await _read(core, tenant, task_id)
    return record


@durable
async def history(core: Core, tenant: str, task_id: str) -> list[Task]:
    """The task after each of its moves, oldest first, as far back as events are kept."""
    [task] = await core.store.get_tasks(tenant, [task_id])
    if task is None:
        raise NotFound(f"there is no task {task_id[:64]!r}")
    moves: list[Task] = []
    version = task.version
    while version and len(moves) < DELIVERIES_MAX:
        found = (await core.store.events(shard_of(task_id), version, 1)).events
        if not found or found[0].version != version:
            break  # trimmed away
        moves.append(found[0])
        version = found[0].previous
    return moves[::-1]


@durable
async def find(core: Core, tenant: str, wanted: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
    validation.whole(limit, "limit", 1, LIST_TASKS_MAX)
    return await core.store.find(tenant, wanted, cursor=cursor, limit=limit)


@durable
async def counts(core: Core, tenant: str | None) -> dict[QueueKey, QueueCounts]:
    return await core.store.counts(tenant, ages=True)


@durable
async def events(core: Core, shard: int, start: int, limit: int, *, wait_ms: int = 0) -> Events:
    """Events from `start` on. With `wait_ms`, not before there is one or that time has passed."""
    validation.whole(shard, "shard", 0, core.store.shards - 1)
    validation.whole(limit, "limit", 1, EVENTS_READ_MAX)
    with core.waiters.next_event() as happened:
        found = await core.store.events(shard, start, limit)
        if not found.records and wait_ms:
            await asyncio.wait([happened], timeout=wait_ms / 1000)
            found = await core.store.events(shard, start, limit)
    return found


@durable
async def scan(
    core: Core,
    shard: int,
    start: int,
    limit: int,
    *,
    each: Callable[[Events], Awaitable[int]],
    piece: int = EVENTS_PIECE_MAX,
    wait_ms: int = 0,
) -> tuple[Events, int]:
    """Hand `limit` events from `start` on to `each`, a piece at a time, until it takes fewer than it is given.

    Others are served between two pieces, however long the read; while tasks move, they have half of the time to
    themselves. Answers what the shard has, and where to read on.
    """
    validation.whole(limit, "limit", 1, EVENTS_READ_MAX)
    found = await events(core, shard, start, min(limit, piece), wait_ms=wait_ms)
    at, left, since_moved = max(start, found.first), limit, EVENTS_POLITE_PIECES
    while found.records:
        async with core.waiters.reading:
            with core.waiters.next_event() as happened:
                taken = await each(found)
                at, left = at + taken, left - taken
                if taken < len(found.records) or not left:
                    break
                await asyncio.sleep(EVENTS_PAUSE_MS / 1000 if since_moved < EVENTS_POLITE_PIECES else 0)
                since_moved = 0 if happened.done() else since_moved + 1
            found = await core.store.events(shard, at, min(left, piece))
            at = max(at, found.first)
    return found._replace(records=[]), at


@durable
async def first_event_at(core: Core, shard: int, at_ms: int) -> tuple[Events, int]:
    """What the shard has, and the first of its events that is not older than `at_ms`; one past the newest if all are.

    Halves the log until it is found, so a clock that was set back between two starts may blur it by that much.
    """
    found = await events(core, shard, 1, 1)
    low, high = found.first, found.next
    while low < high:
        middle = (low + high) // 2
        seen = (await core.store.events(shard, middle, 1)).events
        if seen and seen[0].updated_ms < at_ms:
            low = middle + 1
        else:
            high = middle
        await asyncio.sleep(0)
    return found._replace(records=[]), low


async def _read(core: Core, tenant: str, task_id: str) -> Record:
    [record] = await core.store.get_records(tenant, [task_id])
    if record is None:
        raise NotFound(f"there is no task {task_id[:64]!r}")
    return record
