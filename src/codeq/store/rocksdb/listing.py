"""Lists a tenant's tasks, a bounded number of records at a time."""

from collections.abc import Callable, Iterator

from codeq.domain import lifecycle
from codeq.domain.errors import InvalidRequest
from codeq.domain.ids import is_task_id
from codeq.domain.limits import LIST_SCAN_MAX
from codeq.domain.queue import Index, QueueKey
from codeq.domain.requests import Filter, Page
from codeq.domain.task import Task
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.write_buffer import WriteBuffer

Current = Callable[[str, str], Task | None]


def find(buffer: WriteBuffer, current: Current, tenant: str, wanted: Filter, *, cursor: str | None, limit: int) -> Page:
    source = _dead(buffer, tenant, wanted, cursor) if wanted.index is Index.DEAD else _newest(buffer, tenant, cursor)
    found: list[Task] = []
    place: str | None = None
    for seen, (place_of, task_id) in enumerate(source):
        if len(found) == limit or seen == LIST_SCAN_MAX:
            return Page(found, place)
        place = place_of
        task = current(tenant, task_id)
        if task is not None and matches(task, wanted):
            found.append(task)
    return Page(found, None)


def matches(task: Task, wanted: Filter) -> bool:
    return (
        (wanted.command is None or task.command == wanted.command)
        and (wanted.status is None or task.status is wanted.status)
        and (wanted.index is None or lifecycle.position(task) is wanted.index)
        and (wanted.error is None or wanted.error in f"{task.error or ''}\n{task.last_error or ''}")
        and wanted.created_from_ms <= task.created_ms < wanted.created_to_ms
    )


def _newest(buffer: WriteBuffer, tenant: str, cursor: str | None) -> Iterator[tuple[str, str]]:
    """Yields every task of the tenant, newest first. The cursor is the id."""
    prefix = keys.BODIES + keys.name(tenant)
    if cursor is not None and not is_task_id(cursor):
        raise InvalidRequest(f"{cursor[:64]!r} is not a cursor of this listing")
    end = prefix + cursor.encode() if cursor else keys.after(prefix)
    for key in buffer.scan_back(prefix, end):
        task_id = key[len(prefix) :].decode()
        yield task_id, task_id


def _dead(buffer: WriteBuffer, tenant: str, wanted: Filter, cursor: str | None) -> Iterator[tuple[str, str]]:
    """Yields the dead tasks of the tenant, or of one command, oldest death first. The cursor is the key, in hex."""
    one = wanted.command is not None
    prefix = keys.dead_prefix(QueueKey(tenant, wanted.command or "")) if one else keys.dead_of_tenant(tenant)
    start = prefix
    if cursor is not None:
        try:
            start = prefix + bytes.fromhex(cursor) + b"\0"
        except ValueError:
            raise InvalidRequest(f"{cursor[:64]!r} is not a cursor of this listing") from None
    for key, value in buffer.scan(start, keys.after(prefix)):
        yield key[len(prefix) :].hex(), value.decode()
