"""Several shards as one store: routes each verb to the shard that an id names, or to all. Same for every engine."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from codeq.domain.errors import InvalidRequest
from codeq.domain.ids import is_task_id, shard_of
from codeq.domain.queue import Index, QueueCounts, QueueKey, QueuePolicy
from codeq.domain.requests import Delivery, Filter, Page, Record
from codeq.domain.task import Change, Task
from codeq.store.interface import ClaimRequest, Events, Store

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Shard(Store, Protocol):
    """A store of one shard, which also counts a queue's tasks in progress."""

    def in_progress(self, queue: QueueKey) -> int: ...


class ShardedStore:
    """Implements `Store` over shards. Order and atomicity hold inside a shard. The first one stores the policies."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = list(shards)
        self._turn = 0

    @property
    def shards(self) -> int:
        return len(self._shards)

    def now_ms(self) -> int:
        return max(shard.now_ms() for shard in self._shards)

    async def commit(self, changes: Sequence[Change]) -> list[Task | None]:
        return await self._route(changes, lambda change: change.after.id, lambda shard, part: shard.commit(part))

    async def take(self, request: ClaimRequest) -> list[Delivery]:
        """Visits the shards in rotation, each claim starting one further: priority order holds inside a shard."""
        self._turn += 1
        taken: list[Delivery] = []
        for i in range(len(self._shards)):
            shard = self._shards[(self._turn + i) % len(self._shards)]
            part = msgspec.structs.replace(
                request, limit=request.limit - len(taken), limits=self._limits(request, shard)
            )
            taken += await shard.take(part)
            if len(taken) == request.limit:
                break
        return taken

    async def get_tasks(self, tenant: str, ids: Sequence[str]) -> list[Task | None]:
        return await self._route(ids, str, lambda shard, part: shard.get_tasks(tenant, part))

    async def get_records(self, tenant: str, ids: Sequence[str]) -> list[Record | None]:
        return await self._route(ids, str, lambda shard, part: shard.get_records(tenant, part))

    async def due(self, index: Index, now_ms: int, limit: int) -> list[Task]:
        found: list[Task] = []
        for shard in self._shards:
            found += await shard.due(index, now_ms, limit)
        found.sort(key=_DUE[index])
        return found[:limit]

    async def find(self, tenant: str, wanted: Filter, *, cursor: str | None, limit: int) -> Page:
        """Reads shard after shard; the cursor is the shard's number and its own cursor."""
        number, inner = _split_cursor(cursor, len(self._shards))
        found: list[Task] = []
        while number < len(self._shards):
            page = await self._shards[number].find(tenant, wanted, cursor=inner, limit=limit - len(found))
            found += page.tasks
            if page.cursor is not None:
                return Page(found, f"{number}:{page.cursor}")
            number, inner = number + 1, None
            if len(found) == limit and number < len(self._shards):
                return Page(found, f"{number}:")
        return Page(found, None)

    async def counts(self, tenant: str | None, *, ages: bool = False) -> dict[QueueKey, QueueCounts]:
        total: dict[QueueKey, QueueCounts] = {}
        for shard in self._shards:
            for key, part in (await shard.counts(tenant, ages=ages)).items():
                total[key] = _sum(total[key], part) if key in total else part
        return total

    async def events(self, shard: int, start: int, limit: int) -> Events:
        if not 0 <= shard < len(self._shards):
            raise InvalidRequest(f"there is no shard {shard}; shards are 0 to {len(self._shards) - 1}")
        return await self._shards[shard].events(0, start, limit)

    async def trim(self, *, before_ms: int, keep_max: int) -> int:
        return sum([await shard.trim(before_ms=before_ms, keep_max=keep_max) for shard in self._shards])

    def policies(self) -> Mapping[QueueKey, QueuePolicy]:
        return self._shards[0].policies()

    async def set_policy(self, queue: QueueKey, policy: QueuePolicy | None) -> None:
        await self._shards[0].set_policy(queue, policy)

    async def flush(self) -> None:
        await asyncio.gather(*(shard.flush() for shard in self._shards))

    async def checkpoint(self, target: Path) -> None:
        for number, shard in enumerate(self._shards):
            await shard.checkpoint(target / shard_name(number))

    async def close(self) -> None:
        answers = await asyncio.gather(*(shard.close() for shard in self._shards), return_exceptions=True)
        for fault in answers:
            if isinstance(fault, BaseException):
                raise fault

    async def _route(
        self,
        items: Sequence[Item],
        id_of: Callable[[Item], str],
        call: Callable[[Shard, Sequence[Item]], Awaitable[list[Answer | None]]],
    ) -> list[Answer | None]:
        """Passes each item to the shard its id names, and returns the results in the order of the items."""
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, item in enumerate(items):
            task_id = id_of(item)
            if is_task_id(task_id) and (shard := shard_of(task_id)) < len(self._shards):
                places[shard].append(place)
        answers: list[Answer | None] = [None] * len(items)
        for shard, chosen in places.items():
            for place, answer in zip(chosen, await call(self._shards[shard], [items[p] for p in chosen]), strict=True):
                answers[place] = answer
        return answers

    def _limits(self, request: ClaimRequest, shard: Shard) -> Mapping[QueueKey, int]:
        """Returns the limits less what other shards have in progress: a queue's limit holds over all shards."""
        if not request.limits:
            return request.limits
        others = [other for other in self._shards if other is not shard]
        return {
            queue: max(0, limit - sum(other.in_progress(queue) for other in others))
            for queue, limit in request.limits.items()
        }


_DUE: dict[Index, Callable[[Task], int]] = {
    Index.DELAYED: lambda task: task.visible_ms,
    Index.IN_PROGRESS: lambda task: task.lease_until_ms,
    Index.NONE: lambda task: task.purge_ms,
}


def shard_name(number: int) -> str:
    return f"shard-{number:04d}"


def _sum(a: QueueCounts, b: QueueCounts) -> QueueCounts:
    ages = [age for age in (a.oldest_ms, b.oldest_ms) if age is not None]
    return QueueCounts(
        pending=a.pending + b.pending,
        delayed=a.delayed + b.delayed,
        in_progress=a.in_progress + b.in_progress,
        dead=a.dead + b.dead,
        oldest_ms=min(ages, default=None),
    )


def _split_cursor(cursor: str | None, shards: int) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    number, colon, inner = cursor.partition(":")
    if not colon or not number.isascii() or not number.isdigit() or len(number) > 4 or int(number) >= shards:
        raise InvalidRequest(f"{cursor[:64]!r} is not a cursor of this listing")
    return int(number), inner or None
