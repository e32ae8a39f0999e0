"""One shard on RocksDB: the unit of atomicity, order and event numbers. All calls run on one event loop."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from codeq.domain import lifecycle
from codeq.domain.errors import InvalidRequest, StoreMismatch
from codeq.domain.ids import is_task_id
from codeq.domain.limits import BATCH_BYTES_MAX, RESTART_GRACE_MS
from codeq.domain.queue import Index, QueueCounts, QueueKey, QueuePolicy
from codeq.domain.requests import Delivery, Filter, Page, Record
from codeq.domain.task import Body, Change, Move, Task
from codeq.store import codec
from codeq.store.interface import ClaimRequest, Clock, Events, Listener
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database
from codeq.store.rocksdb.eventlog import EventLog
from codeq.store.rocksdb.group_commit import GroupCommit
from codeq.store.rocksdb.high_water_mark import HighWaterMark
from codeq.store.rocksdb.leases import Leases
from codeq.store.rocksdb.listing import find
from codeq.store.rocksdb.pending import QueueState
from codeq.store.rocksdb.queues import Queues
from codeq.store.rocksdb.selection import Selected, select
from codeq.store.rocksdb.time_index import DelayedIndex, RetentionIndex
from codeq.store.rocksdb.write_buffer import WriteBuffer

_PENDING, _DELAYED, _IN_PROGRESS, _DEAD, _ = Index
_HEARTBEAT, _PURGE = Move.HEARTBEAT, Move.PURGE


class RocksShard:
    """Implements `store.interface.Store` for the tasks of one shard."""

    shards = 1

    def __init__(
        self,
        path: Path,
        *,
        listeners: Sequence[Listener],
        clock: Clock,
        fsync: bool = True,
        recover: bool = False,
        grace_ms: int = RESTART_GRACE_MS,
    ) -> None:
        self._listeners = listeners
        self._clock = clock
        self._last_ms = 0
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._database = Database(path / "rocksdb", recover=recover)
        try:
            _check_format(self._database)
            self._high_water_mark = HighWaterMark(path / "witness")
            if not recover:
                self._high_water_mark.verify(self._database.sequence())
            self._events = EventLog(self._database)
            self._buffer = WriteBuffer(self._database, self._events.next_version)
            self._events.buffer = self._buffer
            self._queues = Queues(self._buffer)
            self._leases = Leases(self._buffer)
            self._delayed = DelayedIndex(self._buffer)
            self._retention = RetentionIndex(self._buffer)
            self._policies = dict(_stored_policies(self._database))
            self._restore_leases(grace_ms)
        except BaseException:
            self._database.close()
            raise
        self._group_commit = GroupCommit(
            self._database, self._buffer, self._high_water_mark, fsync=fsync, on_flush=self._report_flushed
        )
        self._ready: defaultdict[QueueState, int] = defaultdict(int)
        self._moved: list[Task] = []
        self._is_released = False

    def now_ms(self) -> int:
        self._last_ms = max(self._last_ms, self._clock())
        return self._last_ms

    async def commit(self, changes: Sequence[Change]) -> list[Task | None]:
        self._group_commit.check(adds_tasks=any(change.before is None for change in changes))
        try:
            owners = self._key_owners(changes)
            return [self._apply(change, owners) for change in changes]
        except Exception as fault:  # half of a change may be in the write buffer: it must never be written
            self._group_commit.fail(fault)
            raise
        finally:
            self._report()

    async def take(self, request: ClaimRequest) -> list[Delivery]:
        self._group_commit.check(adds_tasks=False)
        try:
            selected = self._select(request)
            return self._lease(request, selected) if selected else []
        except Exception as fault:  # as in commit
            self._group_commit.fail(fault)
            raise

    async def get_tasks(self, tenant: str, ids: Sequence[str]) -> list[Task | None]:
        self._group_commit.check(adds_tasks=False)
        return [self._current(tenant, task_id) for task_id in ids]

    async def get_records(self, tenant: str, ids: Sequence[str]) -> list[Record | None]:
        self._group_commit.check(adds_tasks=False)
        records: list[Record | None] = []
        size = 0
        for task_id in ids:
            record = self._record(tenant, task_id) if size < BATCH_BYTES_MAX else None
            size += record.task.payload_bytes if record else 0
            records.append(record)
        return records

    async def due(self, index: Index, now_ms: int, limit: int) -> list[Task]:
        self._group_commit.check(adds_tasks=False)
        match index:
            case Index.DELAYED:
                return self._delayed.due(now_ms, limit)
            case Index.IN_PROGRESS:
                self._leases.save_extended()
                return self._leases.expired(now_ms, limit)
            case Index.NONE:
                return self._retention.due(now_ms, limit)
        raise ValueError(f"tasks in {index} wait for no time")

    async def find(self, tenant: str, wanted: Filter, *, cursor: str | None, limit: int) -> Page:
        self._group_commit.check(adds_tasks=False)
        return find(self._buffer, self._current, tenant, wanted, cursor=cursor, limit=limit)

    async def counts(self, tenant: str | None, *, ages: bool = False) -> dict[QueueKey, QueueCounts]:
        self._group_commit.check(adds_tasks=False)
        return self._queues.counts(tenant, ages=ages)

    async def events(self, shard: int, start: int, limit: int) -> Events:
        self._group_commit.check(adds_tasks=False)
        if shard:
            raise InvalidRequest(f"there is no shard {shard}; there is only shard 0")
        return Events(self._events.read(start, limit), self._events.first, self._buffer.next_version)

    async def trim(self, *, before_ms: int, keep_max: int) -> int:
        self._group_commit.check(adds_tasks=False)
        return self._events.trim(before_ms=before_ms, keep_max=keep_max)

    def policies(self) -> dict[QueueKey, QueuePolicy]:
        return self._policies

    async def set_policy(self, queue: QueueKey, policy: QueuePolicy | None) -> None:
        self._group_commit.check(adds_tasks=False)
        if policy is None:
            self._policies.pop(queue, None)
            self._buffer.delete(keys.policy(queue))
        else:
            self._policies[queue] = policy
            self._buffer.put(keys.policy(queue), codec.encode(policy))

    async def flush(self) -> None:
        await self._group_commit.flush()

    async def checkpoint(self, target: Path) -> None:
        self._group_commit.check(adds_tasks=False)
        self._buffer.write()
        target.mkdir(mode=0o700, parents=True)
        await asyncio.to_thread(self._database.checkpoint, target / "rocksdb")

    async def close(self) -> None:
        if self._is_released:
            return
        try:
            await self._group_commit.close()
        finally:
            self.release()

    def release(self) -> None:
        """Releases the files without a flush. Later calls do nothing."""
        if self._is_released:
            return
        self._is_released = True
        self._group_commit.stop()
        self._high_water_mark.close()
        self._database.close()

    def in_progress(self, queue: QueueKey) -> int:
        known = self._queues.peek(queue)
        return known.in_progress if known else 0

    # -- changes -------------------------------------------------------------------------------------------------

    def _key_owners(self, changes: Sequence[Change]) -> dict[bytes, bytes | None]:
        """Returns the task id by idempotency key, where used: one read for all costs half of one for each."""
        wanted = [
            keys.idempotency(change.after.tenant, change.body.idempotency_key)
            for change in changes
            if change.body is not None and change.body.idempotency_key is not None
        ]
        return dict(zip(wanted, self._buffer.get_many(wanted), strict=True)) if wanted else {}

    def _apply(self, change: Change, owners: dict[bytes, bytes | None]) -> Task | None:
        before, after, move = change.before, change.after, change.move
        if before is None:
            return self._enqueue(change, owners)
        current = self._leases.get(before.id) or self._current(before.tenant, before.id)
        if current is None or current.version != before.version:
            return None
        if move is _HEARTBEAT:
            self._leases.extend(after)
            return after
        data = self._buffer.event(after)
        self._moved.append(after)
        self._remove_from_index(before)
        if move is _PURGE:
            self._delete(after)
            return after
        self._buffer.put(keys.current_record(after.tenant, after.id), codec.current_record(data, change.result))
        self._add_to_index(after, data, None)
        return after

    def _enqueue(self, change: Change, owners: dict[bytes, bytes | None]) -> Task | None:
        task, body = change.after, change.body
        assert body is not None  # noqa: S101 - the lifecycle gives every new task a body
        if body.idempotency_key is not None:
            key = keys.idempotency(task.tenant, body.idempotency_key)
            owner = owners[key]
            existing = self._current(task.tenant, owner.decode()) if owner is not None else None
            if existing is not None:
                return existing
            owners[key] = task.id.encode()  # for the same key later in this batch
            self._buffer.put(key, task.id.encode())
        data = self._buffer.event(task)
        self._moved.append(task)
        self._buffer.put(keys.body(task.tenant, task.id), codec.created_record(data, body))
        self._add_to_index(task, data, body)
        return task

    def _remove_from_index(self, task: Task) -> None:
        queue = self._queues.get(task.tenant, task.command)
        place = lifecycle.position(task)
        if place is _IN_PROGRESS:
            queue.in_progress -= 1
            self._leases.remove(task.id)
        elif place is _PENDING:
            window = queue.window(task.priority)
            self._buffer.delete(window.prefix + keys.number(task.version))
            window.remove(task.version)
        elif place is _DELAYED:
            queue.delayed -= 1
            self._delayed.remove(task)
        elif place is _DEAD:
            queue.dead -= 1
            self._buffer.delete(keys.dead_prefix(queue.key) + keys.number(task.version))

    def _add_to_index(self, task: Task, data: bytes, body: Body | None) -> None:
        queue = self._queues.get(task.tenant, task.command)
        place = lifecycle.position(task)
        if place is _PENDING:
            window = queue.window(task.priority)
            self._buffer.put(window.prefix + keys.number(task.version), data)
            window.append(task, body)
            self._ready[queue] += 1
        elif place is _DELAYED:
            queue.delayed += 1
            self._delayed.add(task, data)
        else:
            if place is _DEAD:
                queue.dead += 1
                self._buffer.put(keys.dead_prefix(queue.key) + keys.number(task.version), task.id.encode())
            self._retention.add(task)

    def _delete(self, task: Task) -> None:
        created = self._buffer.get(keys.body(task.tenant, task.id))
        if created is not None:
            key = codec.decode_body(codec.decode_created(created).body).idempotency_key
            if key is not None:
                self._buffer.delete(keys.idempotency(task.tenant, key))
        self._buffer.delete(keys.body(task.tenant, task.id))
        self._buffer.delete(keys.current_record(task.tenant, task.id))

    def _report(self) -> None:
        if self._ready:
            ready, self._ready = self._ready, defaultdict(int)
            for queue, tasks in ready.items():
                for listener in self._listeners:
                    listener.ready(queue.key, tasks)
        if self._moved:
            moved, self._moved = self._moved, []
            self._report_moved(moved)

    def _report_moved(self, tasks: Sequence[Task]) -> None:
        for listener in self._listeners:
            listener.moved(tasks)

    def _report_flushed(self, calls: int, seconds: float) -> None:
        for listener in self._listeners:
            listener.flushed(calls, seconds)

    # -- claims --------------------------------------------------------------------------------------------------

    def _select(self, request: ClaimRequest) -> list[Selected]:
        queues = [queue for key in request.queues if (queue := self._queues.peek(key)) and queue.windows]
        queues.sort(key=lambda queue: queue.served)
        selected = select(self._buffer, request, queues)
        if len(request.queues) > 1:
            for window, _ in selected:
                self._queues.turn += 1
                window.queue.served = self._queues.turn
        return selected

    def _lease(self, request: ClaimRequest, selected: list[Selected]) -> list[Delivery]:
        now_ms = self.now_ms()
        buffer = self._buffer
        tasks: list[Task] = []
        data: list[bytes] = []
        bodies: list[Body | None] = []
        for window, (before, body) in selected:
            after = lifecycle.claim(before, request.worker, now_ms, lease_ms=request.lease_ms).after
            data.append(buffer.event(after))
            tasks.append(after)
            bodies.append(body)
            buffer.delete(window.prefix + keys.number(before.version))
            window.queue.in_progress += 1
            self._queues.changed(window.queue)
        self._leases.add(tasks, data)
        self._report_moved(tasks)
        return self._with_bodies(tasks, bodies)

    def _with_bodies(self, tasks: list[Task], bodies: list[Body | None]) -> list[Delivery]:
        missing = [i for i, body in enumerate(bodies) if body is None]
        if missing:
            read = self._buffer.get_many([keys.body(tasks[i].tenant, tasks[i].id) for i in missing])
            for i, created in zip(missing, read, strict=True):
                assert created is not None, f"task {tasks[i].id} has no body"  # noqa: S101 - written with the task
                bodies[i] = codec.decode_body(codec.decode_created(created).body)
        return [Delivery(task, body) for task, body in zip(tasks, bodies, strict=True) if body is not None]

    # -- reads ---------------------------------------------------------------------------------------------------

    def _current(self, tenant: str, task_id: str) -> Task | None:
        held = self._leases.get(task_id)
        if held is not None:
            return held if held.tenant == tenant else None
        if not is_task_id(task_id):
            return None
        current = self._buffer.get(keys.current_record(tenant, task_id))
        if current is not None:
            return codec.decode_task(codec.decode_current(current).task)
        created = self._buffer.get(keys.body(tenant, task_id))
        return codec.decode_task(codec.decode_created(created).task) if created is not None else None

    def _record(self, tenant: str, task_id: str) -> Record | None:
        task = self._current(tenant, task_id)
        if task is None:
            return None
        current, created = self._buffer.get_many([keys.current_record(tenant, task_id), keys.body(tenant, task_id)])
        assert created is not None, f"task {task_id} has no body"  # noqa: S101 - written with the task
        body = codec.decode_body(codec.decode_created(created).body)
        return Record(task, body, codec.decode_current(current).result if current is not None else None)

    # -- opening -------------------------------------------------------------------------------------------------

    def _restore_leases(self, grace_ms: int) -> None:
        """Restores the tasks in progress, each with `grace_ms` of lease or more, so that healthy workers keep them."""
        least_ms = self.now_ms() + grace_ms
        for key, value in self._database.scan(keys.CLAIM_BATCHES, keys.after(keys.CLAIM_BATCHES)):
            tasks = [task for claimed in codec.decode_tasks(value) if (task := self._still_leased(claimed))]
            extended = [lifecycle.with_grace(task, least_ms) for task in tasks]
            if extended:
                self._leases.restore(int.from_bytes(key[2:], "big"), extended)

    def _still_leased(self, claimed: Task) -> Task | None:
        current, created = self._database.get_many(
            [keys.current_record(claimed.tenant, claimed.id), keys.body(claimed.tenant, claimed.id)]
        )
        if created is None:
            return None  # purged since
        task = codec.decode_task(codec.decode_current(current).task) if current is not None else claimed
        if task.version > claimed.version:
            return None  # moved since
        return task if task.version == claimed.version else claimed


def _check_format(database: Database) -> None:
    stored = database.get(keys.FORMAT)
    if stored is None:
        first = WriteBuffer(database, 1)
        first.put(keys.FORMAT, keys.number(codec.FORMAT))
        first.write()
    elif int.from_bytes(stored, "big") > codec.FORMAT:
        raise StoreMismatch(
            f"{database.path} was written by a newer codeQ (format {int.from_bytes(stored, 'big')}, this one knows "
            f"{codec.FORMAT}); use that version, nothing was changed"
        )


def _stored_policies(database: Database) -> list[tuple[QueueKey, QueuePolicy]]:
    found = database.scan(keys.POLICIES, keys.after(keys.POLICIES))
    return [(QueueKey(*keys.split_names(key[2:])), codec.decode_policy(value)) for key, value in found]
