"""Claims of one shard: which queues a claim may take from, and what the take script answered."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, count, groupby
from typing import NamedTuple

from codeq.domain.limits import CLAIM_COMMANDS_MAX, PRIORITY_MAX
from codeq.domain.queue import QueueKey, is_system
from codeq.domain.task import Task
from codeq.store.interface import ClaimRequest
from codeq.store.redis import records
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import Channels, ShardKeys
from codeq.store.redis.merging import TASKS_AT_ONCE

ENTRIES_MAX = 2000
"""Entries of pending lists that one take reads: a claim of a thousand tasks, and as many that were cancelled."""

INLINE_BODY_BYTES_MAX = 2048
"""Bodies with a longer payload are read beside the script, because Lua hashes every value."""

_ID_BYTES, _ENTRY_BYTES = 16, 24
_FIELDS_READ = 4 * CLAIM_COMMANDS_MAX
_TENANTS_MAX = 1_000
_SERVED_MAX = 10_000
_RUN_ARGUMENTS = 6


Argument = bytes | str | int


class TakeResult(NamedTuple):
    """What a claim got."""

    is_repeat: bool
    """Whether these tasks were leased before, by a claim with the same request id."""
    contents: list[bytes | None]
    """Record and body of each task in turn."""
    has_run_out: bool
    """Whether it got less because of ENTRIES_MAX."""


NOTHING = TakeResult(is_repeat=False, contents=[], has_run_out=False)


class ShardClaim(NamedTuple):
    """A claim with the queues that it may take from."""

    request: ClaimRequest
    queues: Sequence[QueueKey]
    rooms: Mapping[QueueKey, int]
    """Per queue: how many tasks may be in progress in this shard; -1 for no limit."""


def shard_claim(request: ClaimRequest, queues: Sequence[QueueKey]) -> ShardClaim:
    return ShardClaim(request, queues, {queue: _room(request, queue) for queue in queues})


class ClaimGroup:
    """Claims that one script serves: of the same queues, no two of which would have to know of each other."""

    def __init__(self) -> None:
        self._first: ShardClaim | None = None
        self._request_ids: set[tuple[str, str]] = set()
        self._tasks = 0

    def add(self, claim: ShardClaim) -> bool:
        request, first = claim.request, self._first
        request_id = None if request.request_id is None else (request.worker, request.request_id)
        if first is None:
            self._first = claim
        elif (
            self._tasks + request.limit > TASKS_AT_ONCE
            or request_id in self._request_ids
            or request.tenant != first.request.tenant
            or request.priority != first.request.priority
            or claim.rooms != first.rooms
        ):
            return False
        if request_id is not None:
            self._request_ids.add(request_id)
        self._tasks += request.limit
        return True


def entries(data: bytes) -> dict[bytes, bytes]:
    """Returns ids and versions of the tasks that a claim leased."""
    parts = [data[start : start + _ENTRY_BYTES] for start in range(0, len(data), _ENTRY_BYTES)]
    return {part[:_ID_BYTES]: part[_ID_BYTES:] for part in parts}


class Rotation:
    """Which queues were served last: those that waited longest come first."""

    def __init__(self) -> None:
        self._served: OrderedDict[QueueKey, int] = OrderedDict()
        self._turns = count()

    def order(self, queues: Sequence[QueueKey]) -> list[QueueKey]:
        if len(queues) < 2:
            return list(queues)
        return sorted(queues, key=lambda queue: self._served.get(queue, -1))

    def served(self, queues: Iterable[QueueKey]) -> None:
        """Notes that tasks of these queues were delivered, those of the last queue last."""
        for queue in queues:
            self._served[queue] = next(self._turns)
            self._served.move_to_end(queue)
        while len(self._served) > _SERVED_MAX:
            self._served.popitem(last=False)


class ClaimQueues:
    """Which queues of one shard a claim may take from, and in which order."""

    def __init__(self, connection: RedisClient, keys: ShardKeys) -> None:
        self.rotation = Rotation()
        self._connection = connection
        self._keys = keys
        self._read_to: OrderedDict[tuple[str, int | None], bytes] = OrderedDict()
        """By tenant and priority: up to where queues were read last, if there are more than one read returns."""

    async def open(self, request: ClaimRequest) -> list[QueueKey]:
        """Returns queues that are not paused: those of the highest priority first, then those that waited longest."""
        if request.commands is not None:
            named = [QueueKey(request.tenant, command) for command in request.commands]
            return self.rotation.order([queue for queue in named if not request.policy_of(queue).paused])
        ready = await self.ready(request)
        queues = sorted(self.rotation.order(list(ready)), key=lambda queue: -max(ready[queue]))
        return [queue for queue in queues if not request.policy_of(queue).paused]

    async def ready(self, request: ClaimRequest) -> dict[QueueKey, set[int]]:
        """Returns queues of the tenant with pending tasks, and their priorities. Of very many, those of the highest
        priority and some of the others, in turn: the first ones may all be paused, or wait for a slot."""
        low, high = (0, PRIORITY_MAX) if request.priority is None else (request.priority, request.priority)
        first, end = b"(%d" % (high + 1) if high < PRIORITY_MAX else b"(:", b"[%d" % low
        fields = await self._read(request.tenant, first, end)
        if len(fields) == _FIELDS_READ:
            asked = (request.tenant, request.priority)
            start = min(self._read_to.pop(asked, fields[-1]), fields[-1])
            others = await self._read(request.tenant, b"(" + start, end)
            if len(others) == _FIELDS_READ:
                self._read_to[asked] = others[-1]
                if len(self._read_to) > _TENANTS_MAX:
                    self._read_to.popitem(last=False)
            fields += others
        return _by_queue(request.tenant, fields)

    async def _read(self, tenant: str, start: bytes, end: bytes) -> list[bytes]:
        found: list[bytes] = await self._connection.call(
            "ZREVRANGEBYLEX", self._keys.ready(tenant), start, end, "LIMIT", 0, _FIELDS_READ
        )
        return found


def _by_queue(tenant: str, fields: Iterable[bytes]) -> dict[QueueKey, set[int]]:
    found: dict[QueueKey, set[int]] = {}
    for field in fields:
        text = field.decode()
        if is_system(text[1:]):
            continue
        found.setdefault(QueueKey(tenant, text[1:]), set()).add(int(text[0]))
    return found


def take_arguments(
    claims: Sequence[ShardClaim], queues: Sequence[QueueKey], *, now_ms: int, keys: ShardKeys, channels: Channels,
    shard: int, with_times: bool,
) -> tuple[list[str], list[Argument]]:  # fmt: skip
    """Returns keys and arguments of the take script, for claims of these queues."""
    first = claims[0].request
    names = [
        keys.records, keys.bodies, keys.number, keys.events, keys.counts(first.tenant), keys.ready(first.tenant),
        keys.leased_heads, keys.absent,
    ]  # fmt: skip
    arguments: list[Argument] = [
        ENTRIES_MAX, INLINE_BODY_BYTES_MAX, channels.moved, shard.to_bytes(2, "big"),
        "" if first.priority is None else first.priority, len(queues), "1" if with_times else "",
    ]  # fmt: skip
    of_queues: list[Argument] = []
    for queue in queues:
        of_queue = keys.queue(queue)
        names += [*of_queue.pending, of_queue.delayed, of_queue.leased, of_queue.withdrawn]
        of_queues += [queue.command, of_queue.member, claims[0].rooms[queue]]
    kinds: list[tuple[int, int, int, str, int]] = []
    terms: list[Argument] = []
    known: dict[tuple[str, str | None, int | None], int] = {}
    """Where the terms of a claim begin among all terms, by what decides them: of claims that are merged, most have the
    same."""
    for claim in claims:
        request = claim.request
        who = (request.worker, request.worker_name, request.lease_ms)
        if who not in known:
            known[who] = len(terms)
            for queue in queues:
                lease_ms = request.lease_ms or request.policy_of(queue).lease_ms
                terms += [
                    records.claim_arguments(request.worker, now_ms, lease_ms, request.worker_name), now_ms + lease_ms,
                ]  # fmt: skip
        remember_ms = 0
        if request.request_id is not None:
            names.append(keys.claim(request.tenant, request.worker, request.request_id))
            remember_ms = max(request.lease_ms or request.policy_of(queue).lease_ms for queue in queues)
        kinds.append((request.limit, request.bytes_max, remember_ms, "1" if request.is_part else "", known[who]))
    runs = [(len(list(alike)), kind) for kind, alike in groupby(kinds)]
    arguments += [len(runs), *of_queues]
    first_terms = len(arguments) + _RUN_ARGUMENTS * len(runs) + 1
    for number, (limit, bytes_max, remember_ms, is_part, terms_at) in runs:
        arguments += [number, limit, bytes_max, remember_ms, is_part, first_terms + terms_at]
    return names, arguments + terms


def divided(sizes: Sequence[int], contents: list[bytes | None], *, has_run_out: bool) -> list[TakeResult]:
    """Returns what each claim got, of what the take script answered for all of them."""
    ends = accumulate(map(abs, sizes))
    return [
        TakeResult(size < 0, contents[2 * (end - abs(size)) : 2 * end], has_run_out)
        for size, end in zip(sizes, ends, strict=True)
    ]


def _room(request: ClaimRequest, queue: QueueKey) -> int:
    """Returns how many tasks of the queue may be in progress in this shard; -1 for no limit."""
    policy = request.policy_of(queue)
    if not policy.max_consumers:
        return -1
    return max(0, policy.max_consumers - request.held_elsewhere.get(queue, 0))


def in_turn(tasks: Sequence[Task]) -> list[int]:
    """Returns the places of the tasks in the order of delivery: by priority, and one of each queue in turn."""
    rounds: dict[tuple[int, str], int] = {}
    order: list[tuple[int, int, int]] = []
    for place, task in enumerate(tasks):
        number = rounds[task.priority, task.command] = rounds.get((task.priority, task.command), 0) + 1
        order.append((-task.priority, number, place))
    return [place for _, _, place in sorted(order)]
