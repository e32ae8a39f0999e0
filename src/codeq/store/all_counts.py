"""Counts of the queues of all tenants, a few at a time, as an engine reads them best."""

from collections.abc import AsyncIterator, Mapping
from itertools import islice
from typing import Protocol

from codeq.domain.queue import QueueCounts, QueueKey

_AT_ONCE = 200


class _Counted(Protocol):
    async def counts(self, tenant: str | None, command: str | None = None) -> dict[QueueKey, QueueCounts]: ...


class _WithQueues(_Counted, Protocol):
    async def queues(self) -> list[QueueKey]: ...


async def in_memory(store: _WithQueues, command: str | None = None) -> AsyncIterator[Mapping[QueueKey, QueueCounts]]:
    """Reads queue by queue, where that costs next to nothing and all together would hold the loop."""
    for queue in await store.queues():
        if command in (None, queue.command):
            yield await store.counts(queue.tenant, queue.command)


async def elsewhere(store: _Counted, command: str | None = None) -> AsyncIterator[Mapping[QueueKey, QueueCounts]]:
    """Reads all, where a queue is a round trip."""
    found = iter((await store.counts(None, command)).items())
    while part := dict(islice(found, _AT_ONCE)):
        yield part
