"""A store that reports every call to another: how long each verb took, on how many items, and how it ended."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from codeq.domain.queue import Index, QueueCounts, QueueKey, QueuePolicy
from codeq.domain.requests import Delivery, Filter, Page
from codeq.domain.task import Change, Task
from codeq.store.interface import ClaimOrder, Events, Listener, Record, Store

Report = Callable[[str, float, int, BaseException | None], None]
"""Called with the verb, its seconds, the number of items it was given or asked for, and what it raised."""


class ObservedStore:
    def __init__(self, store: Store, report: Report) -> None:
        self._store = store
        self._report = report

    @property
    def shards(self) -> int:
        return self._store.shards

    @property
    def listener(self) -> Listener:
        return self._store.listener

    @listener.setter
    def listener(self, listener: Listener) -> None:
        self._store.listener = listener

    @contextmanager
    def _timed(self, verb: str, items: int = 1) -> Iterator[None]:
        start_s = time.perf_counter()
        fault: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            fault = raised
            raise
        finally:
            self._report(verb, time.perf_counter() - start_s, items, fault)

    def now_ms(self) -> int:
        return self._store.now_ms()

    async def commit(self, changes: Sequence[Change]) -> list[Task | None]:
        with self._timed("commit", len(changes)):
            return await self._store.commit(changes)

    async def take(self, order: ClaimOrder) -> list[Delivery]:
        with self._timed("take", order.limit):
            return await self._store.take(order)

    async def load(self, tenant: str, ids: Sequence[str]) -> list[Task | None]:
        with self._timed("load", len(ids)):
            return await self._store.load(tenant, ids)

    async def read(self, tenant: str, ids: Sequence[str]) -> list[Record | None]:
        with self._timed("read", len(ids)):
            return await self._store.read(tenant, ids)

    async def due(self, index: Index, now_ms: int, limit: int) -> list[Task]:
        with self._timed("due", limit):
            return await self._store.due(index, now_ms, limit)

    async def find(self, tenant: str, wanted: Filter, *, cursor: str | None, limit: int) -> Page:
        with self._timed("find", limit):
            return await self._store.find(tenant, wanted, cursor=cursor, limit=limit)

    async def counts(self, tenant: str | None, *, ages: bool = False) -> dict[QueueKey, QueueCounts]:
        with self._timed("counts"):
            return await self._store.counts(tenant, ages=ages)

    async def events(self, shard: int, start: int, limit: int) -> Events:
        with self._timed("events", limit):
            return await self._store.events(shard, start, limit)

    async def trim(self, *, before_ms: int, keep_max: int) -> int:
        with self._timed("trim"):
            return await self._store.trim(before_ms=before_ms, keep_max=keep_max)

    def policies(self) -> Mapping[QueueKey, QueuePolicy]:
        return self._store.policies()

    async def set_policy(self, queue: QueueKey, policy: QueuePolicy | None) -> None:
        with self._timed("set_policy"):
            await self._store.set_policy(queue, policy)

    async def settle(self) -> None:
        with self._timed("settle"):
            await self._store.settle()

    async def checkpoint(self, target: Path) -> None:
        with self._timed("checkpoint"):
            await self._store.checkpoint(target)

    async def close(self) -> None:
        with self._timed("close"):
            await self._store.close()
