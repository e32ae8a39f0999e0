"""What this process knows of the queues of a shard: which priorities have pending tasks, and when the next one is due.

Every claim and every commit of this process tells it. Of what other processes do it may be KNOWN_S late, which costs
order, not tasks: a claim may then pass over a higher priority of another shard, or a task that has just become due.
"""

from collections import OrderedDict
from collections.abc import Sequence
from time import monotonic

from codeq.domain import lifecycle
from codeq.domain.queue import Index, QueueKey
from codeq.domain.task import Task

KNOWN_S = 1.0
"""How long it is believed."""

QUEUES_MAX = 10_000
"""Queues remembered: about three megabytes. Others are looked up."""

_NEVER = float("inf")
_PENDING, _DELAYED = Index.PENDING, Index.DELAYED


class QueueHead:
    __slots__ = ("known_s", "next_delayed_ms", "next_lease_ms", "priorities")

    def __init__(self, priorities: set[int], next_delayed_ms: float, next_lease_ms: float) -> None:
        self.priorities = priorities
        self.next_delayed_ms = next_delayed_ms
        self.next_lease_ms = next_lease_ms
        self.known_s = monotonic()


class QueueHeads:
    def __init__(self) -> None:
        self._heads: OrderedDict[tuple[str, str], QueueHead] = OrderedDict()

    def get(self, queue: tuple[str, str]) -> QueueHead | None:
        """Returns what is known of the queue; None if that is nothing, or too old. Takes a plain tuple as well, which
        equals the key and is faster to make."""
        head = self._heads.get(queue)
        if head is None or monotonic() - head.known_s > KNOWN_S:
            return None
        return head

    def set(self, queue: QueueKey, told: list[bytes]) -> QueueHead:
        """Stores what a script has told: priorities as digits, next delayed, next lease."""
        priorities, delayed, leased = told
        head = QueueHead(_priorities(priorities), _time(delayed), _time(leased))
        self._heads[queue] = head
        self._heads.move_to_end(queue)
        if len(self._heads) > QUEUES_MAX:
            self._heads.popitem(last=False)
        return head

    def is_fresh(self, queue: QueueKey) -> bool:
        """Whether what is known of the queue need not be asked for again yet."""
        head = self._heads.get(queue)
        return head is not None and monotonic() - head.known_s < KNOWN_S / 2

    def set_priorities(self, queue: QueueKey, told: bytes) -> None:
        head = self._heads.get(queue)
        if head is not None:
            head.priorities = _priorities(told)

    def leased(self, queue: QueueKey, until_ms: int) -> None:
        head = self._heads.get(queue)
        if head is not None:
            head.next_lease_ms = min(head.next_lease_ms, until_ms)

    def moved(self, tasks: Sequence[Task]) -> dict[QueueKey, int]:
        """Notes where these tasks are now. Returns how many of them can be claimed, by queue."""
        pending: dict[tuple[str, str, int], int] = {}
        for task in tasks:
            place = lifecycle.position(task)
            if place is _PENDING:
                kind = (task.tenant, task.command, task.priority)
                pending[kind] = pending.get(kind, 0) + 1
            elif place is _DELAYED:
                self._delayed(QueueKey(task.tenant, task.command), task.visible_ms)
        ready: dict[QueueKey, int] = {}
        for (tenant, command, priority), number in pending.items():
            queue = QueueKey(tenant, command)
            ready[queue] = ready.get(queue, 0) + number
            if queue in self._heads:
                self._heads[queue].priorities.add(priority)
        return ready

    def _delayed(self, queue: QueueKey, visible_ms: int) -> None:
        head = self._heads.get(queue)
        if head is not None:
            head.next_delayed_ms = min(head.next_delayed_ms, visible_ms)

    def forget(self, queue: QueueKey) -> None:
        self._heads.pop(queue, None)


def _priorities(told: bytes) -> set[int]:
    return {digit - 48 for digit in told}


def _time(told: bytes) -> float:
    return float(told) if told else _NEVER
