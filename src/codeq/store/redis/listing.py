"""Lists the tasks of a tenant in one shard, a bounded number of records and of payload bytes at a time."""

from collections.abc import Sequence

from codeq.domain.ids import is_task_id
from codeq.domain.limits import FIND_SCAN_MAX
from codeq.domain.queue import Index
from codeq.domain.requests import Filter, Page
from codeq.domain.task import Task
from codeq.store.cursors import bad_cursor, from_hex
from codeq.store.matching import matches
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import ShardKeys, id_bytes, task_id

_ID_BYTES = 16
Candidates = list[tuple[str, str]]
"""The cursor after each candidate, and its id."""


async def candidates(
    connection: RedisClient, keys: ShardKeys, *, tenant: str, wanted: Filter, cursor: str | None
) -> Candidates:
    """Returns the next tasks that may match, FIND_SCAN_MAX at most."""
    if wanted.purge_to_ms is not None:
        return await _ended(connection, keys.ended(tenant), wanted.purge_to_ms, cursor)
    if wanted.index is Index.DEAD:
        return await _dead(connection, keys.dead(tenant), wanted.command, cursor)
    return await _newest(connection, keys.listing(tenant), cursor)


def page(found: Candidates, tasks: Sequence[Task | None], wanted: Filter, *, limit: int, bytes_max: int) -> Page:
    """Returns those of the candidates that match, with the cursor to continue from."""
    matching: list[Task] = []
    place: str | None = None
    size = 0
    for (place_of, _), task in zip(found, tasks, strict=True):
        if len(matching) == limit:
            return Page(matching, place)
        if task is not None and matches(task, wanted):
            size += task.payload_bytes
            if matching and size > bytes_max:
                return Page(matching, place)
            matching.append(task)
        place = place_of
    return Page(matching, place if len(found) == FIND_SCAN_MAX else None)


async def _newest(connection: RedisClient, key: str, cursor: str | None) -> Candidates:
    """Returns tasks of the tenant, newest first. The cursor is the id."""
    if cursor is not None and not is_task_id(cursor):
        raise bad_cursor(cursor)
    start = b"(" + id_bytes(cursor) if cursor is not None else b"+"
    found = await connection.call("ZREVRANGEBYLEX", key, start, b"-", "LIMIT", 0, FIND_SCAN_MAX)
    return [(text, text) for text in map(task_id, found)]


async def _dead(connection: RedisClient, key: str, command: str | None, cursor: str | None) -> Candidates:
    """Returns dead tasks, by command, oldest death first. The cursor is the entry, in hex."""
    first = b"[" + command.encode() + b"\0" if command is not None else b"-"
    last = b"(" + command.encode() + b"\x01" if command is not None else b"+"
    start = b"(" + from_hex(cursor) if cursor is not None else first
    found = await connection.call("ZRANGEBYLEX", key, start, last, "LIMIT", 0, FIND_SCAN_MAX)
    return [(entry.hex(), task_id(entry[-_ID_BYTES:])) for entry in found]


async def _ended(connection: RedisClient, key: str, until_ms: int, cursor: str | None) -> Candidates:
    """Returns tasks that are purged until then, the first ones first. The cursor is the time, and the id."""
    start_ms, after = 0, b""
    if cursor is not None:
        number, _, digits = cursor.partition(".")
        if not number.isascii() or not number.isdigit() or len(number) > 15 or len(digits) != 2 * _ID_BYTES:
            raise bad_cursor(cursor)
        start_ms, after = int(number), from_hex(digits)
    found: Candidates = []
    offset = 0
    while len(found) < FIND_SCAN_MAX:
        part = await connection.call(
            "ZRANGEBYSCORE", key, start_ms, until_ms, "WITHSCORES", "LIMIT", offset, FIND_SCAN_MAX
        )
        pairs = [(part[place], int(part[place + 1])) for place in range(0, len(part), 2)]
        found += [(f"{ms}.{entry.hex()}", task_id(entry)) for entry, ms in pairs if (ms, entry) > (start_ms, after)]
        if len(pairs) < FIND_SCAN_MAX:
            break
        offset += len(pairs)
    return found[:FIND_SCAN_MAX]
