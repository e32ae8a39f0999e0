"""The queues of one shard: exact counts in constant time, stored in the same batch as the changes they count."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from codeq.domain.limits import PRIORITY_MAX
from codeq.domain.queue import QueueCounts, QueueKey
from codeq.domain.tenants import StorageUsage
from codeq.store.codec import UNREADABLE, encode, with_checksum, without_checksum
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.leases import Leases
from codeq.store.rocksdb.pending import Budget, QueueState, TenantState, Window
from codeq.store.rocksdb.time_index import DelayedIndex
from codeq.store.rocksdb.write_buffer import WriteBuffer


class _Saved(Struct, frozen=True, array_like=True, gc=False):
    delayed: int
    in_progress: int
    dead: int
    pending: list[tuple[int, int, int]]
    """Priority, number of tasks, and a version that none of them is below."""
    due_ms: int = 0
    """No delayed task is due before."""


_BYTES_MAX = 1 << 60
_decode = msgspec.msgpack.Decoder(_Saved).decode


class Queues:
    def __init__(
        self, buffer: WriteBuffer, delayed: DelayedIndex, leases: Leases, *, is_recounted: bool = False
    ) -> None:
        """Restores the counts. With `is_recounted` the tasks are counted instead, which costs the backlog."""
        self._buffer = buffer
        self._delayed = delayed
        self._leases = leases
        self._budget = Budget()
        self.turn = 0
        self._queues: dict[tuple[str, str], QueueState] = {}
        self._tenants: dict[str, TenantState] = {}
        self._changed: set[QueueState] = set()
        for key, value in buffer.scan(keys.USAGE, keys.after(keys.USAGE)):
            tenant = self._tenant(*keys.split_names(key[len(keys.USAGE) :]))
            size = int.from_bytes(value, "big")
            if len(value) == 8 and size < _BYTES_MAX:
                tenant.payload_bytes = tenant.saved_bytes = size
            else:
                buffer.report(key, "this is no number of bytes")
        for key, value in buffer.scan(keys.COUNTS, keys.after(keys.COUNTS)):
            queue = QueueKey(*keys.split_names(key[len(keys.COUNTS) :]))
            try:
                self._load(queue, _decode(without_checksum(key, value)))
            except UNREADABLE as fault:
                buffer.report(key, str(fault))
                self._recount(queue)
        if is_recounted:
            for queue in set(_stored_queues(buffer)) | set(self.keys):
                self._recount(queue)
        buffer.before_write(self._save)

    def get(self, tenant: str, command: str) -> QueueState:
        """Returns the queue for a change: its counts are part of the next write."""
        queue = self._queues.get((tenant, command))  # a plain tuple equals the key and is faster to make
        if queue is None:
            queue = self._add(QueueKey(tenant, command))
        self._changed.add(queue)
        return queue

    def changed(self, queue: QueueState) -> None:
        self._changed.add(queue)

    def peek(self, key: tuple[str, str]) -> QueueState | None:
        return self._queues.get(key)

    def tenant(self, tenant: str) -> TenantState | None:
        return self._tenants.get(tenant)

    def usage(
        self, tenant: str, *, policies: int, commands: Sequence[str], idempotency_keys: Sequence[str]
    ) -> StorageUsage:
        state = self._tenants.get(tenant) or TenantState(tenant)
        if not commands and not idempotency_keys:
            return StorageUsage(state.tasks, state.payload_bytes, len(state.queues), policies)
        owners = self._buffer.get_many([keys.idempotency(tenant, key) for key in idempotency_keys])
        return StorageUsage(
            state.tasks,
            state.payload_bytes,
            len(state.queues),
            policies,
            {command for command in commands if (tenant, command) in state.queues},
            {key for key, owner in zip(idempotency_keys, owners, strict=True) if owner is not None},
        )

    @property
    def keys(self) -> list[QueueKey]:
        return [queue.key for queue in self._queues.values()]

    def fill(self, windows: Mapping[Window, int]) -> None:
        """Reads the first tasks of each window, as many as named. May write the write buffer."""
        self._budget.pinned = windows
        for window, limit in windows.items():
            window.fill(self._buffer, limit)
        self._budget.pinned = ()

    def served(self, queue: QueueState, priority: int) -> None:
        """Moves the queue to the end of its tenant's rotation."""
        self.turn += 1
        queue.served = self.turn
        queue.tenant.ready[priority].move_to_end(queue)

    def counts(self, tenant: str | None, command: str | None, *, ages: bool = False) -> dict[QueueKey, QueueCounts]:
        wanted = self._of(tenant, command)  # a copy: reading ages writes, which removes empty queues
        return {queue.key: self._count(queue, ages=ages) for queue in wanted if not queue.is_empty}

    def _of(self, tenant: str | None, command: str | None) -> list[QueueState]:
        if tenant is None:
            return list(self._queues.values())
        if command is not None:
            queue = self._queues.get((tenant, command))
            return [queue] if queue is not None else []
        state = self._tenants.get(tenant)
        return [self._queues[key] for key in state.queues] if state is not None else []

    def _count(self, queue: QueueState, *, ages: bool) -> QueueCounts:
        heads = [window.peek(self._buffer) for window in list(queue.windows.values())] if ages else []
        return QueueCounts(
            pending=queue.pending,
            delayed=queue.delayed,
            in_progress=queue.in_progress,
            dead=queue.dead,
            oldest_ms=min((task.updated_ms for task in heads if task is not None), default=None),
        )

    def _add(self, key: QueueKey) -> QueueState:
        tenant = self._tenant(key.tenant)
        queue = self._queues[key] = QueueState(self._budget, key, tenant)
        queue.served = self.turn
        tenant.queues.add(key)
        return queue

    def _tenant(self, name: str) -> TenantState:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = TenantState(name)
        return tenant

    def _load(self, key: QueueKey, saved: _Saved) -> None:
        """Restores the counts. Tasks in progress are counted when their leases are restored."""
        queue = self._add(key)
        queue.delayed, queue.dead = saved.delayed, saved.dead
        if saved.delayed:
            self._delayed.restore(queue, saved.due_ms)
        for priority, count, head in saved.pending:
            window = queue.window(priority)
            window.count, window.floor, window.sees_end = count, head, False
        queue.tenant.tasks += queue.delayed + queue.pending

    def restore_lease(self, tenant: str, command: str) -> QueueState:
        """Counts a task in progress, and returns its queue."""
        queue = self.get(tenant, command)
        queue.in_progress += 1
        queue.tenant.tasks += 1
        return queue

    def set_payload_bytes(self, sizes: Mapping[str, int]) -> None:
        """Sets how many payload bytes the tasks of each tenant have, after they were counted."""
        for name in {*self._tenants, *sizes}:
            state = self._tenant(name)
            state.payload_bytes = sizes.get(name, 0)
            self._save_bytes(state)

    def _recount(self, key: QueueKey) -> None:
        """Counts the tasks of a queue whose counts cannot be read or trusted."""
        known = self._queues.get(key)
        if known is not None:
            self._forget(known)
        counted = self._counted(key)
        self._load(key, counted)
        self._put(key, counted)

    def _forget(self, queue: QueueState) -> None:
        queue.tenant.tasks -= queue.delayed + queue.pending
        for window in list(queue.windows.values()):
            queue.remove_window(window)
        self._delayed.due.forget(queue)
        del self._queues[queue.key]

    def _counted(self, key: QueueKey) -> _Saved:

        def number(prefix: bytes) -> int:
            return sum(1 for _ in self._buffer.scan(prefix, keys.after(prefix)))

        pending = [(priority, number(keys.pending_prefix(key, priority)), 0) for priority in range(PRIORITY_MAX + 1)]
        return _Saved(
            number(keys.delayed_prefix(key)), 0, number(keys.dead_prefix(key)), [line for line in pending if line[1]]
        )

    def _save(self) -> None:
        for queue in self._changed:
            if queue.is_empty:
                self._remove(queue)
            else:
                pending = [(priority, window.count, window.head()) for priority, window in queue.windows.items()]
                due_ms = self._delayed.due.next_ms(queue) if queue.delayed else 0
                saved = _Saved(queue.delayed, queue.in_progress, queue.dead, pending, due_ms)
                self._put(queue.key, saved)
            tenant = queue.tenant
            if tenant.payload_bytes != tenant.saved_bytes:
                self._save_bytes(tenant)
            if not tenant.payload_bytes and not tenant.queues:
                self._tenants.pop(tenant.name, None)
        self._changed.clear()

    def _put(self, queue: QueueKey, saved: _Saved) -> None:
        key = keys.counts(queue)
        self._buffer.put(key, with_checksum(key, encode(saved)))

    def _save_bytes(self, tenant: TenantState) -> None:
        tenant.saved_bytes = size = tenant.payload_bytes
        if size:
            self._buffer.put(keys.usage(tenant.name), keys.number(size))
        else:
            self._buffer.delete(keys.usage(tenant.name))

    def _remove(self, queue: QueueState) -> None:
        key = queue.key
        self._buffer.delete(keys.counts(key))
        self._delayed.due.forget(queue)
        self._leases.due.forget(queue)
        del self._queues[key]
        queue.tenant.queues.discard(key)


def _stored_queues(buffer: WriteBuffer) -> Iterator[QueueKey]:
    """Yields the queues that have an entry in an index, by one search for each."""
    for index in (keys.PENDING, keys.DELAYED, keys.DEAD):
        start = index
        while found := next(buffer.scan(start, keys.after(index)), None):
            queue = keys.queue_of(index, found[0])
            yield queue
            start = keys.after(keys.queue_prefix(index, queue))
