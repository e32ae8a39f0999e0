"""What is done once, when the files of a shard are opened: its format is checked, and its memory restored."""

from collections.abc import Iterator

from codeq.domain import lifecycle
from codeq.domain.errors import StoreMismatch
from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.domain.queue import QueueKey, QueuePolicy
from codeq.domain.task import Move, Task
from codeq.store import codec
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database
from codeq.store.rocksdb.leases import Leases
from codeq.store.rocksdb.queues import Queues
from codeq.store.rocksdb.records import Records
from codeq.store.rocksdb.write_buffer import WriteBuffer

_MOVED_AT_ONCE = 10_000
_FORMAT_OF_CHECKSUMS = 3


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
    if 0 < number < _FORMAT_OF_CHECKSUMS:
        for key, value in buffer.scan(keys.COUNTS, keys.after(keys.COUNTS)):
            buffer.put(
                key, codec.with_checksum(key, value)
            )  # in one batch with the format: half of it would look damaged
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


def restore_leases(buffer: WriteBuffer, records: Records, queues: Queues, leases: Leases, *, least_ms: int) -> bool:
    """Restores the tasks in progress, each with a lease until `least_ms` or later: healthy workers keep them.

    Returns whether that were all of them.
    """
    is_complete = True
    stored = list(buffer.scan(keys.CLAIM_BATCHES, keys.after(keys.CLAIM_BATCHES)))
    starts = [_version(key) for key, _ in stored]
    for (key, value), start, end in zip(stored, starts, [*starts[1:], buffer.next_version], strict=False):
        claimed, request_id = _claimed(value, start, end)
        if claimed is None:
            claimed, are_all = _claimed_by_events(buffer, start, end)
            is_complete = is_complete and are_all
            _replace(buffer, (key, value), claimed, request_id=request_id)
        tasks = [task for one in claimed if (task := _still_leased(buffer, records, one))]
        extended = [lifecycle.with_grace(task, least_ms) for task in tasks]
        if extended:
            states = [queues.restore_lease(task.tenant, task.command) for task in extended]
            leases.restore(start, extended, states, request_id=request_id)
    return is_complete


def _still_leased(buffer: WriteBuffer, records: Records, claimed: Task) -> Task | None:
    """Returns the task of a stored claim unless it has moved on. If its event names another task, that one is it."""
    task = records.still_leased(claimed)
    if task is None:
        original = buffer.original(claimed.version)
        if original is not None and original.id != claimed.id:
            buffer.report(keys.claim_batch(claimed.version), "the claim names another task than its event")
            return records.still_leased(original)
    return task


def _replace(buffer: WriteBuffer, stored: tuple[bytes, bytes], claimed: list[Task], *, request_id: str | None) -> None:
    key, value = stored
    buffer.set_aside(key, value, "these are not the tasks of the claim")
    if claimed:
        buffer.put(key, codec.claim_record(codec.joined([codec.encode(task) for task in claimed]), request_id))


def _claimed(value: bytes, start: int, end: int) -> tuple[list[Task] | None, str | None]:
    """Returns the tasks of a stored claim, and its request id; None for tasks that cannot be read, or are not those of
    its key."""
    request_id = None
    try:
        found, request_id = codec.split_claim(value)
        tasks = codec.decode_tasks(found)
    except codec.UNREADABLE:
        return None, request_id
    are_of_claim = all(start <= task.version < end and task.move is Move.CLAIM for task in tasks)
    return (tasks if tasks and tasks[0].version == start and are_of_claim else None), request_id


def _claimed_by_events(buffer: WriteBuffer, start: int, end: int) -> tuple[list[Task], bool]:
    """Returns the tasks that one claim leased, by its events, and whether all events that may be of it can be read."""
    tasks: list[Task] = []
    for version in range(start, min(end, start + BATCH_TASKS_MAX)):
        task = buffer.original(version)
        if task is None:
            return tasks, False
        if task.move is not Move.CLAIM or (tasks and (task.worker, task.updated_ms) != _claim_of(tasks[0])):
            break
        tasks.append(task)
    return tasks, True


def _claim_of(task: Task) -> tuple[str | None, int]:
    return task.worker, task.updated_ms


def _version(key: bytes) -> int:
    return int.from_bytes(key[-keys.NUMBER_BYTES :], "big")


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
