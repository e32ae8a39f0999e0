"""The queues of one shard: exact counts in constant time, stored in the same batch as the changes they count."""

from collections import defaultdict

import msgspec
from msgspec import Struct

from codeq.domain.queue import QueueCounts, QueueKey
from codeq.store.codec import encode
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.pending import Budget, QueueState
from codeq.store.rocksdb.write_buffer import WriteBuffer


class _Saved(Struct, frozen=True, array_like=True, gc=False):
    delayed: int
    in_progress: int
    dead: int
    pending: list[tuple[int, int, int]]
    """Priority, number of tasks, and a version that none of them is below."""


_decode = msgspec.msgpack.Decoder(_Saved).decode


class Queues:
    def __init__(self, buffer: WriteBuffer) -> None:
        self._buffer = buffer
        self._budget = Budget()
        self.turn = 0
        self._queues: dict[tuple[str, str], QueueState] = {}
        self._commands: defaultdict[str, set[QueueKey]] = defaultdict(set)
        self._changed: set[QueueState] = set()
        for key, value in buffer.scan(keys.COUNTS, keys.after(keys.COUNTS)):
            self._load(QueueKey(*keys.split_names(key[len(keys.COUNTS) :])), _decode(value))
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

    def peek(self, key: QueueKey) -> QueueState | None:
        return self._queues.get(key)

    def of_tenant(self, tenant: str) -> set[QueueKey]:
        return self._commands.get(tenant, set())

    def counts(self, tenant: str | None, *, ages: bool = False) -> dict[QueueKey, QueueCounts]:
        keys_ = list(self._queues) if tenant is None else self.of_tenant(tenant)
        wanted = [self._queues[key] for key in keys_]  # a copy: reading ages writes, which removes empty queues
        return {queue.key: self._count(queue, ages=ages) for queue in wanted if not queue.is_empty}

    def _count(self, queue: QueueState, *, ages: bool) -> QueueCounts:
        heads = [window.peek(self._buffer) for window in queue.windows.values()] if ages else []
        return QueueCounts(
            pending=queue.pending,
            delayed=queue.delayed,
            in_progress=queue.in_progress,
            dead=queue.dead,
            oldest_ms=min((task.updated_ms for task in heads), default=None),
        )

    def _add(self, key: QueueKey) -> QueueState:
        queue = self._queues[key] = QueueState(self._budget, key)
        queue.served = self.turn
        self._commands[key.tenant].add(key)
        return queue

    def _load(self, key: QueueKey, saved: _Saved) -> None:
        queue = self._add(key)
        queue.delayed, queue.in_progress, queue.dead = saved.delayed, saved.in_progress, saved.dead
        for priority, count, head in saved.pending:
            window = queue.window(priority)
            window.count, window.floor, window.sees_end = count, head, False

    def _save(self) -> None:
        for queue in self._changed:
            key = queue.key
            if queue.is_empty:
                self._buffer.delete(keys.counts(key))
                del self._queues[key]
                self._commands[key.tenant].discard(key)
                if not self._commands[key.tenant]:
                    del self._commands[key.tenant]
            else:
                pending = [(priority, window.count, window.head()) for priority, window in queue.windows.items()]
                saved = _Saved(queue.delayed, queue.in_progress, queue.dead, pending)
                self._buffer.put(keys.counts(key), encode(saved))
        self._changed.clear()
