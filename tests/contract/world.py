"""One open store with its clock and core, and the verbs of the use cases in a short form for tests."""

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.contract.engines import Engine, FakeClock

from codeq.domain import lifecycle
from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import CodeqError
from codeq.domain.ids import shard_of
from codeq.domain.limits import RESTART_GRACE_MS
from codeq.domain.queue import QueueCounts, QueueKey, QueuePolicy, is_system
from codeq.domain.requests import Claim, Filter, NewTask, Outcome, Record
from codeq.domain.task import Holder, Status, Task
from codeq.embedded import AsyncQueue
from codeq.store.interface import Store
from codeq.store.object_storage import DirectoryObjects
from codeq.usecases import abandon, cancel, enqueue, heartbeat, nack, queries, submit, sweep
from codeq.usecases import claim as claiming
from codeq.usecases.artifact_storage import ArtifactStorage
from codeq.usecases.core import Core, durable, make_core
from codeq.usecases.enqueue import Enqueued
from codeq.usecases.moves import move_each
from codeq.usecases.submit import Submitted
from codeq.usecases.waiters import Waiters

Answer = TypeVar("Answer")

TENANT = "acme"
BACKOFF_MS = 5_000
LEASE_MS = 30_000
KEEP_MS = 3_600_000
KEEP_DEAD_MS = 7_200_000
MAX_ATTEMPTS = 3

DEFAULTS = QueuePolicy(
    max_attempts=MAX_ATTEMPTS,
    lease_ms=LEASE_MS,
    backoff=Backoff(BackoffKind.FIXED, BACKOFF_MS),
    retention_ms=KEEP_MS,
    dead_retention_ms=KEEP_DEAD_MS,
)


@durable
async def replay_each(core: Core, tenant: str, ids: Sequence[str]) -> list[Task | CodeqError]:
    """Replays as `replay.replay` does, and returns the tasks."""
    now_ms = core.now_ms()
    return await move_each(core, tenant, ids, lambda _, task: lifecycle.replay(task, now_ms))


@durable
async def purge_each(core: Core, tenant: str, ids: Sequence[str]) -> list[Task | CodeqError]:
    """Deletes ended tasks, dead or not, whatever their retention."""
    now_ms = core.now_ms()
    return await move_each(core, tenant, ids, lambda _, task: lifecycle.purge(task, now_ms))


class World:
    """A store without background work: the test moves the clock and runs the sweeps."""

    core: Core
    store: Store

    def __init__(
        self, engine: Engine, path: Path, *, fsync: bool = False, defaults: QueuePolicy = DEFAULTS, clock: FakeClock
    ) -> None:
        self.engine = engine
        self.path = path
        self.fsync = fsync
        self.defaults = defaults
        self.clock = clock
        self.is_open = False

    def open(self, *, grace_ms: int = RESTART_GRACE_MS) -> "World":
        waiters = Waiters()
        self.store = self.engine.open(self.path, self.clock, waiters, fsync=self.fsync, grace_ms=grace_ms)
        artifacts = ArtifactStorage(DirectoryObjects(self.path.with_name(f"{self.path.name}-artifacts")))
        self.core = make_core(self.store, waiters, self.defaults, randomness=random.Random(), artifacts=artifacts)
        self.is_open = True
        return self

    async def close(self) -> None:
        if self.is_open:
            self.is_open = False
            await self.store.close()

    async def reopen(self, *, grace_ms: int = RESTART_GRACE_MS) -> None:
        await self.close()
        self.open(grace_ms=grace_ms)

    # -- producers -----------------------------------------------------------------------------------------------

    async def enqueue(self, command: str = "work", *, tenant: str = TENANT, **options: Any) -> Task:
        [answer] = await self.enqueue_all([NewTask(command=command, **options)], tenant=tenant)
        return accepted(answer).task

    async def enqueue_all(self, new_tasks: Sequence[NewTask], *, tenant: str = TENANT) -> list[Enqueued | CodeqError]:
        return await enqueue.enqueue(self.core, tenant, new_tasks)

    async def enqueue_many(
        self, number: int, command: str = "work", *, tenant: str = TENANT, **options: Any
    ) -> list[Task]:
        """Enqueues in batches of a thousand, the longest that is accepted."""
        tasks: list[Task] = []
        for start in range(0, number, 1000):
            new_tasks = [NewTask(command=command, **options)] * min(1000, number - start)
            tasks += [accepted(answer).task for answer in await self.enqueue_all(new_tasks, tenant=tenant)]
        return tasks

    # -- workers -------------------------------------------------------------------------------------------------

    async def claim(
        self,
        *commands: str,
        tenant: str = TENANT,
        worker: str = "worker",
        limit: int = 1,
        lease_ms: int | None = None,
        wait_ms: int = 0,
        request_id: str | None = None,
    ) -> list[Task]:
        wanted = Claim(
            worker=worker,
            commands=commands or None,
            limit=limit,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            request_id=request_id,
        )
        return [delivery.task for delivery in await claiming.claim(self.core, tenant, wanted)]

    async def claim_one(self, *commands: str, worker: str = "worker", lease_ms: int | None = None) -> Task:
        [task] = await self.claim(*commands, worker=worker, lease_ms=lease_ms)
        return task

    async def drain(self, *commands: str, limit: int = 1, tenant: str = TENANT) -> list[Task]:
        """Claims until there is nothing left to claim."""
        drained: list[Task] = []
        while taken := await self.claim(*commands, limit=limit, tenant=tenant):
            drained += taken
        return drained

    async def heartbeat(self, task: Task, extend_ms: int | None = None) -> Task:
        return await heartbeat.heartbeat(self.core, task.tenant, task.id, holder_of(task), extend_ms=extend_ms)

    async def complete(self, task: Task, result: bytes | None = None) -> Submitted:
        return await self._submit(task, Status.COMPLETED, result=result)

    async def fail(self, task: Task, error: str = "broken", result: bytes | None = None) -> Submitted:
        return await self._submit(task, Status.FAILED, error=error, result=result)

    async def _submit(
        self, task: Task, status: Status, *, result: bytes | None = None, error: str | None = None
    ) -> Submitted:
        outcome = Outcome(task_id=task.id, holder=holder_of(task), status=status, result=result, error=error)
        [answer] = await submit.submit(self.core, task.tenant, [outcome])
        return accepted(answer)

    async def nack(self, task: Task, reason: str = "", delay_ms: int | None = None) -> Task:
        return await nack.nack(self.core, task.tenant, task.id, holder_of(task), delay_ms=delay_ms, reason=reason)

    async def abandon(self, task: Task) -> Task:
        return await abandon.abandon(self.core, task.tenant, task.id, holder_of(task))

    # -- operators -----------------------------------------------------------------------------------------------

    async def cancel(self, task: Task) -> Task:
        [answer] = await cancel.cancel(self.core, task.tenant, [task.id])
        return accepted(answer)

    async def replay(self, task: Task) -> Task:
        [answer] = await replay_each(self.core, task.tenant, [task.id])
        return accepted(answer)

    async def purge(self, task: Task) -> Task:
        [answer] = await purge_each(self.core, task.tenant, [task.id])
        return accepted(answer)

    async def kill(self, task: Task) -> Task:
        """Nacks a task in progress until it is dead."""
        held = task
        while True:
            given_back = await self.nack(held, "killed", delay_ms=0)
            if given_back.status is Status.FAILED:
                return given_back
            while (held := await self.claim_one(task.command)).id != task.id:
                await self.abandon(held)

    async def dead(self, command: str = "work") -> Task:
        """Returns a task in the dead-letter queue."""
        await self.enqueue(command, max_attempts=1)
        return await self.nack(await self.claim_one(command), "killed")

    async def set_policy(self, command: str, policy: QueuePolicy | None, tenant: str = TENANT) -> None:
        await AsyncQueue(self.core, tenant, None).backend.set_policy(command, policy)

    # -- background work -----------------------------------------------------------------------------------------

    async def sweep(self) -> tuple[int, int, int]:
        """Returns how many were promoted, expired and purged."""
        promoted = await sweep.promote_due(self.core)
        expired = await sweep.expire_leases(self.core)
        purged = await sweep.purge_finished(self.core)
        await self.store.flush()
        return promoted, expired, purged

    # -- queries -------------------------------------------------------------------------------------------------

    async def get(self, task: Task, wait_ms: int = 0) -> Record:
        return await queries.get(self.core, task.tenant, task.id, wait_ms=wait_ms)

    async def load(self, task: Task) -> Task:
        [found] = await self.store.get_tasks(task.tenant, [task.id])
        assert found is not None, f"{task.id} is gone"
        return found

    async def is_gone(self, task: Task) -> bool:
        return await self.store.get_tasks(task.tenant, [task.id]) == [None]

    async def history(self, task: Task) -> list[Task]:
        return await queries.history(self.core, task.tenant, task.id)

    async def counts(self, command: str = "work", tenant: str = TENANT) -> tuple[int, int, int, int]:
        """Returns the counts: pending, delayed, in progress, dead."""
        counts = (await self.store.counts(tenant)).get(QueueKey(tenant, command), QueueCounts())
        return counts.pending, counts.delayed, counts.in_progress, counts.dead

    async def find_all(self, wanted: Filter | None = None, *, limit: int = 1000, tenant: str = TENANT) -> list[Task]:
        """Returns the tasks of all pages."""
        found: list[Task] = []
        cursor: str | None = None
        while True:
            page = await queries.find(self.core, tenant, wanted or Filter(), cursor=cursor, limit=limit)
            assert len(page.tasks) <= limit
            found += page.tasks
            cursor = page.cursor
            if cursor is None:
                return found

    async def events(self) -> dict[int, list[Task]]:
        """Returns every stored event, by shard."""
        await self.store.flush()
        return {shard: (await self.store.events(shard, 0, 50_000)).events for shard in range(self.store.shards)}


class Worlds:
    """Every world a test has opened, to be closed when it ends."""

    def __init__(self, engine: Engine, folder: Path, clock: FakeClock) -> None:
        self.engine = engine
        self.folder = folder
        self.clock = clock
        self._opened: list[World] = []

    def open(self, name: str = "data", *, fsync: bool = False, defaults: QueuePolicy = DEFAULTS) -> World:
        world = World(self.engine, self.folder / name, fsync=fsync, defaults=defaults, clock=self.clock).open()
        self._opened.append(world)
        return world

    async def close(self) -> None:
        for world in self._opened:
            await world.close()


def accepted(answer: Answer | CodeqError) -> Answer:
    if isinstance(answer, CodeqError):
        raise answer
    return answer


def holder_of(task: Task) -> Holder:
    return Holder(task.worker or "", task.lease_token, is_server=is_system(task.command))


def ids(tasks: Sequence[Task]) -> list[str]:
    return [task.id for task in tasks]


def by_shard(tasks: Sequence[Task]) -> dict[int, list[str]]:
    """Returns the ids in order, per shard: order is guaranteed inside a shard only."""
    shards: defaultdict[int, list[str]] = defaultdict(list)
    for task in tasks:
        shards[shard_of(task.id)].append(task.id)
    return dict(shards)
