"""Which tasks are in progress, in memory: a result or a heartbeat finds its task here without a read."""

import heapq
from collections.abc import Sequence

from codeq.domain.task import Task
from codeq.store.codec import claim_record, current_record, encode, joined
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.due_queues import DueQueues
from codeq.store.rocksdb.pending import QueueState
from codeq.store.rocksdb.write_buffer import WriteBuffer

RequestKey = tuple[str, str | None, str]
"""Tenant, worker and request id of a claim."""


class Leases:
    """A claim writes all tasks it leased under one key. The key is deleted with the last of the leases."""

    def __init__(self, buffer: WriteBuffer) -> None:
        self._buffer = buffer
        self.held: dict[str, Task] = {}
        """By id. Read by others, changed here alone."""
        self._batch_of: dict[str, int] = {}
        self._remaining: dict[int, int] = {}
        self._extended: dict[str, Task] = {}
        self._requests: dict[RequestKey, dict[int, list[str]]] = {}
        """The ids of the tasks that claims with a request id leased, by batch. A claim has a batch per part."""
        self._request_of: dict[int, RequestKey] = {}
        self.due = DueQueues(self._expired)

    def add(
        self, tasks: list[Task], queues: Sequence[QueueState], data: list[bytes], *, request_id: str | None
    ) -> None:
        batch = tasks[0].version
        self._buffer.put(keys.claim_batch(batch), claim_record(joined(data), request_id))
        self.restore(batch, tasks, queues, request_id=request_id)

    def restore(self, batch: int, tasks: list[Task], queues: Sequence[QueueState], *, request_id: str | None) -> None:
        if request_id is not None:
            key = self._request_of[batch] = (tasks[0].tenant, tasks[0].worker, request_id)
            self._requests.setdefault(key, {})[batch] = [task.id for task in tasks]
        self._remaining[batch] = len(tasks)
        last: QueueState | None = None
        for task, queue in zip(tasks, queues, strict=True):
            self.held[task.id] = task
            self._batch_of[task.id] = batch
            heapq.heappush(queue.expiries, (task.lease_until_ms, task.id))
            if queue is not last:  # of one queue, all leases of a claim end together
                last = queue
                self.due.add(queue, task.lease_until_ms)
                self._shrink(queue)

    def repeated(self, key: RequestKey) -> list[Task]:
        """Returns the tasks that are still leased by the claims with this request id."""
        return [
            self.held[task_id]
            for batch, ids in self._requests.get(key, {}).items()
            for task_id in ids
            if self._batch_of.get(task_id) == batch  # else it was leased again since
        ]

    def extend(self, task: Task) -> None:
        self.held[task.id] = task
        self._extended[task.id] = task

    def remove(self, task_id: str) -> None:
        del self.held[task_id]
        batch = self._batch_of.pop(task_id)
        self._extended.pop(task_id, None)
        remaining = self._remaining[batch] - 1
        if remaining:
            self._remaining[batch] = remaining
        else:
            del self._remaining[batch]
            self._buffer.delete(keys.claim_batch(batch))
            if self._request_of:
                self._forget_request(batch)

    def _forget_request(self, batch: int) -> None:
        key = self._request_of.pop(batch, None)
        if key is not None:
            batches = self._requests[key]
            del batches[batch]
            if not batches:
                del self._requests[key]

    def save_extended(self) -> None:
        """Writes the leases that heartbeats have extended since the last call; a later fsync forces them to disk."""
        for task in self._extended.values():
            self._buffer.put(keys.current_record(task.tenant, task.id), current_record(encode(task), None))
        self._extended.clear()

    def _expired(self, queue: QueueState, now_ms: int, limit: int) -> list[Task]:
        expiries = queue.expiries
        found: dict[str, Task] = {}
        while expiries and expiries[0][0] <= now_ms and len(found) < limit:
            noted_ms, task_id = heapq.heappop(expiries)
            task = self.held.get(task_id)
            if task is None:
                continue
            if task.lease_until_ms == noted_ms:
                found[task_id] = task
            else:  # a heartbeat has extended it since
                heapq.heappush(expiries, (task.lease_until_ms, task_id))
        for task in found.values():  # they stay until a change removes them
            heapq.heappush(expiries, (task.lease_until_ms, task.id))
        self.due.set_next(queue, expiries[0][0] if expiries else None)
        return list(found.values())

    def _shrink(self, queue: QueueState) -> None:
        """Removes the expiries of tasks that ended in time: they would grow to a lease's worth of them."""
        if len(queue.expiries) > 2 * queue.in_progress + 64:
            held = {task_id for _, task_id in queue.expiries if task_id in self.held}
            queue.expiries = [(self.held[task_id].lease_until_ms, task_id) for task_id in held]
            heapq.heapify(queue.expiries)
