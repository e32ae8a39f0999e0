"""Collects the requests of one event-loop iteration and runs them as one batch. Adds no delay."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from codeq.domain.errors import CodeqError
from codeq.domain.limits import BATCH_BYTES_MAX, BATCH_TASKS_MAX
from codeq.server.request import LARGE_BYTES, SHORT_BYTES, HttpRequest, HttpResponse, Parser
from codeq.server.state import AppState
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core
from codeq.usecases.traces import trace_parents


class BatchedHandler(Struct, frozen=True, kw_only=True):
    """A handler in steps, so that concurrent requests of one tenant can share one of them, the use case.

    Called like any other handler it runs a batch of one, with the same steps.
    """

    name: str
    parser: Parser
    authorize: Callable[[AppState, HttpRequest], Awaitable[None]] | None = None
    """A check that has to read tasks first. A request that needs it is not batched."""
    needs_authorizing: Callable[[HttpRequest], bool] = lambda _: False
    to_item: Callable[[AppState, HttpRequest, Any], Any]
    """Turns the parsed message into an item for the use case, or raises a refusal."""
    runs_alone: Callable[[Any], bool] = lambda _: False
    """Whether the item takes long, so that others must not wait for it: files are stored first."""
    execute: Callable[[Core, str, Sequence[Any]], Awaitable[Sequence[Any]]]
    """The use case: a result or a CodeqError per item, none of which affects another's."""
    respond: Callable[[HttpRequest, Any], HttpResponse]
    item_bytes: Callable[[Any], int]
    """How many bytes of a batch's limit the item uses."""
    span: str
    """The name of the trace span around a request that is not batched."""
    attributes: Callable[[HttpRequest, Any], dict[str, Any]]
    task_ids: Callable[[Any], Sequence[str]] = lambda _: ()
    """The existing tasks of an item: its span links to the traces that created them."""

    @property
    def __name__(self) -> str:
        return self.name

    async def __call__(self, state: AppState, request: HttpRequest) -> HttpResponse:
        budget = LoopBudget(state.core, request.tenant)
        is_large, is_short = len(request.body) > LARGE_BYTES, len(request.body) <= SHORT_BYTES
        message = request.parse(self.parser) if is_short else await request.parse_in_pieces(self.parser, budget)
        if self.authorize is not None and self.needs_authorizing(request):
            await self.authorize(state, request)
        item = self.to_item(state, request, message)
        parents = await trace_parents(state.core, request.tenant, self.task_ids(item)) if state.tracing.is_on else ()
        with state.tracing.verb(self.span, parents, **self.attributes(request, item)):
            [answer] = await self.execute(state.core, request.tenant, [item])
        if isinstance(answer, CodeqError):
            raise answer
        if is_large:
            await budget.yield_if_spent()
        return self.respond(request, answer)


class RequestBatch:
    """Requests for one handler by one tenant: a failing batch of one tenant does not affect those of others."""

    __slots__ = ("bytes", "handler", "items", "requests", "tenant")

    def __init__(self, handler: BatchedHandler, tenant: str) -> None:
        self.handler = handler
        self.tenant = tenant
        self.requests: list[HttpRequest] = []
        self.items: list[Any] = []
        self.bytes = 0

    def has_room(self, size: int) -> bool:
        return len(self.items) < BATCH_TASKS_MAX and self.bytes + size <= BATCH_BYTES_MAX


class MicroBatcher:
    """Starts the batches of an iteration at its end. On an idle server a batch has one request."""

    def __init__(self, start: Callable[[RequestBatch], None]) -> None:
        self._start = start
        self._batches: list[RequestBatch] = []
        self._open: dict[tuple[int, str], RequestBatch] = {}

    def add(self, handler: BatchedHandler, request: HttpRequest, item: Any) -> None:
        key = (id(handler), request.tenant)
        size = handler.item_bytes(item)
        batch = self._open.get(key)
        if batch is None or not batch.has_room(size):
            if not self._batches:
                asyncio.get_running_loop().call_soon(self._start_all)
            batch = self._open[key] = RequestBatch(handler, request.tenant)
            self._batches.append(batch)
        batch.requests.append(request)
        batch.items.append(item)
        batch.bytes += size

    def _start_all(self) -> None:
        batches, self._batches, self._open = self._batches, [], {}
        for batch in batches:
            self._start(batch)
