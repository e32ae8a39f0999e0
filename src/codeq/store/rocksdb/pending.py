"""Which pending task is next, in memory: a window on the head of each queue and priority.

A queue stored as sorted keys gets slower with every task delivered, because a scan from the front passes the
tombstones of the deleted keys. A window remembers where its queue begins, so no scan ever passes what was delivered;
and while it reaches the end of the queue, new tasks are appended in memory and delivered without being read at all.
"""

from collections import OrderedDict

from codeq.domain.errors import StoreCorrupt
from codeq.domain.limits import WINDOW_BODY_BYTES_MAX, WINDOW_TASKS_MAX, WINDOWS_TASKS_MAX
from codeq.domain.queue import QueueKey
from codeq.domain.task import Body, Task
from codeq.store.codec import decode_task
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.write_buffer import WriteBuffer

Entry = tuple[Task, Body | None]


class Window:
    """The pending tasks of one queue and priority: how many there are, and the first of them."""

    __slots__ = ("budget", "count", "entries", "floor", "prefix", "priority", "queue", "sees_end")

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

    def append(self, task: Task, body: Body | None) -> None:
        self.count += 1
        if self.sees_end:
            if len(self.entries) < WINDOW_TASKS_MAX:
                self.entries[task.version] = (task, body if self.budget.admit(self, task, body) else None)
            else:
                self.sees_end = False
                self.floor = task.version

    def remove(self, version: int) -> None:
        """Removes a task that was not popped, but cancelled or the like."""
        entry = self.entries.pop(version, None)
        if entry:
            self.budget.release(entry)
        self._shrink(1)

    def must_read(self, limit: int) -> bool:
        """Returns whether `limit` pops must read from disk."""
        return len(self.entries) < min(limit, self.count)

    def pop(self, buffer: WriteBuffer, limit: int) -> list[Entry]:
        """Removes and returns the first `limit` tasks, or all there are."""
        popped: list[Entry] = []
        pop_first = self.entries.popitem
        wanted = min(limit, self.count)
        while len(popped) < wanted:
            if not self.entries:
                self._read_ahead(buffer, WINDOW_TASKS_MAX)
                if not self.entries:
                    raise StoreCorrupt(f"{self.queue.key} counts {self.count} pending tasks that are not there")
            popped += [pop_first(False)[1] for _ in range(min(wanted - len(popped), len(self.entries)))]
        for entry in popped:
            self.budget.release(entry)
        self._shrink(wanted)
        return popped

    def peek(self, buffer: WriteBuffer) -> Task:
        if not self.entries:
            self._read_ahead(buffer, 16)
        return next(iter(self.entries.values()))[0]

    def head(self) -> int:
        """Returns a version that no pending task of this window is below."""
        return next(iter(self.entries)) if self.entries else self.floor

    def drop(self) -> None:
        """Drops what was read ahead, to free memory."""
        if self.entries:
            self.floor = next(iter(self.entries))
            self.sees_end = False
            for entry in self.entries.values():
                self.budget.release(entry)
            self.entries.clear()

    def _shrink(self, tasks: int) -> None:
        self.count -= tasks
        if not self.count:
            del self.queue.windows[self.priority]
            self.budget.remove(self)

    def _read_ahead(self, buffer: WriteBuffer, limit: int) -> None:
        last = self.floor - 1
        found = 0
        for key, value in buffer.scan(self.prefix + keys.number(self.floor), keys.after(self.prefix)):
            last = int.from_bytes(key[-8:], "big")
            task = decode_task(value)
            self.entries[last] = (task, None)
            self.budget.admit(self, task, None)
            found += 1
            if found == limit:
                break
        self.sees_end = found < limit
        self.floor = last + 1


class Budget:
    """Bounds what all windows hold together, by dropping the least recently used ones."""

    def __init__(self) -> None:
        self.tasks = 0
        self.body_bytes = 0
        self._used: OrderedDict[int, Window] = OrderedDict()
        self._latest: Window | None = None

    def admit(self, window: Window, task: Task, body: Body | None) -> bool:
        """Counts a task in; returns whether its body may be cached with it."""
        self.tasks += 1
        if window is not self._latest:
            self._latest = window
            self._used[id(window)] = window
            self._used.move_to_end(id(window))
        while self.tasks > WINDOWS_TASKS_MAX and len(self._used) > 1:
            _, other = self._used.popitem(last=False)
            other.drop()
        if body is None or self.body_bytes + task.payload_bytes > WINDOW_BODY_BYTES_MAX:
            return False
        self.body_bytes += task.payload_bytes
        return True

    def remove(self, window: Window) -> None:
        """Drops a window that has no tasks left."""
        self._used.pop(id(window), None)
        if window is self._latest:
            self._latest = None

    def release(self, entry: Entry) -> None:
        self.tasks -= 1
        if entry[1] is not None:
            self.body_bytes -= entry[0].payload_bytes


class QueueState:
    """The state of one queue in one shard, of bounded size whatever the queue's length."""

    __slots__ = ("budget", "dead", "delayed", "in_progress", "key", "served", "windows")

    def __init__(self, budget: Budget, key: QueueKey) -> None:
        self.budget = budget
        self.key = key
        self.delayed = 0
        self.in_progress = 0
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
        return window

    @property
    def pending(self) -> int:
        return sum([window.count for window in self.windows.values()])

    @property
    def is_empty(self) -> bool:
        return not (self.delayed or self.in_progress or self.dead or self.windows)
