"""Reads the event log by shard and offset: at once, in pieces, or from a point in time on."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module

from codeq.domain import validation
from codeq.domain.limits import EVENTS_PAUSE_MS, EVENTS_PIECE_MAX, EVENTS_POLITE_PIECES, EVENTS_READ_MAX
from codeq.store.interface import Events as Events  # noqa: PLC0414 - handlers import it from here
from codeq.usecases.budget import LoopBudget, pieces
from codeq.usecases.core import Core, durable

FAR_LOOK_S = 1.0
"""How often a call looks that waits for an event which is not the next."""
_ARROW = ("codeq.store.arrow", "pyarrow.compute", "pyarrow.ipc")


@durable
async def read(core: Core, shard: int, start: int, limit: int, *, tenant: str = "", wait_ms: int = 0) -> Events:
    """Returns the events from `start` on. With `wait_ms`, waits until there is one or that time has passed."""
    validation.integer(shard, "shard", 0, core.shards - 1)
    validation.integer(limit, "limit", 1, EVENTS_READ_MAX)
    await core.turns.wait(tenant)
    found = await core.store.events(shard, start, limit)
    if found.records or not wait_ms:
        return found
    async with core.store.peers.watch_moves():
        return await _wait_for_events(core, shard, start, limit, tenant=tenant, wait_ms=wait_ms)


async def _wait_for_events(core: Core, shard: int, start: int, limit: int, *, tenant: str, wait_ms: int) -> Events:
    """Looks again after each event, in turn: it wakes all readers, whoever may see it. One that waits for an event that
    is not the next looks every second."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_ms / 1000
    while True:
        with core.waiters.next_event() as happened:
            found = await core.store.events(shard, start, limit)
            left_s = until_s - loop.time()
            if found.records or left_s <= 0:
                return found
            if start > found.next:
                await asyncio.sleep(min(left_s, FAR_LOOK_S))
            else:
                await asyncio.wait([happened], timeout=left_s)
        if happened.done() and not happened.result():
            return found
        await core.turns.wait(tenant)


@durable
async def scan(
    core: Core,
    shard: int,
    start: int,
    limit: int,
    *,
    each: Callable[[Events], Awaitable[int]],
    tenant: str = "",
    piece: int = EVENTS_PIECE_MAX,
    wait_ms: int = 0,
) -> tuple[Events, int]:
    """Passes `limit` events from `start` on to `each`, a piece at a time, until it accepts fewer than it was passed.

    Other calls run between two pieces, however long the read; while tasks move, they have half of the time to
    themselves. Returns the shard's range of events, and the offset to continue from.
    """
    validation.integer(limit, "limit", 1, EVENTS_READ_MAX)
    found = await read(core, shard, start, min(limit, piece), tenant=tenant, wait_ms=wait_ms)
    at, left, since_moved = found.start, limit, EVENTS_POLITE_PIECES
    while found.records:
        async with core.event_reads.held(tenant):
            await core.turns.wait(tenant)
            with core.waiters.next_event() as happened:
                taken = await each(found)
                at, left = at + taken, left - taken
                if taken < len(found.records) or not left:
                    break
                await asyncio.sleep(EVENTS_PAUSE_MS / 1000 if since_moved < EVENTS_POLITE_PIECES else 0)
                since_moved = 0 if happened.done() else since_moved + 1
            found = await core.store.events(shard, at, min(left, piece))
            at = found.start
    return found._replace(records=[]), at


@durable
async def first_at(core: Core, shard: int, at_ms: int, *, tenant: str = "") -> tuple[Events, int]:
    """Returns the shard's range, and its first event not older than `at_ms`; one past the newest if all are older.

    A binary search by time: a clock that was set back between two starts may shift the result by that much.
    """
    budget = LoopBudget(core, tenant)
    found = await read(core, shard, 1, 1, tenant=tenant)
    low, high = found.first, found.next
    while low < high:
        await budget.yield_if_spent()
        middle = (low + high) // 2
        seen = (await core.store.events(shard, middle, 1)).events
        if seen and seen[0].updated_ms < at_ms:
            low = middle + 1
        else:
            high = middle
    return found._replace(records=[]), low


async def load_arrow() -> None:
    """Imports what Arrow columns need, in a thread: the first import of numpy and pyarrow takes half a second."""
    for name in _ARROW:
        if name not in sys.modules:
            await asyncio.to_thread(import_module, name)


async def payloads(core: Core, tenant: str, sizes: Mapping[str, int]) -> dict[str, str]:
    """Returns the payloads of those tasks that still exist, by id; other calls run in between. `sizes` has their bytes:
    few large ones or many small ones are read at once, which on Redis is a round trip."""
    budget = LoopBudget(core, tenant)
    found: dict[str, str] = {}
    for piece in pieces(list(sizes), list(sizes.values())):
        await budget.yield_if_spent()
        for record in await core.store.get_records(tenant, piece, results=False):
            if record is not None:
                found[record.task.id] = record.body.payload.decode()
    return found
