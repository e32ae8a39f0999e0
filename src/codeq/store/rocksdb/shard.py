"""One shard on RocksDB: the unit of atomicity, order and event numbers. All calls run on one event loop."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path

from codeq.domain import lifecycle
from codeq.domain.errors import InvalidRequest, StoreError
from codeq.domain.limits import BATCH_BYTES_MAX, OPEN_TABLES_MAX
from codeq.domain.queue import Index, QueueCounts, QueueKey, QueuePolicy
from codeq.domain.requests import Delivery, Filter, Page, Record
from codeq.domain.task import Body, Change, Move, Task
from codeq.domain.tenants import StorageUsage
from codeq.store import all_counts
from codeq.store.interface import ALL, ClaimRequest, Clock, Events, Primaries, Scope
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database
from codeq.store.rocksdb.eventlog import EventLog
from codeq.store.rocksdb.group_commit import GroupCommit
from codeq.store.rocksdb.high_water_mark import HighWaterMark
from codeq.store.rocksdb.leases import Leases
from codeq.store.rocksdb.listing import Listing
from codeq.store.rocksdb.lost_tasks import LostTasks
from codeq.store.rocksdb.only_process import OnlyProcess
from codeq.store.rocksdb.opening import check_format, restore_leases, stored_policies
from codeq.store.rocksdb.pending import QueueState
from codeq.store.rocksdb.policies import Policies
from codeq.store.rocksdb.queues import Queues
from codeq.store.rocksdb.records import Records
from codeq.store.rocksdb.registry import RocksRegistry
from codeq.store.rocksdb.selection import Selected, priorities, select
from codeq.store.rocksdb.time_index import DelayedIndex, RetentionIndex
from codeq.store.rocksdb.write_buffer import WriteBuffer

_SELECTIONS_MAX = 100
_PENDING, _DELAYED, _IN_PROGRESS, _DEAD, _NONE = Index
_CANCEL, _HEARTBEAT, _PROMOTE, _PURGE = Move.CANCEL, Move.HEARTBEAT, Move.PROMOTE, Move.PURGE


class RocksShard:
    """Implements `store.interface.Store` for the tasks of one shard."""

    shards, is_local, primaries = 1, True, ("",)
    all_counts = all_counts.in_memory

    def __init__(
        self,
        path: Path,
        *,
        peers: OnlyProcess,
        clock: Clock,
        fsync: bool = True,
        recover: bool = False,
        repair: bool = False,
        open_tables_max: int = OPEN_TABLES_MAX,
        log_id: str = "",
    ) -> None:
        """Opens the files. `restore_leases` must be called before any verb. With `repair`, all indexes and counts are
        compared with the records, which reads every task."""
        self.peers = peers
        self.log_id = log_id
        self.now_ms = clock.__call__  # bound once: every verb asks for the time
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._database = Database(path / "rocksdb", recover=recover, open_tables_max=open_tables_max)
        try:
            check_format(self._database)
            self._high_water_mark = HighWaterMark(path / "witness")
            if not recover:
                self._high_water_mark.verify(self._database.sequence())
            self._events = EventLog(self._database)
            self._buffer = WriteBuffer(self._database, self._events.next_version)
            self._buffer.on_unreadable = partial(peers.report_unreadable, self._database.path)
            self._events.attach(self._buffer)
            self._leases = Leases(self._buffer)
            self._delayed = DelayedIndex(self._buffer)
            self._queues = Queues(self._buffer, self._delayed, self._leases, is_recounted=repair)
            self._retention = RetentionIndex(self._buffer)
            self._records = Records(self._buffer, self._leases)
            self._policies = Policies(self._buffer, stored_policies(self._buffer))
            self.registry = RocksRegistry(self._buffer, clock, lambda: self._group_commit.check(adds_tasks=False))
        except BaseException:
            self._database.close()
            raise
        self._group_commit = GroupCommit(
            self._database, self._buffer, self._high_water_mark, fsync=fsync, on_flush=peers.report_flushed
        )
        self._ready: defaultdict[QueueState, int] = defaultdict(int)
        self._moved: list[Task] = []
        self._is_released = False
        self._repairs = repair
        self.restored = 0
        """How many tasks were in no index when the shard was opened, and were put back."""

    @property
    def newest_ms(self) -> int:
        """The time of the newest event when the shard was opened; 0 if it had none."""
        return self._events.newest_ms

    async def queues(self) -> list[QueueKey]:
        return self._queues.keys

    async def commit(self, changes: Sequence[Change]) -> list[Task | None]:
        commits = self._group_commit
        commits.check(adds_tasks=commits.is_full and any(change.before is None for change in changes))
        try:
            owners = self._key_owners(changes)
            tasks = [
                self._enqueue(change, owners) if change.before is None else self._apply(change, change.before, owners)
                for change in changes
            ]
            self._records.write_if_large()
            return tasks
        except Exception as fault:  # half of a change may be in the write buffer: it must never be written
            self._group_commit.fail(fault)
            raise
        finally:
            self._report()

    async def take(self, request: ClaimRequest) -> list[Delivery]:
        self._group_commit.check(adds_tasks=False)
        if request.request_id is not None and not request.is_part and (found := self._repeated(request)):
            return found
        try:
            for _ in range(_SELECTIONS_MAX):
                selected = select(self._buffer, self._queues, request)
                deliveries = self._lease(request, selected) if selected else []
                self._records.write_if_large()
                if deliveries or not selected:  # else none of their bodies can be read
                    return deliveries
            return []
        except Exception as fault:  # as in commit
            self._group_commit.fail(fault)
            raise

    async def get_tasks(self, tenant: str, ids: Sequence[str], *, from_memory: bool = False) -> list[Task | None]:
        if from_memory:
            return []
        self._group_commit.check(adds_tasks=False)
        held, read = self._leases.held.get, self._records.task
        return [task if (task := held(each)) and task.tenant == tenant else read(tenant, each) for each in ids]

    async def get_records(self, tenant: str, ids: Sequence[str], *, results: bool = True) -> list[Record | None]:
        self._group_commit.check(adds_tasks=False)
        return [self._records.record(tenant, task_id, results=results) for task_id in ids]

    async def due(self, index: Index, now_ms: int, limit: int, *, scope: Scope = ALL) -> list[Task]:
        self._group_commit.check(adds_tasks=False)
        if index is _DELAYED:
            return self._delayed.due.in_scope(scope, self._queues.peek, now_ms, limit)
        if index is _IN_PROGRESS:
            if scope.tenant is None:
                self._leases.save_extended()
            return self._leases.due.in_scope(scope, self._queues.peek, now_ms, limit)
        if index is _NONE:
            return self._retention.due(now_ms, limit)
        raise ValueError(f"tasks in {index} wait for no time")

    async def find(
        self, tenant: str, wanted: Filter, *, cursor: str | None, limit: int, bytes_max: int = BATCH_BYTES_MAX
    ) -> Page:
        self._group_commit.check(adds_tasks=False)
        listing = Listing(self._buffer, self._retention, self._records.task)
        return listing.find(tenant, wanted, cursor=cursor, limit=limit, bytes_max=bytes_max)

    async def counts(
        self, tenant: str | None, command: str | None = None, *, ages: bool = False
    ) -> dict[QueueKey, QueueCounts]:
        self._group_commit.check(adds_tasks=False)
        return self._queues.counts(tenant, command, ages=ages)

    async def events(self, shard: int, start: int, limit: int) -> Events:
        self._group_commit.check(adds_tasks=False)
        if shard:
            raise InvalidRequest(f"there is no shard {shard}; there is only shard 0")
        begin, records = self._events.read(start, limit)
        return Events(records, begin, self._events.first, self._buffer.next_version, self._events.verify)

    async def trim(self, *, before_ms: int, keep_max: int, shard: int | None = None) -> int:  # noqa: ARG002
        self._group_commit.check(adds_tasks=False)
        return self._events.trim(before_ms=before_ms, keep_max=keep_max)

    def policies(self) -> dict[QueueKey, QueuePolicy]:
        return self._policies.by_queue

    async def set_policy(self, queue: QueueKey, policy: QueuePolicy | None, *, replacing: QueuePolicy | None) -> bool:
        self._group_commit.check(adds_tasks=False)
        if self._policies.by_queue.get(queue) != replacing:
            return False
        self._policies.set(queue, policy)
        self.peers.report_policy(queue)
        return True

    async def tenant_usage(
        self, tenant: str, *, commands: Sequence[str] = (), keys: Sequence[str] = ()
    ) -> StorageUsage:
        self._group_commit.check(adds_tasks=False)
        policies = self._policies.of_tenant.get(tenant, 0)
        return self._queues.usage(tenant, policies=policies, commands=commands, idempotency_keys=keys)

    async def queues_of(self, tenant: str) -> Set[QueueKey]:
        state = self._queues.tenant(tenant)
        return state.queues if state is not None else frozenset()

    async def flush(self, ids: Sequence[str] | None = None, *, since: Primaries | None = None) -> None:  # noqa: ARG002
        await self._group_commit.flush()

    async def checkpoint(self, target: Path) -> None:
        self._group_commit.check(adds_tasks=False)
        self._group_commit.check_space()  # memory is flushed first
        self._buffer.write()
        target.mkdir(mode=0o700, parents=True)
        await asyncio.to_thread(self._database.checkpoint, target / "rocksdb")

    async def close(self, because: StoreError | None = None) -> None:
        if self._is_released:
            return
        try:
            await self._group_commit.close(because)
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

    async def in_progress(self, queue: QueueKey) -> int:
        return known.in_progress if (known := self._queues.peek(queue)) else 0

    async def priorities(self, request: ClaimRequest) -> set[int]:
        return priorities(self._queues, request)

    async def repeated(self, request: ClaimRequest) -> list[Delivery]:
        self._group_commit.check(adds_tasks=False)
        return self._repeated(request)

    def _key_owners(self, changes: Sequence[Change]) -> dict[bytes, bytes | None]:
        """Returns the task id by idempotency key, where used: one read for all costs half of one for each."""
        wanted = [
            keys.idempotency(change.after.tenant, change.body.idempotency_key)
            for change in changes
            if change.body is not None and change.body.idempotency_key is not None
        ]
        return dict(zip(wanted, self._buffer.get_many(wanted), strict=True)) if wanted else {}

    def _apply(self, change: Change, before: Task, owners: dict[bytes, bytes | None]) -> Task | None:
        after, move = change.after, change.move
        current = self._leases.held.get(before.id) or self._records.task(before.tenant, before.id)
        if current is None and move is _PROMOTE and self._records.is_damaged(before):
            current = before  # by its entry in the index; the promoted task replaces the record
        if current is None or current.version != before.version:
            if move is _PROMOTE:
                self._delayed.set_aside(self._queues.get(before.tenant, before.command), before)
            return None
        if current.lease_until_ms != before.lease_until_ms and move in (Move.ABANDON, Move.EXPIRE, _HEARTBEAT):
            return None
        if move is _HEARTBEAT:
            self._leases.extend(after)
            return after
        data = self._buffer.event(after)
        self._moved.append(after)
        queue = self._queues.get(after.tenant, after.command)
        self._remove_from_index(queue, before)
        if move is _PURGE:
            self._records.delete(after)
            tenant = queue.tenant
            tenant.payload_bytes = max(0, tenant.payload_bytes - after.payload_bytes)  # older versions did not count
            return after
        if move is _CANCEL and lifecycle.position(before) is _PENDING:
            self.peers.report_withdrawn(after)
        self._records.put_current(after, data, change.result)
        self._add_to_index(queue, after, data)
        if change.delivery is not None:
            self._enqueue(change.delivery, owners)
        return after

    def _enqueue(self, change: Change, owners: dict[bytes, bytes | None]) -> Task | None:
        task, body = change.after, change.body
        assert body is not None  # noqa: S101 - the lifecycle gives every new task a body
        if body.idempotency_key is not None:
            key = keys.idempotency(task.tenant, body.idempotency_key)
            owner = owners[key]
            existing = self._records.task(task.tenant, owner.decode(errors="replace")) if owner is not None else None
            if existing is not None:
                return existing
            owners[key] = task.id.encode()  # for the same key later in this batch
            self._buffer.put(key, task.id.encode())
        data = self._buffer.event(task)
        self._moved.append(task)
        self._records.put_body(task, data, body)
        queue = self._queues.get(task.tenant, task.command)
        queue.tenant.payload_bytes += task.payload_bytes
        self._add_to_index(queue, task, data, body=body)
        return task

    def _remove_from_index(self, queue: QueueState, task: Task) -> None:
        place = lifecycle.position(task)
        if place is _IN_PROGRESS:
            queue.in_progress -= 1
            queue.tenant.tasks -= 1
            self._leases.remove(task.id)
        elif place is _PENDING:
            window = queue.window(task.priority)
            self._buffer.delete(window.prefix + keys.number(task.version))
            window.remove(task.version)
            queue.tenant.tasks -= 1
        elif place is _DELAYED:
            self._delayed.remove(queue, task)
            queue.tenant.tasks -= 1
        elif place is _DEAD:
            queue.dead -= 1
            self._buffer.delete(keys.dead_prefix(queue.key) + keys.number(task.version))

    def _add_to_index(self, queue: QueueState, task: Task, data: bytes, *, body: Body | None = None) -> None:
        place = lifecycle.position(task)
        if place is _PENDING:
            window = queue.window(task.priority)
            self._buffer.put(window.prefix + keys.number(task.version), data)
            window.append(task, body)
            queue.tenant.tasks += 1
            self._ready[queue] += 1
        elif place is _DELAYED:
            self._delayed.add(queue, task, data)
            queue.tenant.tasks += 1
        else:
            if place is _DEAD:
                queue.dead += 1
                self._buffer.put(keys.dead_prefix(queue.key) + keys.number(task.version), task.id.encode())
            self._retention.add(task)

    def _report(self) -> None:
        if self._ready:
            ready, self._ready = self._ready, defaultdict(int)
            for queue, tasks in ready.items():
                self.peers.report_ready(queue.key, tasks)
        if self._moved:
            moved, self._moved = self._moved, []
            self.peers.report_moved(moved)

    def _lease(self, request: ClaimRequest, selected: list[Selected]) -> list[Delivery]:
        now_ms, buffer = self.now_ms(), self._buffer
        tasks: list[Task] = []
        queues: list[QueueState] = []
        data: list[bytes] = []
        bodies: list[Body | None] = []
        queue: QueueState | None = None
        lease_ms, name = 0, request.worker_name
        for window, (before, body) in selected:
            if queue is not window.queue:
                queue = window.queue
                lease_ms = request.lease_ms or request.policy_of(queue.key).lease_ms
                self._queues.changed(queue)
            after = lifecycle.claim(before, request.worker, now_ms, lease_ms=lease_ms, worker_name=name).after
            data.append(buffer.event(after))
            tasks.append(after)
            queues.append(queue)
            bodies.append(body)
            buffer.delete(window.prefix + keys.number(before.version))
            queue.in_progress += 1
        self._leases.add(tasks, queues, data, request_id=request.request_id)
        self.peers.report_moved(tasks)
        return self._with_bodies(tasks, bodies)

    def _repeated(self, request: ClaimRequest) -> list[Delivery]:
        tasks = self._leases.repeated((request.tenant, request.worker, request.request_id or ""))
        bodies = self._records.bodies(tasks) if tasks else []
        return [Delivery(task, body, True) for task, body in zip(tasks, bodies, strict=True) if body is not None]

    def _with_bodies(self, tasks: list[Task], bodies: list[Body | None]) -> list[Delivery]:
        """Adds the bodies that are not in memory. A task whose body cannot be read is left to the end of its lease."""
        if missing := [i for i, body in enumerate(bodies) if body is None]:
            for i, body in zip(missing, self._records.bodies([tasks[i] for i in missing]), strict=True):
                bodies[i] = body
        return [Delivery(task, body) for task, body in zip(tasks, bodies, strict=True) if body is not None]

    def restore_leases(self, grace_ms: int) -> None:
        """Restores the tasks in progress, each with `grace_ms` of lease or more, so that healthy workers keep them."""
        now_ms = self.now_ms()
        restored = restore_leases(self._buffer, self._records, self._queues, self._leases, least_ms=now_ms + grace_ms)
        if self._repairs or not restored:
            lost = LostTasks(self._buffer, self._records, self._queues, self._leases, self._delayed, self._retention)
            self.restored = lost.restore(now_ms, grace_ms)
        if self._repairs:
            self._buffer.forget_earlier_reports()
