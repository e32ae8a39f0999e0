"""What is done once, when the files of a shard are opened: its format is checked, and its memory restored."""

from collections.abc import Iterator

from msgspec import Raw

from codeq.domain import lifecycle
from codeq.domain.errors import StoreMismatch
from codeq.domain.queue import QueueKey, QueuePolicy
from codeq.domain.task import Task
from codeq.store import codec
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database
from codeq.store.rocksdb.leases import Leases
from codeq.store.rocksdb.queues import Queues
from codeq.store.rocksdb.records import Records
from codeq.store.rocksdb.write_buffer import WriteBuffer

_MOVED_AT_ONCE = 10_000


def check_format(database: Database) -> None:
    """Refuses the files of a newer codeQ, and brings those of an older one to the present format."""
    stored = database.get(keys.FORMAT)
    number = int.from_bytes(stored, "big") if stored is not None else 0
    if number > codec.FORMAT:
        raise StoreMismatch(
            f"{database.path} was written by a newer codeQ (format {number}, this one knows {codec.FORMAT}); use that "
            "version, nothing was changed"
        )
    buffer = WriteBuffer(database, 1)
    if number < codec.FORMAT:
        buffer.put(keys.FORMAT, keys.number(codec.FORMAT))  # first, so that no older codeQ opens what is half converted
        buffer.write()
    if number:
        _sort_delayed_by_queue(buffer)
        buffer.write()


def stored_policies(buffer: WriteBuffer) -> Iterator[tuple[QueueKey, QueuePolicy]]:
    """Yields the policies. A queue whose policy cannot be read has none: the defaults apply."""
    for key, value in buffer.scan(keys.POLICIES, keys.after(keys.POLICIES)):
        try:
            yield QueueKey(*keys.split_names(key[2:])), codec.decode_policy(value)
        except codec.UNREADABLE as fault:
            buffer.set_aside(key, value, str(fault))


def restore_leases(buffer: WriteBuffer, records: Records, queues: Queues, leases: Leases, *, least_ms: int) -> None:
    """Restores the tasks in progress, each with a lease until `least_ms` or later: healthy workers keep them."""
    for key, value in list(buffer.scan(keys.CLAIM_BATCHES, keys.after(keys.CLAIM_BATCHES))):
        found, request_id = _claimed(buffer, key, value)
        tasks = [task for claimed in found if (task := records.still_leased(claimed))]
        extended = [lifecycle.with_grace(task, least_ms) for task in tasks]
        if extended:
            states = [queues.restore_lease(task.tenant, task.command) for task in extended]
            leases.restore(int.from_bytes(key[2:], "big"), extended, states, request_id=request_id)


def _claimed(buffer: WriteBuffer, key: bytes, value: bytes) -> tuple[list[Task], str | None]:
    """Returns the tasks of a stored claim, and its request id. Those that cannot be read are set aside, the others are
    kept."""
    found: bytes | Raw = b""
    request_id = None
    try:
        found, request_id = codec.split_claim(value)
        return codec.decode_tasks(found), request_id
    except codec.UNREADABLE as fault:
        buffer.set_aside(key, value, str(fault))
    tasks: list[Task] = []
    for item in _split(found):
        try:
            tasks.append(codec.decode_task(item))
        except codec.UNREADABLE:
            continue  # reported above
    if tasks:
        joined = codec.joined([codec.encode(task) for task in tasks])
        buffer.put(key, codec.claim_record(joined, request_id))
    return tasks, request_id


def _split(value: bytes | Raw) -> list[Raw]:
    try:
        return codec.split_tasks(value)
    except codec.UNREADABLE:
        return []


def _sort_delayed_by_queue(buffer: WriteBuffer) -> None:
    """Format 1 had the delayed tasks of all queues in one order."""
    for number, (key, value) in enumerate(buffer.scan(keys.DELAYED_FORMAT_1, keys.after(keys.DELAYED_FORMAT_1))):
        try:
            task = codec.decode_task(value)
        except codec.UNREADABLE as fault:
            buffer.set_aside(key, value, str(fault))
            continue
        buffer.delete(key)
        buffer.put(keys.delayed(QueueKey(task.tenant, task.command), task.visible_ms, task.version), value)
        if number % _MOVED_AT_ONCE == _MOVED_AT_ONCE - 1:
            buffer.write()  # if it stops here, the rest is moved at the next opening
