"""Which tasks are in progress, in memory: a result or a heartbeat finds its task here and reads nothing."""

import heapq

from codeq.domain.task import Task
from codeq.store.codec import current_record, encode, joined
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.write_buffer import WriteBuffer


class Leases:
    """A claim writes all tasks it leased under one key, which is deleted when the last of them is no longer leased."""

    def __init__(self, buffer: WriteBuffer) -> None:
        self._buffer = buffer
        self._held: dict[str, Task] = {}
        self._batch_of: dict[str, int] = {}
        self._remaining: dict[int, int] = {}
        self._expiries: list[tuple[int, str]] = []
        self._extended: dict[str, Task] = {}

    def get(self, task_id: str) -> Task | None:
        return self._held.get(task_id)

    def add(self, tasks: list[Task], data: list[bytes]) -> None:
        batch = tasks[0].version
        self._buffer.put(keys.claim_batch(batch), joined(data))
        self.restore(batch, tasks)

    def restore(self, batch: int, tasks: list[Task]) -> None:
        if len(self._expiries) > 2 * len(self._held) + 4096:
            # Tasks that ended in time leave their expiry behind; the heap would grow to a lease's worth of them.
            self._expiries = [(task.lease_until_ms, task.id) for task in self._held.values()]
            heapq.heapify(self._expiries)
        self._remaining[batch] = len(tasks)
        for task in tasks:
            self._held[task.id] = task
            self._batch_of[task.id] = batch
            heapq.heappush(self._expiries, (task.lease_until_ms, task.id))

    def extend(self, task: Task) -> None:
        self._held[task.id] = task
        self._extended[task.id] = task

    def remove(self, task_id: str) -> None:
        del self._held[task_id]
        batch = self._batch_of.pop(task_id)
        self._extended.pop(task_id, None)
        remaining = self._remaining[batch] - 1
        if remaining:
            self._remaining[batch] = remaining
        else:
            del self._remaining[batch]
            self._buffer.delete(keys.claim_batch(batch))

    def expired(self, now_ms: int, limit: int) -> list[Task]:
        found: dict[str, Task] = {}
        while self._expiries and self._expiries[0][0] <= now_ms and len(found) < limit:
            noted_ms, task_id = heapq.heappop(self._expiries)
            task = self.get(task_id)
            if task is None:
                continue
            if task.lease_until_ms == noted_ms:
                found[task_id] = task
            else:  # a heartbeat has extended it since
                heapq.heappush(self._expiries, (task.lease_until_ms, task_id))
        for task in found.values():  # they stay until a change takes them away
            heapq.heappush(self._expiries, (task.lease_until_ms, task.id))
        return list(found.values())

    def save_extended(self) -> None:
        """Write the leases that heartbeats have extended since the last call, to be forced to disk when convenient."""
        for task in self._extended.values():
            self._buffer.put(keys.current_record(task.tenant, task.id), current_record(encode(task), None))
        self._extended.clear()
