"""One shard on Redis: its verbs, each one script or a few reads. Any number of processes may have it open."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from pathlib import Path

from codeq.domain import lifecycle
from codeq.domain.errors import InvalidRequest, StoreClosed, StoreError, StoreUnavailable
from codeq.domain.ids import is_task_id
from codeq.domain.limits import BATCH_BYTES_MAX, CLAIM_COMMANDS_MAX
from codeq.domain.queue import Index, QueueCounts, QueueKey, QueuePolicy
from codeq.domain.requests import Delivery, Filter, Page, Record
from codeq.domain.task import Body, Change, Move, Task
from codeq.domain.tenants import StorageUsage
from codeq.store import codec
from codeq.store.detached import DetachedTakes
from codeq.store.interface import ALL, ClaimRequest, Clock, Events, Primaries, Scope
from codeq.store.redis import bodies, claims, keys, listing, records
from codeq.store.redis.commits import CommitQueue
from codeq.store.redis.connection import PAUSES_S, LuaScript, RedisClient
from codeq.store.redis.counting import Counting
from codeq.store.redis.due import DueTasks
from codeq.store.redis.eventlog import EventStream
from codeq.store.redis.faults import OutOfMemory
from codeq.store.redis.filters import Filters
from codeq.store.redis.grace import RestartGrace
from codeq.store.redis.heads import QueueHeads
from codeq.store.redis.keys import Channels, ShardKeys, id_bytes
from codeq.store.redis.known import UNKNOWN, Filtered, KnownChanges
from codeq.store.redis.leased import LeasedTasks
from codeq.store.redis.merging import MergedCalls
from codeq.store.redis.peers import RedisPeers
from codeq.store.redis.plan import COMMIT, CommitPlanner, answered
from codeq.store.redis.registry import RedisRegistry
from codeq.store.redis.replicas import ReplicaWait

TAKE = LuaScript("withdrawn", "take")
POLICY = LuaScript("policy")

_PENDING = Index.PENDING
_CANCEL, _HEARTBEAT = Move.CANCEL, Move.HEARTBEAT
_position = lifecycle.position
_log = logging.getLogger("codeq")


class RedisShard:
    """Implements `store.sharded.Shard`."""

    shards = 1
    is_local = False

    def __init__(
        self,
        number: int,
        connection: RedisClient,
        peers: RedisPeers,
        *,
        prefix: str,
        clock: Clock,
        replicas: ReplicaWait,
        grace: RestartGrace,
        filters: Filters,
        log_id: str,
    ) -> None:
        self.peers = peers
        self.log_id = log_id
        self.now_ms = clock.__call__
        self._number = number
        self._connection = connection
        self._keys = ShardKeys(prefix, number)
        self._channels = Channels(prefix)
        self._replicas = replicas
        self._heads = QueueHeads()
        self._queues = claims.ClaimQueues(connection, self._keys)
        self._planner = CommitPlanner(self._keys, number)
        self._known = KnownChanges(connection, self._keys, filters)
        self._looks = CommitQueue(self._known.look)
        self._commits = CommitQueue(self._send)
        self._events = EventStream(connection, self._keys, self._unreadable)
        self._counting = Counting(connection, self._keys)
        self._due = DueTasks(connection, self._keys, self._heads, self._set_aside, grace=grace)
        self._takes = DetachedTakes()
        self.registry = RedisRegistry(connection, self._keys, clock, self._check)
        self._claims = MergedCalls(self._run_take, claims.ClaimGroup, in_order=False)
        self._leased = LeasedTasks()
        self._closed: StoreError | None = None

    # -- changes -------------------------------------------------------------------------------------------------

    async def commit(self, changes: Sequence[Change]) -> list[Task | None]:
        self._check()
        if not changes:
            return []
        filtered = self._known.filtered(changes)
        if filtered:
            raw = await self._answers(changes, filtered)
            self._known.learn(filtered, raw)
        else:
            raw = await self._commits.commit(changes)
        tasks = answered(changes, raw)
        self._leased.moved(changes, tasks)
        owners = {place: keys.task_id(answer) for place, answer in enumerate(raw) if type(answer) is bytes}
        if owners:
            for place, task in zip(owners, await self._tasks(list(owners.values())), strict=True):
                # A task that was purged in between no longer has the key.
                tasks[place] = task if task is not None else (await self.commit([changes[place]]))[0]
        self._report(changes, tasks)
        return tasks

    async def _answers(self, changes: Sequence[Change], filtered: Filtered) -> Sequence[int | bytes]:
        """Returns the script's answers, without running it for changes that are known to change nothing."""
        suspects = self._known.suspects(filtered)
        if not suspects:
            return await self._commits.commit(changes)
        looked = zip(suspects, await self._looks.commit([changes[place] for place in suspects]), strict=True)
        known = {place: answer for place, answer in looked if answer != UNKNOWN}
        others = [change for place, change in enumerate(changes) if place not in known]
        sent = iter(await self._commits.commit(others) if others else ())
        return [known[place] if place in known else next(sent) for place in range(len(changes))]

    async def _send(self, changes: Sequence[Change]) -> list[int | bytes]:
        for attempt, pause_s in enumerate(PAUSES_S):
            try:
                return await self._run(changes, is_repeated=attempt > 0)
            except OutOfMemory:
                raise  # nothing was changed
            except StoreUnavailable:
                await asyncio.sleep(pause_s)  # a change that was applied answers the same again
        return await self._run(changes, is_repeated=True)

    async def _run(self, changes: Sequence[Change], *, is_repeated: bool) -> list[int | bytes]:
        plan = self._planner.plan(changes, is_repeated=is_repeated)
        before = bodies.write_beside(self._keys, plan.bodies, self.now_ms())
        answers: list[int | bytes] = await self._connection.run(COMMIT, plan.keys, plan.arguments, before=before)
        return answers

    def _report(self, changes: Sequence[Change], tasks: Sequence[Task | None]) -> None:
        """Tells what was applied: the changes whose task is the one that they made."""
        moved: list[Task] = []
        withdrawn: list[Task] = []
        for change, task in zip(changes, tasks, strict=True):
            if task is None or task is not change.after or change.move is _HEARTBEAT:
                continue
            moved.append(task)
            if change.delivery is not None:
                moved.append(change.delivery.after)
            if change.move is _CANCEL and change.before is not None and _position(change.before) is _PENDING:
                withdrawn.append(task)
        self.peers.report(self._heads.moved(moved), moved)
        for task in withdrawn:
            self.peers.report_withdrawn(task)

    # -- claims --------------------------------------------------------------------------------------------------

    async def take(self, request: ClaimRequest) -> list[Delivery]:
        self._check()
        return await self._takes.run(self._take(request), request)

    async def _take(self, request: ClaimRequest) -> list[Delivery]:
        queues = await self._queues.open(request)
        if not queues:
            return [] if request.request_id is None or request.is_part else await self.repeated(request)
        taken = claims.NOTHING
        for start in range(0, len(queues), CLAIM_COMMANDS_MAX):  # those before may all wait for a slot
            claim = claims.shard_claim(request, queues[start : start + CLAIM_COMMANDS_MAX])
            taken = await self._send_take(claim)
            while taken.has_run_out and not taken.contents:  # other clients of Redis have had their turn meanwhile
                taken = await self._send_take(claim)
            if taken.contents:
                break
        tasks, bodies = records.readable(taken.contents[::2], taken.contents[1::2], self._unreadable)
        if taken.is_repeat:
            return await self._with_bodies(tasks, bodies, is_repeat=True)
        self._leased.add(tasks)
        until_ms = {task.command: task.lease_until_ms for task in reversed(tasks)}
        served = {QueueKey(request.tenant, command): until_ms[command] for command in reversed(until_ms)}
        self._queues.rotation.served(served)
        for queue, queue_until_ms in served.items():
            self._heads.leased(queue, queue_until_ms)
        self.peers.report({}, tasks)
        if len(served) > 1:
            order = claims.in_turn(tasks)
            tasks, bodies = [tasks[place] for place in order], [bodies[place] for place in order]
        return await self._with_bodies(tasks, bodies)

    async def _send_take(self, claim: claims.ShardClaim) -> claims.TakeResult:
        """Takes tasks. It is repeated only where the request id makes it answer the same tasks again."""
        pauses_s = PAUSES_S if claim.request.request_id is not None and not claim.request.is_part else ()
        for pause_s in pauses_s:
            try:
                return await self._claims.call(claim)
            except StoreUnavailable:
                await asyncio.sleep(pause_s)
        return await self._claims.call(claim)

    async def _run_take(self, group: Sequence[claims.ShardClaim]) -> list[claims.TakeResult]:
        queues = self._queues.rotation.order(group[0].queues)
        with_times = not all(self._heads.is_fresh(queue) for queue in queues)
        names, arguments = claims.take_arguments(
            group, queues, now_ms=self.now_ms(), keys=self._keys, channels=self._channels, shard=self._number,
            with_times=with_times,
        )  # fmt: skip
        sizes, contents, known, has_run_out = await self._connection.run(TAKE, names, arguments)
        taken = claims.divided(sizes, contents, has_run_out=bool(has_run_out))
        for queue, told in zip(queues, known, strict=True):
            if not told[0]:
                self._report_emptied(queue, [each.contents[-2] for each in taken if each.contents])  # the last of each
            if with_times:
                self._heads.set(queue, told)
            else:
                self._heads.set_priorities(queue, told[0])
        return taken

    def _report_emptied(self, queue: QueueKey, taken: Sequence[bytes | None]) -> None:
        if taken:
            self.peers.report_emptied(queue, max(records.version_of(record or b"") for record in taken))

    async def repeated(self, request: ClaimRequest) -> list[Delivery]:
        self._check()
        key = self._keys.claim(request.tenant, request.worker, request.request_id or "")
        entries = await self._connection.call("GET", key)
        claimed = claims.entries(entries or b"")
        if not claimed:
            return []
        stored = await self._connection.call("HMGET", self._keys.records, *claimed)
        held = [data for data, version in zip(stored, claimed.values(), strict=True) if (data or b"").endswith(version)]
        tasks, bodies = records.readable(held, [None] * len(held), self._unreadable)
        return await self._with_bodies(tasks, bodies, is_repeat=True)

    async def _with_bodies(
        self, tasks: list[Task], raw: list[bytes | None], *, is_repeat: bool = False
    ) -> list[Delivery]:
        """Adds the bodies. A task whose body cannot be read is left to the end of its lease."""
        missing = [place for place, body in enumerate(raw) if body is None]
        if missing:
            ids = [id_bytes(tasks[place].id) for place in missing]
            for place, body in zip(missing, await self._connection.call("HMGET", self._keys.bodies, *ids), strict=True):
                raw[place] = body
        bodies = [self._body(task, data) for task, data in zip(tasks, raw, strict=True)]
        return [Delivery(task, body, is_repeat) for task, body in zip(tasks, bodies, strict=True) if body is not None]

    def _body(self, task: Task, data: bytes | None) -> Body | None:
        try:
            return codec.decode_body(data or b"")
        except codec.UNREADABLE as fault:
            self._unreadable(f"{self._keys.bodies} {task.id}", str(fault))
            return None

    async def priorities(self, request: ClaimRequest) -> Set[int]:
        if request.commands is None:
            ready = await self._queues.ready(request)
            return {priority for found in ready.values() for priority in found}
        found: set[int] = set()
        for command in request.commands:
            queue = QueueKey(request.tenant, command)
            head = self._heads.get(queue) or await self._due.look(queue)
            found |= head.priorities
        return found

    async def in_progress(self, queue: QueueKey) -> int:
        self._check()
        return int(await self._connection.call("ZCARD", self._keys.queue(queue).leased))

    # -- reads ---------------------------------------------------------------------------------------------------

    async def get_tasks(self, tenant: str, ids: Sequence[str], *, from_memory: bool = False) -> list[Task | None]:
        self._check()
        tasks = self._leased.get(ids) if from_memory else await self._tasks(ids)
        return [task if task is not None and task.tenant == tenant else None for task in tasks]

    async def _tasks(self, ids: Sequence[str]) -> list[Task | None]:
        known = [task_id for task_id in ids if is_task_id(task_id)]
        raw = await self._connection.call("HMGET", self._keys.records, *map(id_bytes, known)) if known else []
        tasks = {task_id: self._task(task_id, data) for task_id, data in zip(known, raw, strict=True)}
        return [tasks.get(task_id) for task_id in ids]

    def _task(self, task_id: str, data: bytes | None) -> Task | None:
        if data is None:
            return None
        try:
            return records.decode(data)
        except codec.UNREADABLE as fault:
            self._unreadable(f"{self._keys.records} {task_id}", str(fault))
            return None

    async def get_records(self, tenant: str, ids: Sequence[str], *, results: bool = True) -> list[Record | None]:
        self._check()
        known = [task_id for task_id in ids if is_task_id(task_id)]
        if not known:
            return [None] * len(ids)
        raw_ids = list(map(id_bytes, known))
        wanted = [self._keys.records, self._keys.bodies, *([self._keys.results] if results else [])]
        parts = await self._connection.call_all([("HMGET", key, *raw_ids) for key in wanted])
        found: dict[str, Record] = {}
        for place, task_id in enumerate(known):
            task = self._task(task_id, parts[0][place])
            body = self._body(task, parts[1][place]) if task is not None and task.tenant == tenant else None
            if task is not None and body is not None:
                found[task_id] = Record(task, body, records.result_of(task, parts[2][place]) if results else None)
        return [found.get(task_id) for task_id in ids]

    async def due(self, index: Index, now_ms: int, limit: int, *, scope: Scope = ALL) -> list[Task]:
        self._check()
        return await self._due.find(index, now_ms, limit, scope)

    async def find(
        self, tenant: str, wanted: Filter, *, cursor: str | None, limit: int, bytes_max: int = BATCH_BYTES_MAX
    ) -> Page:
        self._check()
        found = await listing.candidates(self._connection, self._keys, tenant=tenant, wanted=wanted, cursor=cursor)
        tasks = await self.get_tasks(tenant, [task_id for _, task_id in found])
        return listing.page(found, tasks, wanted, limit=limit, bytes_max=bytes_max)

    async def counts(
        self, tenant: str | None, command: str | None = None, *, ages: bool = False
    ) -> dict[QueueKey, QueueCounts]:
        self._check()
        return await self._counting.counts(tenant, command, ages=ages)

    async def queues(self) -> list[QueueKey]:
        self._check()
        return await self._counting.queues()

    def all_counts(self, command: str | None = None) -> AsyncIterator[Mapping[QueueKey, QueueCounts]]:
        self._check()
        return self._counting.all_counts(command)

    async def queues_of(self, tenant: str) -> Set[QueueKey]:
        self._check()
        return await self._counting.queues_of(tenant)

    async def tenant_usage(
        self, tenant: str, *, commands: Sequence[str] = (), keys: Sequence[str] = ()
    ) -> StorageUsage:
        self._check()
        policies = sum(queue.tenant == tenant for queue in self.policies())
        return await self._counting.usage(tenant, policies=policies, commands=commands, idempotency_keys=keys)

    async def events(self, shard: int, start: int, limit: int) -> Events:
        self._check()
        if shard:
            raise InvalidRequest(f"there is no shard {shard}; there is only shard 0")
        return await self._events.read(start, limit)

    async def trim(self, *, before_ms: int, keep_max: int, shard: int | None = None) -> int:  # noqa: ARG002
        self._check()
        await bodies.delete_without_task(self._connection, self._keys, self.now_ms())
        return await self._events.trim(before_ms=before_ms, keep_max=keep_max)

    # -- policies, and the end -----------------------------------------------------------------------------------

    def policies(self) -> dict[QueueKey, QueuePolicy]:
        return self.peers.policies

    async def set_policy(self, queue: QueueKey, policy: QueuePolicy | None, *, replacing: QueuePolicy | None) -> bool:
        self._check()
        return await self.peers.set_policy(self._keys.policies, queue, policy, replacing=replacing)

    @property
    def primaries(self) -> Primaries:
        return (self._replicas.primary,)

    async def flush(self, ids: Sequence[str] | None = None, *, since: Primaries | None = None) -> None:  # noqa: ARG002
        self._check()
        if self._replicas.is_needed:
            await self._replicas.wait(since[0] if since else None)

    async def checkpoint(self, target: Path) -> None:  # noqa: ARG002
        raise InvalidRequest("this store is on Redis: back it up with Redis's own means (RDB or AOF files, a replica)")

    async def close(self, because: StoreError | None = None) -> None:
        if self._closed is None:
            await self._takes.end()
            self._closed = because or StoreClosed("the store was closed")
            await self._claims.drain()
            await self._looks.drain()
            await self._commits.drain()
            await self._counting.drain()
            await self.peers.close()

    def _check(self) -> None:
        if self._closed is not None:
            raise self._closed

    async def _set_aside(self, index: str, member: bytes, reason: str) -> None:
        """Removes an entry that cannot be read from its index, which would stop at it otherwise."""
        await self._connection.call("ZREM", index, member)
        await self._connection.call("HSET", self._keys.unreadable, index.encode() + b" " + member, reason)
        self._unreadable(f"{index} {member.hex()}", reason)

    def _unreadable(self, key: str, reason: str) -> None:
        _log.error(
            "a stored record cannot be read; all others are served", extra={"fields": {"key": key, "reason": reason}}
        )
        self.peers.report_unreadable(key.encode(), reason)
