"""Finds tasks whose record says that they wait, run or have ended, but that are in no index: damage took their entry.

It reads every task of the shard, so it runs only when a claim could not be restored, and when a directory is repaired.
"""

from typing import NamedTuple

from codeq.domain import lifecycle
from codeq.domain.queue import Index
from codeq.domain.task import Task
from codeq.store import codec
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.leases import Leases
from codeq.store.rocksdb.queues import Queues
from codeq.store.rocksdb.records import Records
from codeq.store.rocksdb.time_index import DelayedIndex, RetentionIndex
from codeq.store.rocksdb.write_buffer import WriteBuffer

_WRITTEN_AT_ONCE = 1000
LOST_WORKER = "codeq-repair"
"""Who holds a task whose claim is lost, until the lease expires: the true holder, whoever it is, is refused."""


class LostTasks(NamedTuple):
    buffer: WriteBuffer
    records: Records
    queues: Queues
    leases: Leases
    delayed: DelayedIndex
    retention: RetentionIndex

    def restore(self, now_ms: int, lease_ms: int) -> int:
        """Adds them to the index they belong in, and counts the payload bytes of each tenant again. Returns how many
        tasks were in none."""
        payload_bytes: dict[str, int] = {}
        restored = 0
        for number, (key, _) in enumerate(self.buffer.scan(keys.BODIES, keys.after(keys.BODIES))):
            tenant, task_id = keys.split_body(key)
            task = self.records.task(tenant, task_id) if task_id else None
            if task is not None:
                payload_bytes[tenant] = payload_bytes.get(tenant, 0) + task.payload_bytes
                restored += self._restore(task, now_ms, lease_ms)
            if number % _WRITTEN_AT_ONCE == 0:
                self.buffer.write()
        self.queues.set_payload_bytes(payload_bytes)
        self.buffer.write()
        return restored

    def _restore(self, task: Task, now_ms: int, lease_ms: int) -> bool:
        if task.id in self.leases.held:
            return False
        place = lifecycle.position(task)
        if place is Index.PENDING:
            return self._restore_pending(task, now_ms, lease_ms)
        if place is Index.DELAYED:
            return self._restore_delayed(task)
        if place is Index.IN_PROGRESS:
            return self._lease(lifecycle.with_grace(task, now_ms + lease_ms), codec.encode(task))
        return self._restore_ended(task, place)

    def _restore_pending(self, task: Task, now_ms: int, lease_ms: int) -> bool:
        """A pending task without an entry was claimed, unless the entry was set aside."""
        queue = self.queues.get(task.tenant, task.command)
        key = keys.pending_prefix(queue.key, task.priority) + keys.number(task.version)
        if self.buffer.get(key) is not None:
            return False
        if self.buffer.get(keys.UNREADABLE + key) is not None:
            self.buffer.put(key, codec.encode(task))
            queue.window(task.priority).restore(task.version)
            queue.tenant.tasks += 1
            return True
        claimed = lifecycle.claim(task, LOST_WORKER, now_ms, lease_ms=lease_ms).after
        self.buffer.on_unreadable(key, "the claim of the task is lost; its lease expires")  # there is nothing to keep
        return self._lease(claimed, self.buffer.event(claimed))

    def _lease(self, task: Task, data: bytes) -> bool:
        self.leases.add([task], [self.queues.restore_lease(task.tenant, task.command)], [data], request_id=None)
        return True

    def _restore_delayed(self, task: Task) -> bool:
        queue = self.queues.get(task.tenant, task.command)
        if self.buffer.get(keys.delayed(queue.key, task.visible_ms, task.version)) is not None:
            return False
        self.delayed.add(queue, task, codec.encode(task))
        queue.tenant.tasks += 1
        return True

    def _restore_ended(self, task: Task, place: Index) -> bool:
        """Every one is added to the retention index again, which tolerates a task in two entries."""
        self.retention.add(task)
        queue = self.queues.get(task.tenant, task.command)
        key = keys.dead_prefix(queue.key) + keys.number(task.version)
        if place is not Index.DEAD or self.buffer.get(key) is not None:
            return False
        queue.dead += 1
        self.buffer.put(key, task.id.encode())
        return True
