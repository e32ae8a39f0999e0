"""Which tasks a claim gets: the highest priority over all its queues first, equal priorities in rotation.

A claim is planned by the counts, then its tasks are read, and then they are removed. Reading may write the write
buffer, which must not happen between a removal and the change that matches it: a crash would leave counts on disk that
miss tasks which are still pending.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate, islice

from codeq.store.interface import ClaimRequest
from codeq.store.rocksdb.pending import Entry, QueueState, Window
from codeq.store.rocksdb.queues import Queues
from codeq.store.rocksdb.write_buffer import WriteBuffer

Selected = tuple[Window, Entry]
_UNLIMITED = 1 << 62


def select(buffer: WriteBuffer, queues: Queues, request: ClaimRequest) -> list[Selected]:
    """Removes the claim's tasks from their windows."""
    commands = request.commands
    if commands is not None and len(commands) == 1:
        queue = queues.peek((request.tenant, commands[0]))
        return _select_of(queue, buffer, queues, request) if queue is not None and queue.windows else []
    plan = _Plan(queues, request)
    queues.fill(plan.windows)
    order = _within_bytes(plan.order, request.bytes_max)
    taken: dict[Window, int] = {}
    for window in order:
        queues.served(window.queue, window.priority)
        taken[window] = taken.get(window, 0) + 1
    entries = {window: iter(window.pop(tasks)) for window, tasks in taken.items()}
    return [(window, next(entries[window])) for window in order]


def _select_of(queue: QueueState, buffer: WriteBuffer, queues: Queues, request: ClaimRequest) -> list[Selected]:
    """Does the same for a claim of one queue, which most are, with less work."""
    left = min(request.limit, _room(queue, request))
    if len(queue.windows) == 1:
        [window] = queue.windows.values()
        if not left or request.priority not in (None, window.priority):
            return []
        window.fill(buffer, left)
        return [(window, entry) for entry in window.pop(_fitting(window, left, request.bytes_max))]
    order: list[Window] = []
    for priority in sorted(queue.windows, reverse=True):
        if request.priority in (None, priority):
            window = queue.windows[priority]
            order += [window] * min(left - len(order), window.count)
    queues.fill({window: order.count(window) for window in queue.windows.values()})
    order = _within_bytes(order, request.bytes_max)
    windows = [queue.windows[priority] for priority in sorted(queue.windows, reverse=True)]
    return [(window, entry) for window in windows for entry in window.pop(order.count(window))]


def priorities(queues: Queues, request: ClaimRequest) -> set[int]:
    """Returns the priorities of which the claim's queues have pending tasks."""
    if request.commands is None:
        tenant = queues.tenant(request.tenant)
        return set(tenant.ready) if tenant is not None else set()
    return {priority for queue in _named(queues, request) for priority in queue.windows}


class _Plan:
    """How many tasks to remove from which window, in which order."""

    def __init__(self, queues: Queues, request: ClaimRequest) -> None:
        self.windows: dict[Window, int] = {}
        self.order: list[Window] = []
        self._request = request
        self._room: dict[QueueState, int] = {}
        self._left = request.limit
        if request.commands is None:
            tenant = queues.tenant(request.tenant)
            ready = tenant.ready if tenant is not None else {}
            for priority in self._descending(ready):
                self._take(ready[priority].values())
        else:
            named = _named(queues, request)
            for priority in self._descending({priority for queue in named for priority in queue.windows}):
                self._take([window for queue in named if (window := queue.windows.get(priority))])

    def _descending(self, priorities: Iterable[int]) -> Iterator[int]:
        for priority in sorted(priorities, reverse=True):
            if self._left and self._request.priority in (None, priority):
                yield priority

    def _take(self, windows: Iterable[Window]) -> None:
        """Plans to take one task of each window in turn, until there are enough."""
        ready = list(islice((window for window in windows if self._room_of(window.queue)), self._left))
        if len(ready) == 1:
            self._add(ready[0], min(self._left, ready[0].count, self._room[ready[0].queue]))
            return
        while ready and self._left:
            for window in ready[: self._left]:
                self._add(window, 1)
            ready = [w for w in ready if w.count > self.windows[w] and self._room[w.queue]]

    def _add(self, window: Window, tasks: int) -> None:
        self.windows[window] = self.windows.get(window, 0) + tasks
        self.order += [window] * tasks
        self._left -= tasks
        self._room[window.queue] -= tasks

    def _room_of(self, queue: QueueState) -> int:
        room = self._room.get(queue)
        if room is None:
            room = self._room[queue] = _room(queue, self._request)
        return room


def _room(queue: QueueState, request: ClaimRequest) -> int:
    """Returns how many more tasks of the queue may be in progress."""
    policy = request.policy_of(queue.key)
    if policy.paused:
        return 0
    if not policy.max_consumers:
        return _UNLIMITED
    return max(0, policy.max_consumers - queue.in_progress - request.held_elsewhere.get(queue.key, 0))


def _named(queues: Queues, request: ClaimRequest) -> list[QueueState]:
    """Returns the queues that the claim names, in rotation; those without pending tasks are left out."""
    keys = [(request.tenant, command) for command in request.commands or ()]
    named = [queue for key in keys if (queue := queues.peek(key)) and queue.windows]
    if len(named) > 1:
        named.sort(key=lambda queue: queue.served)
    return named


def _within_bytes(order: list[Window], bytes_max: int) -> list[Window]:
    """Returns as much of the plan as could be read, up to the task whose payload reaches `bytes_max`."""
    heads = {window: iter(window.entries.values()) for window in order}
    fitting: list[Window] = []
    size = 0
    for window in order:
        entry = next(heads[window], None)
        if entry is None:
            continue
        fitting.append(window)
        size += entry[0].payload_bytes
        if size >= bytes_max:
            break
    return fitting


def _fitting(window: Window, limit: int, bytes_max: int) -> int:
    """Returns how many of the window's first tasks the claim gets, up to the one whose payload reaches `bytes_max`."""
    if limit == 1:
        return 1
    sizes = [task.payload_bytes for task, _ in islice(window.entries.values(), limit)]
    if sum(sizes) < bytes_max:
        return len(sizes)
    return next(number for number, size in enumerate(accumulate(sizes), 1) if size >= bytes_max)
