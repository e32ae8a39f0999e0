"""Tasks that wait for a time, on disk: delayed ones until they are visible, ended ones until they are forgotten.

Each index remembers the earliest time it may hold. Asking whether anything is due costs a comparison, and a scan
starts where the last one ended, so neither the far future nor what was served before is ever looked at.
"""

from collections import defaultdict

from codeq.domain.lifecycle import position
from codeq.domain.queue import Index
from codeq.domain.task import Task
from codeq.store.codec import decode_current, decode_pairs, decode_task, encode
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.write_buffer import WriteBuffer

_NEVER = 1 << 62
_ENDED = (Index.DEAD, Index.NONE)


class DelayedIndex:
    def __init__(self, buffer: WriteBuffer) -> None:
        self._buffer = buffer
        self._earliest_ms = 0

    def add(self, task: Task, data: bytes) -> None:
        self._buffer.put(keys.delayed(task.visible_ms, task.version), data)
        self._earliest_ms = min(self._earliest_ms, task.visible_ms)

    def remove(self, task: Task) -> None:
        self._buffer.delete(keys.delayed(task.visible_ms, task.version))

    def due(self, now_ms: int, limit: int) -> list[Task]:
        if now_ms < self._earliest_ms:
            return []
        found: list[Task] = []
        earliest_ms = _NEVER
        start = keys.DELAYED + keys.number(self._earliest_ms)
        for key, value in self._buffer.scan(start, keys.after(keys.DELAYED)):
            visible_ms = _time(key)
            if visible_ms > now_ms or len(found) == limit:
                earliest_ms = visible_ms
                break
            found.append(decode_task(value))
        self._earliest_ms = found[0].visible_ms if found else earliest_ms
        return found


class RetentionIndex:
    """Tasks that ended in one batch and are kept equally long share one entry."""

    def __init__(self, buffer: WriteBuffer) -> None:
        self._buffer = buffer
        self._earliest_ms = 0
        self._ended: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        buffer.before_write(self._save)

    def add(self, task: Task) -> None:
        self._ended[task.purge_ms].append((task.tenant, task.id))
        self._earliest_ms = min(self._earliest_ms, task.purge_ms)

    def due(self, now_ms: int, limit: int) -> list[Task]:
        if now_ms < self._earliest_ms:
            return []
        found: list[Task] = []
        earliest_ms = _NEVER
        start = keys.ENDED + keys.number(self._earliest_ms)
        for key, value in self._buffer.scan(start, keys.after(keys.ENDED)):
            purge_ms = _time(key)
            if purge_ms > now_ms or len(found) >= limit:
                earliest_ms = min(earliest_ms, purge_ms)
                break
            still = self._still_ended(purge_ms, decode_pairs(value))
            if still:
                earliest_ms = min(earliest_ms, purge_ms)
                found += still
            else:
                self._buffer.delete(key)
        self._earliest_ms = earliest_ms
        return found[:limit]

    def _still_ended(self, purge_ms: int, pairs: list[tuple[str, str]]) -> list[Task]:
        """Those that have not been purged, nor come back to life since."""
        records = self._buffer.get_many([keys.current_record(tenant, task_id) for tenant, task_id in pairs])
        tasks = [decode_task(decode_current(record).task) for record in records if record is not None]
        return [task for task in tasks if position(task) in _ENDED and task.purge_ms == purge_ms]

    def _save(self) -> None:
        for purge_ms, pairs in self._ended.items():
            self._buffer.put(keys.ended(purge_ms, self._buffer.next_version), encode(pairs))
        self._ended.clear()


def _time(key: bytes) -> int:
    return int.from_bytes(key[2:10], "big")
