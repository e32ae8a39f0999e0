"""Claims of one shard: which queues a claim may take from, and what the take script answered."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

from codeq.domain.limits import CLAIM_COMMANDS_MAX, PRIORITY_MAX
from codeq.domain.queue import EffectivePolicy, QueueKey
from codeq.domain.task import Task
from codeq.store.interface import ClaimRequest
from codeq.store.redis import records
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import Channels, ShardKeys

ENTRIES_MAX = 2000
"""Entries of pending lists that one take reads: a claim of a thousand tasks, and as many that were cancelled."""

INLINE_BODY_BYTES_MAX = 2048
"""Bodies with a longer payload are read beside the script, because Lua hashes every value."""

_ID_BYTES, _ENTRY_BYTES = 16, 24
_QUEUES_READ = 4 * CLAIM_COMMANDS_MAX
_SERVED_MAX = 10_000


Taken = tuple[list[bytes | None], list[list[bytes]] | None, int]
"""Record and body of each task in turn; what the script tells of each queue, None for a repeated claim; and whether the
entries that one take reads ran out."""


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

    def served(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            queue = QueueKey(task.tenant, task.command)
            self._served[queue] = next(self._turns)
            self._served.move_to_end(queue)
        while len(self._served) > _SERVED_MAX:
            self._served.popitem(last=False)


async def ready_queues(connection: RedisClient, keys: ShardKeys, request: ClaimRequest) -> dict[QueueKey, set[int]]:
    """Returns queues of the tenant with pending tasks, and their priorities; of many, those of the highest priority."""
    low, high = (0, PRIORITY_MAX) if request.priority is None else (request.priority, request.priority)
    fields = await connection.call(
        "ZREVRANGEBYLEX", keys.ready(request.tenant), f"({high + 1}" if high < PRIORITY_MAX else "(:", f"[{low}",
        "LIMIT", 0, _QUEUES_READ,
    )  # fmt: skip
    found: dict[QueueKey, set[int]] = {}
    for field in fields:
        text = field.decode()
        found.setdefault(QueueKey(request.tenant, text[1:]), set()).add(int(text[0]))
    return found


def take_arguments(
    request: ClaimRequest, queues: Sequence[QueueKey], *, now_ms: int, keys: ShardKeys, channels: Channels, shard: int,
) -> tuple[list[str], list[bytes | str | int]]:  # fmt: skip
    """Returns keys and arguments of the take script."""
    tenant = request.tenant
    names = [
        keys.records, keys.bodies, keys.number, keys.events, keys.counts(tenant), keys.ready(tenant), keys.leased_heads,
        keys.claim(tenant, request.worker, request.request_id or ""), keys.absent,
    ]  # fmt: skip
    leases = [request.lease_ms or request.policy_of(queue).lease_ms for queue in queues]
    arguments: list[bytes | str | int] = [
        request.limit, request.bytes_max, ENTRIES_MAX, INLINE_BODY_BYTES_MAX, channels.moved, shard.to_bytes(2, "big"),
        max(leases) if request.request_id is not None else 0, "" if request.priority is None else request.priority,
        "1" if request.is_part else "",
    ]  # fmt: skip
    for queue, lease_ms in zip(queues, leases, strict=True):
        of_queue = keys.queue(queue)
        names += [*of_queue.pending, of_queue.delayed, of_queue.leased]
        arguments += [
            queue.command,
            of_queue.member,
            _room(request, queue, request.policy_of(queue)),
            records.claim_arguments(request.worker, now_ms, lease_ms),
            now_ms + lease_ms,
        ]
    return names, arguments


def _room(request: ClaimRequest, queue: QueueKey, policy: EffectivePolicy) -> int:
    """Returns how many tasks of the queue may be in progress in this shard; -1 for no limit."""
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
