"""The event log over HTTP: by shard and offset, as JSON or Arrow, with a wait for new events.

A response is built in pieces, and other calls run between two of them: Spark may read millions of events while workers
claim (benchmarks/reading.py measures it). They are built on the event loop on purpose: a thread would hold the
interpreter lock for five milliseconds at a time, at arbitrary moments.
"""

import asyncio
import re
from abc import ABC, abstractmethod
from contextlib import nullcontext
from functools import partial
from typing import Any

from msgspec import Struct

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import (
    CLAIM_WAIT_MS_MAX,
    EVENTS_COLUMNS_PIECE_MAX,
    EVENTS_PIECE_MAX,
    EVENTS_READ_MAX,
    NAME_PATTERN,
    PAGE_BYTES_MAX,
)
from codeq.domain.task import Task
from codeq.server.auth.principal import EVERY_COMMAND, Principal
from codeq.server.request import HttpRequest, HttpResponse, whole_number
from codeq.server.state import AppState
from codeq.usecases import events
from codeq.usecases.budget import LoopBudget, pieces
from codeq.usecases.events import Events
from codeq.wire import events as wire
from codeq.wire import times

QUERY = ("shard", "offset", "limit", "waitSeconds", "tenant", "command", "includePayload", "at")
COMMANDS_MAX = 256

_NAME = re.compile(NAME_PATTERN)


class EventsQuery(Struct, frozen=True, kw_only=True):
    shard: int
    offset: int
    limit: int
    wait_ms: int
    tenant: str
    """Empty for all tenants."""
    commands: frozenset[str]
    """Empty for all commands."""
    with_payload: bool
    at_ms: int | None
    scope: str


async def read_events(state: AppState, request: HttpRequest) -> HttpResponse:
    query = _query(state, request)
    if query.at_ms is not None:
        span, found = await events.first_at(state.core, query.shard, query.at_ms, tenant=request.tenant)
        return request.respond(200, _page(state, query, span, [], next_offset=found))
    wants_arrow = wire.ARROW.encode() in request.headers.get(b"accept", b"")
    if wants_arrow:
        await events.load_arrow()
    kind = ArrowEventsBuilder if wants_arrow else JsonEventsBuilder

    async def scan(wait_ms: int) -> HttpResponse:
        builder = kind(state, request, query)
        span, next_offset = await events.scan(
            state.core,
            query.shard,
            query.offset,
            query.limit,
            each=builder.add,
            piece=builder.piece,
            tenant=request.tenant,
            wait_ms=wait_ms,
        )
        return await builder.response(span, next_offset)

    with state.long_polls.held(request.tenant) if query.wait_ms else nullcontext():
        return await request.unless_disconnected(scan, query.wait_ms)


class EventsBuilder(ABC):
    """Builds the response of a read, piece by piece, from the events that the caller may see."""

    piece = EVENTS_PIECE_MAX
    """How many events to add at once."""

    def __init__(self, state: AppState, request: HttpRequest, query: EventsQuery) -> None:
        self.state = state
        self.request = request
        self.query = query
        self._payload_bytes = 0
        self._hides = bool(query.scope)

    @property
    def is_plain(self) -> bool:
        """Whether the response has all events, and nothing but the events."""
        return not self._hides and not self.query.with_payload

    async def add(self, found: Events) -> int:
        """Adds a piece of the log. Returns how many events were added: fewer once the response has its full size."""
        tasks = found.events
        if self.is_plain:
            await self.put(tasks, None)
            return len(tasks)
        visible = [task if self._may_see(task) else None for task in tasks]
        fits = self._fitting(visible) if self.query.with_payload else len(tasks)
        shown = [task for task in visible[:fits] if task is not None]
        await self.put(shown, await self._payloads(shown) if self.query.with_payload else None)
        return fits

    @abstractmethod
    async def put(self, tasks: list[Task], payloads: list[str | None] | None) -> None:
        """Adds these events, with their payloads if requested."""

    @abstractmethod
    async def response(self, span: Events, next_offset: int) -> HttpResponse: ...

    def _may_see(self, task: Task) -> bool:
        tenant, commands = self.query.tenant, self.query.commands
        return (
            (not tenant or task.tenant == tenant)
            and (not commands or task.command in commands)
            and self.request.principal.may_see(task.command)
        )

    def _fitting(self, tasks: list[Task | None]) -> int:
        """Returns how many of these fit in the response; one at least, so that every read makes progress."""
        for number, task in enumerate(tasks):
            size = task.payload_bytes if task else 0
            if self._payload_bytes and self._payload_bytes + size > PAGE_BYTES_MAX:
                return max(number, 1)
            self._payload_bytes += size
        return len(tasks)

    async def _payloads(self, tasks: list[Task]) -> list[str | None]:
        by_tenant: dict[str, dict[str, int]] = {}
        for task in tasks:
            by_tenant.setdefault(task.tenant, {})[task.id] = task.payload_bytes
        found: dict[str, str] = {}
        for tenant, sizes in by_tenant.items():
            found |= await events.payloads(self.state.core, tenant, sizes)
        return [found.get(task.id) for task in tasks]


class ArrowEventsBuilder(EventsBuilder):
    def __init__(self, state: AppState, request: HttpRequest, query: EventsQuery) -> None:
        super().__init__(state, request, query)
        self._schema = wire.arrow_schema(payload=query.with_payload)
        self._batches: list[Any] = []
        if self.is_plain:
            self.piece = EVENTS_COLUMNS_PIECE_MAX

    async def add(self, found: Events) -> int:
        columns = found.columns(wire.TASK_FIELDS) if self.is_plain else None
        if columns is not None:
            self._batch(columns)
            return len(found.records)
        return await super().add(found)

    async def put(self, tasks: list[Task], payloads: list[str | None] | None) -> None:
        if tasks:
            self._batch(wire.arrow_fields(tasks), payloads)

    def _batch(self, fields: dict[str, Any], payloads: list[str | None] | None = None) -> None:
        self._batches.append(wire.arrow_batch(fields, self.query.shard, self._schema, payloads))

    async def response(self, span: Events, next_offset: int) -> HttpResponse:
        values = {
            wire.NEXT_OFFSET: next_offset,
            wire.FIRST_OFFSET: span.first,
            wire.END_OFFSET: span.next,
            wire.SHARDS: self.state.core.shards,
            wire.LOG_ID: self.state.core.log_id,
            wire.SCOPE: self.query.scope,
        }
        headers = [(name, str(value).encode()) for name, value in values.items()]
        compressed = wire.ARROW_LZ4.encode() in self.request.headers[b"accept"].replace(b" ", b"")
        writing = partial(wire.arrow_stream, self._batches, self._schema, compressed=compressed)
        body = await asyncio.to_thread(writing)  # which releases the interpreter lock while it copies
        return HttpResponse(200, body, wire.ARROW, headers)


class JsonEventsBuilder(EventsBuilder):
    def __init__(self, state: AppState, request: HttpRequest, query: EventsQuery) -> None:
        super().__init__(state, request, query)
        self._encode = request.encoder
        self._events: list[bytes] = []

    async def put(self, tasks: list[Task], payloads: list[str | None] | None) -> None:
        if payloads is None:
            self._events += [self._encode(wire.event(task)) for task in tasks]
            return
        budget = LoopBudget(self.state.core, self.request.tenant)
        found = list(zip(tasks, payloads, strict=True))
        for piece in pieces(found, [len(payload or "") for payload in payloads]):
            await budget.yield_if_spent()
            self._events += [self._encode(wire.event(task, payload)) for task, payload in piece]

    async def response(self, span: Events, next_offset: int) -> HttpResponse:
        return self.request.respond_encoded(
            200, self._events, lambda parts: _page(self.state, self.query, span, parts, next_offset=next_offset)
        )


def _page(state: AppState, query: EventsQuery, span: Events, events: list[Any], *, next_offset: int) -> wire.EventPage:
    return wire.EventPage(
        shard=query.shard,
        events=events,
        next_offset=next_offset,
        first_offset=span.first,
        end_offset=span.next,
        shards=state.core.shards,
        log_id=state.core.log_id,
        scope=query.scope,
    )


def _query(state: AppState, request: HttpRequest) -> EventsQuery:
    params = request.query(QUERY, repeated=("command",))
    wait_s = whole_number(params.get("waitSeconds", "0"), "waitSeconds", 0, 1 << 62)
    tenant = request.tenant
    if request.principal.is_platform:
        tenant = params.get("tenant", "")
    elif "tenant" in params:
        raise InvalidRequest("tenant is for admins of the platform; others see their own events")
    with_payload = params.get("includePayload", "false")
    if with_payload not in ("true", "false"):
        raise InvalidRequest(f"includePayload is true or false, not {with_payload[:40]!r}")
    commands = _commands(params["command"]) if "command" in params else frozenset()
    return EventsQuery(
        shard=whole_number(params.get("shard", "0"), "shard", 0, 65_535),
        offset=whole_number(params.get("offset", "1"), "offset", 0, 1 << 62),
        limit=whole_number(params.get("limit", "1000"), "limit", 1, EVENTS_READ_MAX),
        wait_ms=state.wait_ms(min(wait_s * 1000, CLAIM_WAIT_MS_MAX)),
        tenant=tenant,
        commands=commands,
        with_payload=with_payload == "true",
        at_ms=_moment_ms(params["at"]) if "at" in params else None,
        scope=wire.scope(tenant, _visible(request.principal, commands)),
    )


def _visible(principal: Principal, commands: frozenset[str]) -> frozenset[str] | None:
    """Returns the commands whose events the caller gets if these are asked for, or all; None for all commands."""
    if commands:
        return frozenset(name for name in commands if principal.may_see(name))
    limited = principal.is_worker and EVERY_COMMAND not in principal.commands
    return principal.commands if limited else None


def _commands(text: str) -> frozenset[str]:
    names = text.split(",")
    wrong = [name for name in names if not _NAME.fullmatch(name)]
    if wrong or len(names) > COMMANDS_MAX:
        raise InvalidRequest(f"command is up to {COMMANDS_MAX} names with commas between them, not {text[:40]!r}")
    return frozenset(names)


def _moment_ms(text: str) -> int:
    try:
        return times.parse(text)
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"at is {fault}") from None
