"""Which queues have a task that is due: a heap of times, and turns for those whose time has come.

Turns go from tenant to tenant and from queue to queue, so that a backlog of one delays no other.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from codeq.domain.task import Task
from codeq.store.interface import Scope
from codeq.store.rocksdb.pending import QueueState

TASKS_PER_TURN = 64
"""How many due tasks of one queue are returned before it is the next queue's turn."""

_STALE_MAX = 64
"""Times in the heap that may be out of date: each keeps a queue in memory that has perhaps ended."""

ReadDue = Callable[[QueueState, int, int], list[Task]]
"""Returns up to so many tasks of the queue that are due at that time, and calls `DueQueues.set_next`."""

FindQueue = Callable[[tuple[str, str]], QueueState | None]
"""Returns the queue of this tenant and command, if it has tasks."""


class DueQueues:
    def __init__(self, read: ReadDue) -> None:
        self._read = read
        self._next_ms: dict[QueueState, int] = {}
        """No task of the queue is due before. Queues without tasks are absent."""
        self._heap: list[tuple[int, int, QueueState]] = []
        self._tickets = count()
        self._ready: OrderedDict[str, OrderedDict[QueueState, None]] = OrderedDict()
        """By tenant, in the order of their turns: queues whose time has come."""

    def add(self, queue: QueueState, at_ms: int) -> None:
        """Tells that the queue has a task that is due at that time."""
        known = self._next_ms.get(queue)
        if known is None or at_ms < known:
            self._push(queue, at_ms)

    def set_next(self, queue: QueueState, at_ms: int | None) -> None:
        """Tells when the queue's first task is due; None if it has none."""
        if at_ms is None:
            self._next_ms.pop(queue, None)
        else:
            self._push(queue, at_ms)

    def forget(self, queue: QueueState) -> None:
        """Removes a queue that has no tasks left."""
        self._next_ms.pop(queue, None)

    def next_ms(self, queue: QueueState) -> int:
        return self._next_ms.get(queue, 0)

    def in_scope(self, scope: Scope, find: FindQueue, now_ms: int, limit: int) -> list[Task]:
        """Returns due tasks of the scope. Costs a comparison if no queue has any, as between most claims."""
        if not self._ready and (not self._heap or self._heap[0][0] > now_ms):
            return []
        _, tenant, commands = scope
        if tenant is None or commands is None:
            return self.of_tenant(tenant, now_ms, limit)
        found: list[Task] = []
        for command in commands:
            queue = find((tenant, command))
            if queue is not None and len(found) < limit:
                found += self.of_queue(queue, now_ms, limit - len(found))
        return found

    def of_queue(self, queue: QueueState, now_ms: int, limit: int) -> list[Task]:
        """Returns the queue's due tasks. Costs a look-up if there are none."""
        next_ms = self._next_ms.get(queue)
        return self._read(queue, now_ms, limit) if next_ms is not None and next_ms <= now_ms else []

    def of_tenant(self, tenant: str | None, now_ms: int, limit: int) -> list[Task]:
        """Returns due tasks of the tenant's queues, of all tenants' for None."""
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, queue = heapq.heappop(self._heap)
            if self._next_ms.get(queue) == at_ms:
                self._add_ready(queue)
        found: list[Task] = []
        visited: list[QueueState] = []
        while len(found) < limit and (ready := self._pop_ready(tenant)) is not None:
            if self._is_due(ready, now_ms):  # else it was removed, and there may be another one of the same name
                found += self._read(ready, now_ms, min(TASKS_PER_TURN, limit - len(found)))
                visited.append(ready)
        for queue in visited:
            if self._is_due(queue, now_ms):
                self._add_ready(queue)
        return found

    def _is_due(self, queue: QueueState, now_ms: int) -> bool:
        at_ms = self._next_ms.get(queue)
        return at_ms is not None and at_ms <= now_ms

    def _push(self, queue: QueueState, at_ms: int) -> None:
        self._next_ms[queue] = at_ms
        heapq.heappush(self._heap, (at_ms, next(self._tickets), queue))
        if len(self._heap) > 2 * len(self._next_ms) + _STALE_MAX:  # most are times that no longer hold
            self._heap = [(time_ms, next(self._tickets), known) for known, time_ms in self._next_ms.items()]
            heapq.heapify(self._heap)

    def _add_ready(self, queue: QueueState) -> None:
        self._ready.setdefault(queue.key.tenant, OrderedDict())[queue] = None

    def _pop_ready(self, tenant: str | None) -> QueueState | None:
        if tenant is None and self._ready:
            tenant = next(iter(self._ready))
        queues = self._ready.get(tenant) if tenant is not None else None
        if tenant is None or queues is None:
            return None
        queue, _ = queues.popitem(last=False)
        if queues:
            self._ready.move_to_end(tenant)
        else:
            del self._ready[tenant]
        return queue
