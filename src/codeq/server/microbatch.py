"""Calls that ask for the same in the same turn of the event loop go to the core as one batch."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from codeq.domain.limits import BATCH_BYTES_MAX, BATCH_TASKS_MAX
from codeq.server.request import HttpRequest, HttpResponse
from codeq.server.state import AppState
from codeq.usecases.core import Core


class BatchedVerb(Struct, frozen=True):
    """How one verb takes the calls of several callers at once, in the order in which they came."""

    read: Callable[[AppState, HttpRequest], Any]
    """What the call asks for; None if it must be handled by itself. Raises a refusal."""
    size: Callable[[Any], int]
    """How many bytes of a batch that takes."""
    verb: Callable[[Core, str, Sequence[Any]], Awaitable[Sequence[Any]]]
    """The use case: per item its answer or a CodeqError, none of which touches another's."""
    answer: Callable[[HttpRequest, Any], HttpResponse]


class Batch:
    """Calls of one verb and one tenant: what fails one tenant's batch is nothing to another's."""

    __slots__ = ("bytes", "items", "requests", "shared", "tenant")

    def __init__(self, shared: BatchedVerb, tenant: str) -> None:
        self.shared = shared
        self.tenant = tenant
        self.requests: list[HttpRequest] = []
        self.items: list[Any] = []
        self.bytes = 0

    def has_room(self, size: int) -> bool:
        return len(self.items) < BATCH_TASKS_MAX and self.bytes + size <= BATCH_BYTES_MAX


class MicroBatcher:
    """A turn's batches leave together at its end, so that nobody waits for company; a busy server has it anyway."""

    def __init__(self, leave: Callable[[Batch], None]) -> None:
        self._leave = leave
        self._batches: list[Batch] = []
        self._open: dict[tuple[int, str], Batch] = {}

    def add(self, shared: BatchedVerb, request: HttpRequest, item: Any) -> None:
        key = (id(shared), request.tenant)
        size = shared.size(item)
        batch = self._open.get(key)
        if batch is None or not batch.has_room(size):
            if not self._batches:
                asyncio.get_running_loop().call_soon(self._go)
            batch = self._open[key] = Batch(shared, request.tenant)
            self._batches.append(batch)
        batch.requests.append(request)
        batch.items.append(item)
        batch.bytes += size

    def _go(self) -> None:
        batches, self._batches, self._open = self._batches, [], {}
        for batch in batches:
            self._leave(batch)
