"""Tasks that wait for a time, on disk: delayed ones until they are visible, ended ones until they are purged.

Each index remembers the first key it may hold. Checking whether anything is due costs a comparison, and a scan starts
where the last one ended, so neither the far future nor what was processed before is ever read.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeGuard

from codeq.domain.lifecycle import position
from codeq.domain.queue import Index
from codeq.domain.task import Task
from codeq.store.codec import UNREADABLE, decode_current, decode_pairs, decode_task, encode
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.due_queues import DueQueues
from codeq.store.rocksdb.pending import QueueState
from codeq.store.rocksdb.write_buffer import WriteBuffer

_NEVER = 1 << 62
_ENDED = (Index.DEAD, Index.NONE)


class DelayedIndex:
    def __init__(self, buffer: WriteBuffer) -> None:
        self._buffer = buffer
        self.due = DueQueues(self._read)

    def add(self, queue: QueueState, task: Task, data: bytes) -> None:
        key = keys.delayed(queue.key, task.visible_ms, task.version)
        self._buffer.put(key, data)
        if not queue.delayed or key < queue.delayed_from:
            queue.delayed_from = key
        queue.delayed += 1
        self.due.add(queue, task.visible_ms)

    def remove(self, queue: QueueState, task: Task) -> None:
        queue.delayed -= 1
        self._buffer.delete(keys.delayed(queue.key, task.visible_ms, task.version))

    def set_aside(self, queue: QueueState, task: Task) -> None:
        """Moves the entry of a task that has moved on, or cannot be read, out of the index, if it is still there. If
        the event of the same number names another task, the entry is restored from it instead."""
        key = keys.delayed(queue.key, task.visible_ms, task.version)
        value = self._buffer.get(key)
        original = self._buffer.original(task.version)
        if value is not None and _is_delayed_at(original, key, queue) and original.id != task.id:
            self._buffer.restore(key, value, original)
        elif value is not None:
            queue.delayed -= 1
            queue.tenant.tasks -= 1
            self._buffer.set_aside(key, value, "no task stands behind this entry")

    def restore(self, queue: QueueState, at_ms: int) -> None:
        """Adds a queue of which no task is due before that time."""
        queue.delayed_from = keys.delayed(queue.key, at_ms, 0)
        self.due.add(queue, at_ms)

    def _read(self, queue: QueueState, now_ms: int, limit: int) -> list[Task]:
        found: list[Task] = []
        first: bytes | None = None
        next_ms: int | None = None
        end = keys.after(keys.delayed_prefix(queue.key))
        for key, value in self._buffer.scan(queue.delayed_from, end):
            visible_ms = int.from_bytes(key[-16:-8], "big")
            if visible_ms > now_ms or len(found) == limit:
                first, next_ms = first or key, visible_ms
                break
            task = self._decode(queue, key, value)
            if task is not None:
                first = first or key
                found.append(task)
        queue.delayed_from = first or end
        self.due.set_next(queue, found[0].visible_ms if found else next_ms)
        return found

    def _decode(self, queue: QueueState, key: bytes, value: bytes) -> Task | None:
        """Returns the task. An entry that cannot be read is restored from its event, or else set aside: None."""
        try:
            task: Task | None = decode_task(value)
            if _is_delayed_at(task, key, queue):
                return task
        except UNREADABLE:
            pass
        task = self._buffer.original(int.from_bytes(key[-keys.NUMBER_BYTES :], "big"))
        if _is_delayed_at(task, key, queue):
            self._buffer.restore(key, value, task)
            return task
        queue.delayed -= 1
        queue.tenant.tasks -= 1
        self._buffer.set_aside(key, value, "this is not the task of the key")
        return None


def _is_delayed_at(task: Task | None, key: bytes, queue: QueueState) -> TypeGuard[Task]:
    return (
        task is not None
        and (task.tenant, task.command) == queue.key
        and key == keys.delayed(queue.key, task.visible_ms, task.version)
        and position(task) is Index.DELAYED
    )


class RetentionIndex:
    """Tasks that ended in one batch with the same retention share one entry."""

    def __init__(self, buffer: WriteBuffer) -> None:
        self._buffer = buffer
        self._from = keys.ENDED
        """No entry has a key below."""
        self._earliest_ms = 0
        self._ended: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        buffer.before_write(self._save)

    def add(self, task: Task) -> None:
        self._ended[task.purge_ms].append((task.tenant, task.id))
        if task.purge_ms < self._earliest_ms:
            self._earliest_ms = task.purge_ms
            self._from = keys.ended(task.purge_ms, 0)

    def due(self, now_ms: int, limit: int) -> list[Task]:
        if now_ms < self._earliest_ms:
            return []
        found: list[Task] = []
        first: bytes | None = None
        earliest_ms = _NEVER
        for key, value in self._buffer.scan(self._from, keys.after(keys.ENDED)):
            purge_ms = int.from_bytes(key[2:10], "big")
            if purge_ms > now_ms or len(found) >= limit:
                first, earliest_ms = first or key, min(earliest_ms, purge_ms)
                break
            still = self._still_ended(key, value, purge_ms)
            if still:
                first, earliest_ms = first or key, min(earliest_ms, purge_ms)
                found += still
        self._from, self._earliest_ms = first or keys.after(keys.ENDED), earliest_ms
        return found[:limit]

    def entries(self, start: bytes, until_ms: int) -> Iterator[tuple[bytes, list[tuple[str, str]]]]:
        """Yields tenant and id of the tasks to purge until then, by entry; from the key `start` on, if later."""
        if until_ms < self._earliest_ms:
            return
        end = keys.ENDED + keys.number(min(max(until_ms, 0), _NEVER) + 1)
        for key, value in self._buffer.scan(max(start, self._from), end):
            try:
                pairs = decode_pairs(value)
            except UNREADABLE as fault:
                self._buffer.report(key, str(fault))
                continue
            yield key, pairs

    def _still_ended(self, key: bytes, value: bytes, purge_ms: int) -> list[Task]:
        """Returns those that have been neither purged nor replayed since. Deletes an entry that has none."""
        try:
            wanted = [keys.current_record(tenant, task_id) for tenant, task_id in decode_pairs(value)]
        except UNREADABLE as fault:
            self._buffer.set_aside(key, value, str(fault))
            return []
        tasks = []
        for record_key, record in zip(wanted, self._buffer.get_many(wanted), strict=True):
            try:
                task = decode_task(decode_current(record).task) if record is not None else None
            except UNREADABLE as fault:
                self._buffer.report(record_key, str(fault))
                continue
            if task is not None and position(task) in _ENDED and task.purge_ms == purge_ms:
                tasks.append(task)
        if not tasks:
            self._buffer.delete(key)
        return tasks

    def _save(self) -> None:
        for purge_ms, pairs in self._ended.items():
            self._buffer.put(keys.ended(purge_ms, self._buffer.next_version), encode(pairs))
        self._ended.clear()
