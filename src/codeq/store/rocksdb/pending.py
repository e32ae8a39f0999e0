"""Which pending task is next, in memory: a window on the head of each queue and priority.

A queue stored as sorted keys gets slower with every task delivered, because a scan from the front passes the
tombstones of the deleted keys. A window remembers where its queue begins, so no scan ever passes what was delivered;
and while it reaches the end of the queue, new tasks are appended in memory and delivered without being read at all.
"""

from collections import OrderedDict
from collections.abc import Collection, Container

from codeq.domain.lifecycle import position
from codeq.domain.limits import WINDOW_BODY_BYTES_MAX, WINDOW_TASKS_MAX, WINDOWS_TASKS_MAX
from codeq.domain.queue import Index, QueueKey, is_system
from codeq.domain.task import Body, Task
from codeq.store.codec import UNREADABLE, decode_task
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.write_buffer import WriteBuffer

_PENDING = Index.PENDING
Entry = tuple[Task, Body | None]
READ_AHEAD_MIN = 4
"""Tasks that a window reads at first. Each time it reads four times as many, while memory is not short: few long queues
are read in large pieces, and many queues share the memory."""


class Window:
    """The pending tasks of one queue and priority: how many there are, and the first of them."""

    __slots__ = ("ahead", "budget", "count", "entries", "floor", "prefix", "priority", "queue", "sees_end")

    def __init__(self, queue: "QueueState", priority: int) -> None:
        self.queue = queue
        self.priority = priority
        self.budget = queue.budget
        self.prefix = keys.pending_prefix(queue.key, priority)
        self.count = 0
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self.floor = 0
        """Unless `sees_end`: tasks that are not in `entries` are on disk from this version on."""
        self.sees_end = True
        self.ahead = READ_AHEAD_MIN

    def append(self, task: Task, body: Body | None) -> None:
        self.count += 1
        if self.sees_end:
            if len(self.entries) < WINDOW_TASKS_MAX:
                self.entries[task.version] = (task, body if self.budget.admit(self, task, body) else None)
            else:
                self.sees_end = False
                self.floor = task.version

    def restore(self, version: int) -> None:
        """Counts a task that was put back on disk. For a window that has not been read."""
        self.floor = min(self.floor, version) if self.count else version
        self.sees_end = False
        self.count += 1

    def remove(self, version: int) -> None:
        """Removes a task that was not popped, but cancelled or the like."""
        entry = self.entries.pop(version, None)
        if entry:
            self.budget.release([entry])
        self._shrink(1)

    def fill(self, buffer: WriteBuffer, limit: int) -> None:
        """Reads until the first `limit` tasks, or all there are, are in memory. May write the write buffer."""
        while len(self.entries) < min(limit, self.count):
            self._read_ahead(buffer, max(limit - len(self.entries), self.ahead))
            if not self.budget.is_short:
                self.ahead = min(4 * self.ahead, WINDOW_TASKS_MAX)

    def pop(self, limit: int) -> list[Entry]:
        """Removes and returns the first `limit` tasks of those in memory. `fill` comes first."""
        pop_first = self.entries.popitem
        popped = [pop_first(False)[1] for _ in range(min(limit, len(self.entries)))]
        if popped:
            self.budget.release(popped)
            self._shrink(len(popped))
        return popped

    def peek(self, buffer: WriteBuffer) -> Task | None:
        """Returns the first task; None if none of them can be read."""
        self.fill(buffer, 1)
        return next(iter(self.entries.values()))[0] if self.entries else None

    def head(self) -> int:
        """Returns a version that no pending task of this window is below."""
        return next(iter(self.entries)) if self.entries else self.floor

    def drop(self) -> None:
        """Drops what was read ahead, to free memory."""
        if self.entries:
            self.floor = next(iter(self.entries))
            self.sees_end = False
            self.budget.release(self.entries.values())
            self.entries.clear()
            self.ahead = READ_AHEAD_MIN

    def _decode(self, value: bytes, version: int) -> Task | None:
        """Returns the task of an entry; None if it cannot be read, or belongs elsewhere."""
        try:
            task = decode_task(value)
        except UNREADABLE:
            return None
        return task if self._is_of(task, version) else None

    def _restored(self, buffer: WriteBuffer, key: bytes, value: bytes) -> Task | None:
        version = int.from_bytes(key[-keys.NUMBER_BYTES :], "big")
        task = buffer.original(version)
        if task is None or not self._is_of(task, version):
            return None
        buffer.restore(key, value, task)
        return task

    def _is_of(self, task: Task, version: int) -> bool:
        return (
            task.version == version
            and task.priority == self.priority
            and (task.tenant, task.command) == self.queue.key
            and position(task) is _PENDING
        )

    def _shrink(self, tasks: int) -> None:
        self.count -= tasks
        if not self.count:
            self.queue.remove_window(self)
            self.budget.remove(self)

    def _read_ahead(self, buffer: WriteBuffer, limit: int) -> None:
        last = self.floor - 1
        found = 0
        unreadable: list[tuple[bytes, bytes]] = []
        for key, value in buffer.scan(self.prefix + keys.number(self.floor), keys.after(self.prefix)):
            last = int.from_bytes(key[-8:], "big")
            found += 1
            task = self._decode(value, last) or self._restored(buffer, key, value)
            if task is not None:
                self.entries[last] = (task, None)
                self.budget.admit(self, task, None)
            else:
                unreadable.append((key, value))
            if found == limit:
                break
        self.sees_end = found < limit
        self.floor = last + 1
        for key, value in unreadable:
            buffer.set_aside(key, value, "this is not the task of the key")
        missing = len(unreadable)
        if self.sees_end and self.count - missing != len(self.entries):
            buffer.report(self.prefix, f"counts {self.count} pending tasks, of which {len(self.entries)} are there")
            missing = self.count - len(self.entries)
        if missing:
            self._shrink(missing)
            self.queue.tenant.tasks -= missing


class Budget:
    """Bounds what all windows hold together, by dropping the least recently used ones."""

    def __init__(self) -> None:
        self.tasks = 0
        self.body_bytes = 0
        self.pinned: Container[Window] = ()
        """Windows that must keep what they have read: a claim is about to take it."""
        self._used: OrderedDict[int, Window] = OrderedDict()
        self._latest: Window | None = None

    @property
    def is_short(self) -> bool:
        return self.tasks > WINDOWS_TASKS_MAX // 2

    def admit(self, window: Window, task: Task, body: Body | None) -> bool:
        """Counts a task in; returns whether its body may be cached with it."""
        self.tasks += 1
        if window is not self._latest:
            self._latest = window
            self._used[id(window)] = window
            self._used.move_to_end(id(window))
        while self.tasks > WINDOWS_TASKS_MAX and (other := self._least_used(window)):
            del self._used[id(other)]
            other.drop()
        if body is None or self.body_bytes + task.payload_bytes > WINDOW_BODY_BYTES_MAX:
            return False
        self.body_bytes += task.payload_bytes
        return True

    def _least_used(self, window: Window) -> Window | None:
        return next((used for used in self._used.values() if used is not window and used not in self.pinned), None)

    def remove(self, window: Window) -> None:
        """Drops a window that has no tasks left."""
        self._used.pop(id(window), None)
        if window is self._latest:
            self._latest = None

    def release(self, entries: Collection[Entry]) -> None:
        self.tasks -= len(entries)
        self.body_bytes -= sum([task.payload_bytes for task, body in entries if body is not None])


class TenantState:
    """What the queues of a tenant share: which of them have pending tasks, by priority and in rotation, and totals."""

    __slots__ = ("name", "payload_bytes", "queues", "ready", "saved_bytes", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks = 0
        """That have not ended."""
        self.payload_bytes = 0
        """Of all tasks, until they are purged."""
        self.saved_bytes = 0
        self.queues: set[QueueKey] = set()
        self.ready: dict[int, OrderedDict[QueueState, Window]] = {}
        """The queue that was served longest ago is first. Only priorities that have tasks, and no system queues."""


class QueueState:
    """The state of one queue in one shard, of bounded size whatever the queue's length."""

    __slots__ = (
        "budget", "dead", "delayed", "delayed_from", "expiries", "in_progress", "is_system", "key", "served",
        "tenant", "windows",
    )  # fmt: skip

    def __init__(self, budget: Budget, key: QueueKey, tenant: TenantState) -> None:
        self.budget = budget
        self.key = key
        self.is_system = is_system(key.command)
        self.tenant = tenant
        self.delayed = 0
        self.delayed_from = b""
        """No delayed task has a key below. Only valid while there are any."""
        self.in_progress = 0
        self.expiries: list[tuple[int, str]] = []
        """A heap of the times at which leases expire, unless extended, and the tasks' ids."""
        self.dead = 0
        self.served = 0
        """When it last delivered to a claim of several queues; those served longest ago are first."""
        self.windows: dict[int, Window] = {}
        """By priority; only those that have tasks."""

    def window(self, priority: int) -> Window:
        """Returns the window of a priority that is about to get a task."""
        window = self.windows.get(priority)
        if window is None:
            window = self.windows[priority] = Window(self, priority)
            if self.is_system:
                return window
            ready = self.tenant.ready.get(priority)
            if ready is None:
                ready = self.tenant.ready[priority] = OrderedDict()
            ready[self] = window
        return window

    def remove_window(self, window: Window) -> None:
        """Removes a window that has no tasks left."""
        priority = window.priority
        del self.windows[priority]
        if self.is_system:
            return
        ready = self.tenant.ready[priority]
        del ready[self]
        if not ready:
            del self.tenant.ready[priority]

    @property
    def pending(self) -> int:
        return sum([window.count for window in self.windows.values()])

    @property
    def is_empty(self) -> bool:
        return not (self.delayed or self.in_progress or self.dead or self.windows)
