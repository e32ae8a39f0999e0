"""Follow the event log of all shards at once, each from its own place on."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from codeq.cli.events import PAST_THE_END

if TYPE_CHECKING:
    from codeq import AsyncClient
    from codeq.wire.events import Event, EventPage

PAGE_EVENTS = 1000
WAIT_S = 20.0
CONNECTIONS_MAX = 32
"""Shards that are waited on at once. With more shards they take turns, and are looked at every second or so."""


class Tail:
    def __init__(
        self, client: "AsyncClient", offset: int, show: "Callable[[Event], None]", *, is_following: bool
    ) -> None:
        self._client = client
        self._offset = offset
        self._show = show
        self._is_following = is_following
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)

    async def run(self) -> None:
        async with self._client as client:
            first = await client.events(shard=0, offset=PAST_THE_END, limit=1)
            try:
                async with asyncio.TaskGroup() as group:
                    for shard in range(first.shards):
                        group.create_task(self._read(shard, shards=first.shards))
            except BaseExceptionGroup as faults:
                raise faults.exceptions[0] from None  # what stopped one has stopped all; one is enough to tell

    async def _read(self, shard: int, *, shards: int) -> None:
        wait_s = WAIT_S if self._is_following and shards <= CONNECTIONS_MAX else 0.0
        offset = self._offset
        if offset == PAST_THE_END:
            offset = (await self._page(shard, offset, 0)).end_offset
        while True:
            page = await self._page(shard, offset, wait_s)
            for event in page.events:
                self._show(event)
            offset = page.next_offset
            if offset >= page.end_offset:
                if not self._is_following:
                    return
                if not wait_s:
                    await asyncio.sleep(1)

    async def _page(self, shard: int, offset: int, wait_s: float) -> "EventPage":
        async with self._turns:
            return await self._client.events(shard=shard, offset=offset, limit=PAGE_EVENTS, wait=wait_s)
