"""The event log over HTTP: by shard and offset, as JSON or Arrow, waiting for what is yet to come."""

import asyncio

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import CLAIM_WAIT_MS_MAX, EVENTS_READ_MAX
from codeq.domain.task import Task
from codeq.server.calls import ARROW, Call, Reply, whole_number
from codeq.server.parts import Parts
from codeq.store.interface import Events
from codeq.usecases import inspect
from codeq.wire.events import EventPage, arrow_stream, event


async def read_events(parts: Parts, call: Call) -> Reply:
    given = call.query(("shard", "offset", "limit", "waitSeconds", "tenant"))
    shard = whole_number(given.get("shard", "0"), "shard", 0, 65_535)
    offset = whole_number(given.get("offset", "1"), "offset", 0, 1 << 62)
    limit = whole_number(given.get("limit", "1000"), "limit", 1, EVENTS_READ_MAX)
    wait_s = whole_number(given.get("waitSeconds", "0"), "waitSeconds", 0, 3600)
    wait_ms = parts.wait_ms(min(wait_s * 1000, CLAIM_WAIT_MS_MAX))
    tenant = call.tenant
    if call.principal.is_platform:
        tenant = given.get("tenant", "")
    elif "tenant" in given:
        raise InvalidRequest("tenant is for admins of the platform; others see their own events")
    reading = inspect.events(parts.core, shard, offset, limit, wait_ms=wait_ms)
    found = await (call.unless_gone(reading) if wait_ms else reading)
    may_see = call.principal.may_see
    mine = [task for task in found.events if (not tenant or task.tenant == tenant) and may_see(task.command)]
    next_offset = found.events[-1].version + 1 if found.events else max(offset, found.first)
    if ARROW.encode() in call.headers.get(b"accept", b""):
        return await _arrow(parts, mine, shard, found._replace(events=[]), next_offset=next_offset)
    page = EventPage(
        shard=shard,
        events=[event(task) for task in mine],
        next_offset=next_offset,
        first_offset=found.first,
        end_offset=found.next,
        shards=parts.core.store.shards,
    )
    return call.answer(200, page)


async def _arrow(parts: Parts, tasks: list[Task], shard: int, span: Events, *, next_offset: int) -> Reply:
    # In a thread: building Arrow columns takes a while, and workers must not wait for it.
    body = await asyncio.to_thread(arrow_stream, tasks, shard)
    headers = {
        b"codeq-next-offset": next_offset,
        b"codeq-first-offset": span.first,
        b"codeq-end-offset": span.next,
        b"codeq-shards": parts.core.store.shards,
    }
    return Reply(200, body, ARROW, [(name, str(value).encode()) for name, value in headers.items()])
