"""Several shards as one store: routes each verb to the shard that an id names, or to all. Same for every engine."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol, TypeVar

from codeq.domain.errors import CodeqError, InvalidRequest, StoreError
from codeq.domain.ids import is_task_id, shard_of, shard_of_key
from codeq.domain.limits import BATCH_BYTES_MAX, PAYLOAD_BYTES_MAX
from codeq.domain.queue import Index, QueueCounts, QueueKey, QueuePolicy
from codeq.domain.requests import Delivery, Filter, Page, Record
from codeq.domain.task import Change, Task
from codeq.domain.tenants import StorageUsage
from codeq.store import all_counts
from codeq.store.cursors import bad_cursor
from codeq.store.detached import DetachedTakes
from codeq.store.interface import ALL, ClaimRequest, Events, Peers, Primaries, Registry, Scope, Store

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Shard(Store, Protocol):
    """A store of one shard, which also knows what the shards of a store must know of each other."""

    async def in_progress(self, queue: QueueKey) -> int:
        """Returns how many tasks of the queue are in progress."""

    async def queues(self) -> list[QueueKey]:
        """Returns the queues of all tenants. Some of them may be empty."""

    async def queues_of(self, tenant: str) -> Set[QueueKey]:
        """Returns the tenant's queues that hold a task."""

    async def priorities(self, request: ClaimRequest) -> Collection[int]:
        """Returns the priorities of which the claim's queues have pending tasks; perhaps others besides."""

    async def repeated(self, request: ClaimRequest) -> list[Delivery]:
        """Returns the tasks that are still leased by an earlier claim with the same request id, as `take` does."""


class ShardedStore:
    """Implements `Store` over shards. Order and atomicity hold inside a shard. The first one stores the policies
    and the registry."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = list(shards)
        self.now_ms = shards[0].now_ms  # they have one clock
        self.is_local = shards[0].is_local
        self._takes = DetachedTakes()
        self._turn = 0
        self._used: ContextVar[frozenset[int] | None] = ContextVar("codeq_shards_used", default=None)
        """The shards that the current asyncio task has used since its last flush; None if it has used none."""
        self._queues_counted: tuple[str, list[int], int] = ("", [], 0)
        """The last count of a tenant's queues, and how many each shard had then."""

    @property
    def peers(self) -> Peers:
        return self._shards[0].peers

    @property
    def registry(self) -> Registry:
        self._use([0])  # before the caller flushes: the entries are in the first shard
        return self._shards[0].registry

    @property
    def shards(self) -> int:
        return len(self._shards)

    @property
    def log_id(self) -> str:
        return self._shards[0].log_id

    async def queues(self) -> list[QueueKey]:
        return list({key for part in await self._visit(shard.queues() for shard in self._shards) for key in part})

    def all_counts(self, command: str | None = None) -> AsyncIterator[Mapping[QueueKey, QueueCounts]]:
        read = all_counts.in_memory if self.is_local else all_counts.elsewhere
        return read(self, command)

    async def commit(self, changes: Sequence[Change]) -> list[Task | None]:
        return await self._route(changes, lambda change: change.after.id, lambda shard, part: shard.commit(part))

    async def take(self, request: ClaimRequest) -> list[Delivery]:
        if self.is_local:
            return await self._take(request)
        taken = await self._takes.run(self._take(request), request)
        self._use({shard_of(delivery.task.id) for delivery in taken})
        return taken

    async def _take(self, request: ClaimRequest) -> list[Delivery]:
        """Takes the highest priority of all shards first. Of each it visits the shards in rotation, each claim starting
        one further."""
        if request.request_id is not None and not request.is_part:
            repeated = await self._visit(shard.repeated(request) for shard in self._shards)
            if any(repeated):
                self._use([number for number, part in enumerate(repeated) if part])
                return [delivery for part in repeated for delivery in part]
        self._turn += 1
        start = self._turn % len(self._shards)
        numbers = [*range(start, len(self._shards)), *range(start)]
        found = await self._visit(self._shards[number].priorities(request) for number in numbers)
        limited = await self._limited_queues(request)
        taken: list[Delivery] = []
        for priority in sorted({priority for part in found for priority in part}, reverse=True):
            holding = [number for number, part in zip(numbers, found, strict=True) if priority in part]
            while holding and len(taken) < request.limit and _payload_bytes(taken) < request.bytes_max:
                holding = await self._take_some(holding, request, priority, taken=taken, limited=limited)
        return taken

    async def _take_some(
        self,
        holding: list[int],
        request: ClaimRequest,
        priority: int,
        *,
        taken: list[Delivery],
        limited: list[QueueKey],
    ) -> list[int]:
        """Takes a part of the claim of some shards, together where that helps. Returns those that may have more.

        `max_consumers` is counted over all shards, so then they are visited one by one.
        """
        left, bytes_left = request.limit - len(taken), request.bytes_max - _payload_bytes(taken)
        bytes_each = (
            bytes_left // min(left, len(holding)) - PAYLOAD_BYTES_MAX
        )  # each may exceed its part by one payload
        part = holding[: 1 if self.is_local or limited or bytes_each <= 0 else left]
        shares = {number: left // len(part) + (place < left % len(part)) for place, number in enumerate(part)}
        bytes_max = bytes_left if len(part) == 1 else bytes_each
        requests = await self._requests(shares, request, priority, bytes_max=bytes_max, limited=limited)
        more: list[int] = []
        fault: CodeqError | None = None
        for number, answer in zip(part, await self._visit(map(self._attempt, part, requests.values())), strict=True):
            if isinstance(answer, CodeqError):
                fault = answer
                continue
            taken += answer
            self._use([number])
            if len(answer) == shares[number] or _payload_bytes(answer) >= bytes_max:
                more.append(number)
        if fault is not None:
            if taken and request.hand_back is not None:
                await request.hand_back(taken)
            raise fault
        return holding[len(part) :] + more

    async def _attempt(self, number: int, request: ClaimRequest) -> list[Delivery] | CodeqError:
        """Takes tasks of one shard. Returns a fault, so that what other shards have leased can be handed back."""
        try:
            return await self._shards[number].take(request)
        except CodeqError as fault:
            return fault

    async def _requests(
        self,
        shares: Mapping[int, int],
        request: ClaimRequest,
        priority: int,
        *,
        bytes_max: int,
        limited: list[QueueKey],
    ) -> dict[int, ClaimRequest]:
        """Returns the request to each shard: as many tasks as `shares` says, with so many bytes of payload."""
        held = {queue: await self._visit(shard.in_progress(queue) for shard in self._shards) for queue in limited}
        return {
            number: request.of_shard(
                priority,
                limit=share,
                bytes_max=bytes_max,
                held_elsewhere={queue: sum(parts) - parts[number] for queue, parts in held.items()},
            )
            for number, share in shares.items()
        }

    async def _limited_queues(self, request: ClaimRequest) -> list[QueueKey]:
        """Returns the claim's queues that have `max_consumers`, which the shards must count together."""
        tenant, policy_of = request.tenant, request.policy_of
        if request.commands is not None:
            queues: Iterable[QueueKey] = [QueueKey(tenant, command) for command in request.commands]
        elif policy_of(QueueKey(tenant, "")).max_consumers:  # no command has this name: the default
            queues = set().union(*await self._visit(shard.queues_of(tenant) for shard in self._shards))
        else:
            queues = [queue for queue in self.policies() if queue.tenant == tenant]
        return [queue for queue in queues if policy_of(queue).max_consumers]

    async def get_tasks(self, tenant: str, ids: Sequence[str], *, from_memory: bool = False) -> list[Task | None]:
        if from_memory and self.is_local:
            return []
        return await self._route(ids, str, lambda shard, part: shard.get_tasks(tenant, part, from_memory=from_memory))

    async def get_records(self, tenant: str, ids: Sequence[str], *, results: bool = True) -> list[Record | None]:
        return await self._route(ids, str, lambda shard, part: shard.get_records(tenant, part, results=results))

    async def due(self, index: Index, now_ms: int, limit: int, *, scope: Scope = ALL) -> list[Task]:
        shards = [self._shards[number] for number in self._numbers(scope.shard)]
        parts = await self._visit(shard.due(index, now_ms, limit, scope=scope) for shard in shards)
        found = [task for part in parts for task in part]
        found.sort(key=_DUE[index])
        return found[:limit]

    async def find(
        self, tenant: str, wanted: Filter, *, cursor: str | None, limit: int, bytes_max: int = BATCH_BYTES_MAX
    ) -> Page:
        """Reads shard after shard; the cursor is the shard's number and its own cursor."""
        number, inner = _split_cursor(cursor, len(self._shards))
        found: list[Task] = []
        while number < len(self._shards):
            self._use([number])
            page = await self._shards[number].find(
                tenant, wanted, cursor=inner, limit=limit - len(found), bytes_max=bytes_max
            )
            found += page.tasks
            bytes_max -= sum([task.payload_bytes for task in page.tasks])
            if page.cursor is not None:
                return Page(found, f"{number}:{page.cursor}")
            number, inner = number + 1, None
            if (len(found) == limit or bytes_max <= 0) and number < len(self._shards):
                return Page(found, f"{number}:")
        return Page(found, None)

    async def counts(
        self, tenant: str | None, command: str | None = None, *, ages: bool = False
    ) -> dict[QueueKey, QueueCounts]:
        total: dict[QueueKey, QueueCounts] = {}
        self._use(range(len(self._shards)))
        for found in await self._visit(shard.counts(tenant, command, ages=ages) for shard in self._shards):
            for key, part in found.items():
                total[key] = _sum(total[key], part) if key in total else part
        return total

    async def events(self, shard: int, start: int, limit: int) -> Events:
        if not 0 <= shard < len(self._shards):
            raise InvalidRequest(f"there is no shard {shard}; shards are 0 to {len(self._shards) - 1}")
        self._use([shard])
        return await self._shards[shard].events(0, start, limit)

    async def trim(self, *, before_ms: int, keep_max: int, shard: int | None = None) -> int:
        trimmed = [
            await self._shards[number].trim(before_ms=before_ms, keep_max=keep_max) for number in self._numbers(shard)
        ]
        return sum(trimmed)

    def policies(self) -> Mapping[QueueKey, QueuePolicy]:
        return self._shards[0].policies()

    async def set_policy(self, queue: QueueKey, policy: QueuePolicy | None, *, replacing: QueuePolicy | None) -> bool:
        """Stores it in the first shard. Deletes it from all: so deleting one that does not exist probes every disk."""
        self._use([0])
        is_set = await self._shards[0].set_policy(queue, policy, replacing=replacing)
        if policy is None and is_set:
            self._use(range(len(self._shards)))
            for shard in self._shards[1:]:
                await shard.set_policy(queue, None, replacing=None)
        return is_set

    async def tenant_usage(
        self, tenant: str, *, commands: Sequence[str] = (), keys: Sequence[str] = ()
    ) -> StorageUsage:
        by_shard: defaultdict[int, list[str]] = defaultdict(list)
        for key in keys:
            by_shard[shard_of_key(tenant, key, len(self._shards))].append(key)
        if by_shard:
            self._use(list(by_shard))
        parts = await self._visit(
            shard.tenant_usage(tenant, commands=commands, keys=by_shard[number])
            for number, shard in enumerate(self._shards)
        )
        return StorageUsage(
            sum([part.tasks for part in parts]),
            sum([part.payload_bytes for part in parts]),
            await self._count_queues(tenant) if commands else sum([part.queues for part in parts]),
            parts[0].policies,
            frozenset().union(*[part.commands for part in parts]),
            frozenset().union(*[part.keys for part in parts]),
        )

    async def _count_queues(self, tenant: str) -> int:
        """Counts anew only after the number in a shard has changed: a tenant at its limit costs the others little."""
        queues = await self._visit(shard.queues_of(tenant) for shard in self._shards)
        sizes = [len(part) for part in queues]
        if self._queues_counted[:2] != (tenant, sizes):
            self._queues_counted = (tenant, sizes, len(set().union(*queues)))
        return self._queues_counted[2]

    @property
    def primaries(self) -> Primaries:
        return tuple([shard.primaries[0] for shard in self._shards])

    async def flush(self, ids: Sequence[str] | None = None, *, since: Primaries | None = None) -> None:
        used = self._used.get() if ids is None else frozenset(map(shard_of, ids))
        self._used.set(None)
        if used is None:
            used = frozenset(range(len(self._shards)))
        if len(used) == 1:
            [number] = used
            await self._flush(number, since)
        else:
            await asyncio.gather(*(self._flush(number, since) for number in used))

    async def _flush(self, number: int, since: Primaries | None) -> None:
        await self._shards[number].flush(since=since and since[number : number + 1])

    async def checkpoint(self, target: Path) -> None:
        for number, shard in enumerate(self._shards):
            await shard.checkpoint(target / shard_name(number))

    async def close(self, because: StoreError | None = None) -> None:
        await self._takes.end()
        answers = await asyncio.gather(*(shard.close(because) for shard in self._shards), return_exceptions=True)
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
        self._use(places)
        parts = await self._visit(
            call(self._shards[shard], [items[place] for place in chosen]) for shard, chosen in places.items()
        )
        for chosen, part in zip(places.values(), parts, strict=True):
            for place, answer in zip(chosen, part, strict=True):
                answers[place] = answer
        return answers

    async def _visit(self, calls: Iterable[Awaitable[Answer]]) -> list[Answer]:
        """Awaits one call per shard, all at once where they wait for other machines: then raises what one of them
        raised only when all have ended."""
        if self.is_local:
            return [await call for call in calls]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    def _use(self, numbers: Iterable[int]) -> None:
        """Notes that the current asyncio task depends on these shards. Too many only make it wait longer."""
        used = self._used.get()
        self._used.set(frozenset(numbers) if used is None else used.union(numbers))

    def _numbers(self, shard: int | None) -> Sequence[int]:
        numbers = range(len(self._shards)) if shard is None else [shard]
        self._use(numbers)
        return numbers


_DUE: dict[Index, Callable[[Task], int]] = {
    Index.DELAYED: lambda task: task.visible_ms,
    Index.IN_PROGRESS: lambda task: task.lease_until_ms,
    Index.NONE: lambda task: task.purge_ms,
}


def _payload_bytes(deliveries: Sequence[Delivery]) -> int:
    return sum([delivery.task.payload_bytes for delivery in deliveries])


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
        raise bad_cursor(cursor)
    return int(number), inner or None
