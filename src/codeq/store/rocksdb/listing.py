"""Lists a tenant's tasks, a bounded number of records and of payload bytes at a time."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from codeq.domain.ids import is_task_id
from codeq.domain.limits import FIND_SCAN_MAX
from codeq.domain.queue import Index, QueueKey
from codeq.domain.requests import Filter, Page
from codeq.domain.task import Task
from codeq.store.cursors import bad_cursor, from_hex
from codeq.store.matching import matches
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.time_index import RetentionIndex
from codeq.store.rocksdb.write_buffer import WriteBuffer

Candidates = Iterator[tuple[str, str | None]]
"""The cursor after each candidate, and its id; None where only the cursor advances."""


class Listing(NamedTuple):
    buffer: WriteBuffer
    retention: RetentionIndex
    current: Callable[[str, str], Task | None]

    def find(self, tenant: str, wanted: Filter, *, cursor: str | None, limit: int, bytes_max: int) -> Page:
        found: list[Task] = []
        place = cursor
        size = 0
        for seen, (place_of, task_id) in enumerate(self._candidates(tenant, wanted, cursor)):
            if len(found) == limit or seen == FIND_SCAN_MAX:
                return Page(found, place)
            task = self.current(tenant, task_id) if task_id is not None else None
            if task is not None and matches(task, wanted):
                size += task.payload_bytes
                if found and size > bytes_max:
                    return Page(found, place)
                found.append(task)
            place = place_of
        return Page(found, None)

    def _candidates(self, tenant: str, wanted: Filter, cursor: str | None) -> Candidates:
        if wanted.purge_to_ms is not None:
            return _ended(self.retention, tenant, wanted.purge_to_ms, cursor)
        if wanted.index is Index.DEAD:
            return _dead(self.buffer, tenant, wanted, cursor)
        return _newest(self.buffer, tenant, cursor)


def _newest(buffer: WriteBuffer, tenant: str, cursor: str | None) -> Candidates:
    """Yields every task of the tenant, newest first. The cursor is the id."""
    prefix = keys.BODIES + keys.name(tenant)
    if cursor is not None and not is_task_id(cursor):
        raise bad_cursor(cursor)
    end = prefix + cursor.encode() if cursor else keys.after(prefix)
    if buffer.get(prefix) is None:
        buffer.put(prefix, b"")  # where the scan stops, instead of passing what the tenant before has deleted
    for key in buffer.scan_back(prefix, end):
        task_id = key[len(prefix) :].decode()
        if task_id:
            yield task_id, task_id


def _dead(buffer: WriteBuffer, tenant: str, wanted: Filter, cursor: str | None) -> Candidates:
    """Yields the dead tasks of the tenant, or of one command, oldest death first. The cursor is the key, in hex."""
    one = wanted.command is not None
    prefix = keys.dead_prefix(QueueKey(tenant, wanted.command or "")) if one else keys.dead_of_tenant(tenant)
    start = prefix + from_hex(cursor) + b"\0" if cursor is not None else prefix
    for key, value in buffer.scan(start, keys.after(prefix)):
        yield key[len(prefix) :].hex(), value.decode(errors="replace")


def _ended(retention: RetentionIndex, tenant: str, until_ms: int, cursor: str | None) -> Candidates:
    """Yields the tasks of the tenant that are purged until then, those of other tenants as None. The cursor is an
    entry of the index, in hex, and how many of its tasks were yielded."""
    start, skipped = b"", 0
    if cursor is not None:
        entry, _, number = cursor.partition(".")
        if not number.isascii() or not number.isdigit() or len(number) > 9:
            raise bad_cursor(cursor)
        start, skipped = from_hex(entry), int(number)
    for key, pairs in retention.entries(start, until_ms):
        of_tenant = [task_id for owner, task_id in pairs if owner == tenant]
        name = key.hex()
        for place in range(skipped if key == start else 0, len(of_tenant)):
            yield f"{name}.{place + 1}", of_tenant[place]
        yield f"{name}.{len(of_tenant)}", None
