"""The queue inside your process, awaited on the event loop that opened it."""

import asyncio
import os
import random
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from codeq.domain.backoff import Backoff
from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.ids import IdMint
from codeq.domain.limits import RESTART_GRACE_MS
from codeq.domain.queue import Index, QueueCounts, QueueKey, QueuePolicy
from codeq.domain.requests import Claim, Filter, NewTask, Outcome, Page, Swept
from codeq.domain.task import Holder, Status, Task
from codeq.store.interface import Clock, Store
from codeq.store.opening import back_up, open_rocksdb
from codeq.usecases import claim as claiming
from codeq.usecases import enqueue as enqueuing
from codeq.usecases import giveback, inspect, operate, submit, sweep
from codeq.usecases.core import Core
from codeq.usecases.heartbeat import heartbeat
from codeq.usecases.lobby import Lobby

Seconds = float | timedelta

EVENTS_KEEP_MS = 7 * 86_400_000
EVENTS_KEEP_MAX = 100_000_000


_COMPLETED = Status.COMPLETED


class Job:
    """A task that was claimed: what to do, and the lease under which to do it."""

    __slots__ = ("_payload", "holder", "task")

    def __init__(self, task: Task, payload: bytes) -> None:
        self.task = task
        self.holder = Holder(task.worker or "", task.lease_token)
        self._payload = payload

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def command(self) -> str:
        return self.task.command

    @property
    def attempt(self) -> int:
        """1 for the first try."""
        return self.task.attempts + 1

    @property
    def payload(self) -> Any:
        """What the producer sent, decoded from JSON at each call."""
        return msgspec.json.decode(self._payload)

    def __repr__(self) -> str:
        return f"Job({self.command} {self.id} attempt={self.attempt} token={self.task.lease_token})"


class Kept(msgspec.Struct, frozen=True):
    """A task as it stands, with what its producer sent and its worker left behind."""

    task: Task
    payload: Any
    result: Any


class AsyncQueue:
    """The queue of one tenant, on the event loop that opened it. Times are seconds, or `timedelta`."""

    def __init__(self, core: Core, tenant: str, sweeper: "asyncio.Task[None] | None") -> None:
        self.core = core
        self.tenant = tenant
        self._sweeper = sweeper

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def for_tenant(self, tenant: str) -> "AsyncQueue":
        """The same store seen as another tenant. Closing is left to the one that was opened."""
        return AsyncQueue(self.core, tenant, None)

    async def enqueue(
        self,
        command: str,
        payload: Any = None,
        *,
        priority: int = 0,
        delay: Seconds = 0,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
        idempotency_key: str | None = None,
        webhook: str | None = None,
        backoff: Backoff | None = None,
    ) -> Task:
        """Put one task into the queue. It is on disk when this returns."""
        order = NewTask(
            command=command,
            payload=encode_json(payload),
            priority=priority,
            delay_ms=_ms(delay),
            run_at_ms=_unix_ms(run_at) if run_at else None,
            max_attempts=max_attempts,
            idempotency_key=idempotency_key,
            webhook=webhook,
            backoff=backoff,
        )
        [answer] = await enqueuing.enqueue(self.core, self.tenant, [order])
        if isinstance(answer, CodeqError):
            raise answer
        return answer.task

    async def enqueue_many(self, orders: Sequence[NewTask]) -> list[Task | CodeqError]:
        """Put up to 1000 tasks in at the price of one. Answers per order: the task, or why it was refused."""
        answers = await enqueuing.enqueue(self.core, self.tenant, orders)
        return [answer if isinstance(answer, CodeqError) else answer.task for answer in answers]

    async def claim(
        self,
        *commands: str,
        worker: str = "worker",
        limit: int = 1,
        lease: Seconds | None = None,
        wait: Seconds = 0,
    ) -> list[Job]:
        """Lease up to `limit` tasks of these commands (of all, if none are named). Waits up to `wait` for the first."""
        wanted = Claim(
            worker=worker,
            commands=commands or None,
            limit=limit,
            lease_ms=None if lease is None else _ms(lease),
            wait_ms=_ms(wait),
        )
        deliveries = await claiming.claim(self.core, self.tenant, wanted)
        return [Job(delivery.task, delivery.body.payload) for delivery in deliveries]

    async def heartbeat(self, job: Job, extend: Seconds | None = None) -> Task:
        """Keep the job a while longer. Raises NotOwner or Cancelled when it is no longer ours to do."""
        extend_ms = None if extend is None else _ms(extend)
        return await heartbeat(self.core, self.tenant, job.id, job.holder, extend_ms=extend_ms)

    async def complete(self, job: Job, result: Any = None) -> Task:
        """End the job with success."""
        return await self._submit(job, Status.COMPLETED, result=encode_json(result))

    async def fail(self, job: Job, error: str, result: Any = None) -> Task:
        """End the job for good, without a retry."""
        return await self._submit(job, Status.FAILED, error=error, result=encode_json(result))

    async def complete_many(self, jobs: Sequence[Job], results: Sequence[Any] | None = None) -> list[Task | CodeqError]:
        """End up to 1000 jobs at the price of one. Answers per job: the ended task, or why it was refused."""
        given = [None] * len(jobs) if results is None else results
        outcomes = [
            Outcome(task_id=job.id, holder=job.holder, status=_COMPLETED, result=encode_json(result))
            for job, result in zip(jobs, given, strict=True)
        ]
        answers = await submit.submit(self.core, self.tenant, outcomes)
        return [answer if isinstance(answer, CodeqError) else answer.task for answer in answers]

    async def nack(self, job: Job, reason: str = "", *, delay: Seconds | None = None) -> Task:
        """Report a failed try. The task comes back after its backoff, or after `delay`; at its limit it is dead."""
        delay_ms = None if delay is None else _ms(delay)
        return await giveback.nack(self.core, self.tenant, job.id, job.holder, delay_ms=delay_ms, reason=reason)

    async def abandon(self, job: Job) -> Task:
        """Hand the job back unharmed, for another worker to take at once."""
        return await giveback.abandon(self.core, self.tenant, job.id, job.holder)

    async def cancel(self, task_id: str) -> Task:
        return _only(await operate.cancel(self.core, self.tenant, [task_id]))

    async def replay(self, task_id: str) -> Task:
        """Put a dead task back into its queue."""
        return _only(await operate.replay(self.core, self.tenant, [task_id]))

    async def replay_dead(self, command: str | None = None, *, limit: int = 10_000, dry_run: bool = False) -> Swept:
        """Put all dead tasks of the command (of all commands) back into their queues."""
        wanted = Filter(command=command)
        return await operate.replay_matching(self.core, self.tenant, wanted, limit=limit, dry_run=dry_run)

    async def purge(self, task_id: str) -> Task:
        """Forget an ended task now."""
        return _only(await operate.purge(self.core, self.tenant, [task_id]))

    async def purge_dead(self, command: str | None = None, *, limit: int = 10_000, dry_run: bool = False) -> Swept:
        """Forget all dead tasks of the command (of all commands)."""
        wanted = Filter(command=command)
        return await operate.purge_matching(self.core, self.tenant, wanted, limit=limit, dry_run=dry_run)

    async def get(self, task_id: str, *, wait: Seconds = 0) -> Kept:
        """The task with its payload and result. With `wait`, not before it has ended or that time has passed."""
        record = await inspect.get(self.core, self.tenant, task_id, wait_ms=_ms(wait))
        result = msgspec.json.decode(record.result) if record.result is not None else None
        return Kept(record.task, msgspec.json.decode(record.body.payload), result)

    async def history(self, task_id: str) -> list[Task]:
        """The task after each of its moves, oldest first."""
        return await inspect.history(self.core, self.tenant, task_id)

    async def list(
        self,
        *,
        command: str | None = None,
        status: Status | None = None,
        dead: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """A page of tasks, newest first. It may come back short with a cursor: go on from there until there is none."""
        wanted = Filter(command=command, status=status, index=Index.DEAD if dead else None)
        return await inspect.find(self.core, self.tenant, wanted, cursor=cursor, limit=limit)

    async def queues(self) -> dict[str, QueueCounts]:
        """How many tasks of each command stand where."""
        return {key.command: counts for key, counts in (await inspect.counts(self.core, self.tenant)).items()}

    async def set_policy(self, command: str, policy: QueuePolicy | None) -> None:
        """Rules for one command: attempts, lease, backoff, retention, consumers, pause. None for the defaults."""
        await operate.set_policy(self.core, QueueKey(self.tenant, command), policy)

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """Write a consistent copy into a new directory, while the queue goes on working."""
        await back_up(self.core.store, Path(target))

    async def close(self) -> None:
        """Wait for what is under way to reach the disk, and let go of the directory."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self.core.store.close()

    async def _submit(self, job: Job, status: Status, *, result: bytes | None, error: str | None = None) -> Task:
        outcome = Outcome(task_id=job.id, holder=job.holder, status=status, result=result, error=error)
        [answer] = await submit.submit(self.core, self.tenant, [outcome])
        if isinstance(answer, CodeqError):
            raise answer
        return answer.task


async def open_async(
    path: str | os.PathLike[str],
    *,
    tenant: str = "default",
    shards: int | None = None,
    durability: str = "fsync",
    defaults: QueuePolicy | None = None,
    recover: bool = False,
    grace: Seconds = RESTART_GRACE_MS / 1000,
    clock: Clock | None = None,
    sweeping: bool = True,
) -> AsyncQueue:
    """Open the data directory on this event loop, making it if need be. Use it with `async with`.

    `durability="process"` acknowledges before the disk has confirmed: survives a killed process, not a power cut.
    `clock` and `sweeping=False` are for tests that move time themselves.
    """
    if durability not in ("fsync", "process"):
        raise InvalidRequest(f"durability is 'fsync' or 'process', not {durability!r}")
    lobby = Lobby()
    store = open_rocksdb(
        Path(path),
        clock=clock or _wall_clock_ms,
        shards=shards,
        fsync=durability == "fsync",
        recover=recover,
        grace_ms=_ms(grace),
        listener=lobby,
    )
    core = make_core(store, lobby, defaults or QueuePolicy())
    sweeper = None
    if sweeping:
        running = sweep.run(core, events_keep_ms=EVENTS_KEEP_MS, events_keep_max=EVENTS_KEEP_MAX)
        sweeper = asyncio.get_running_loop().create_task(running)
    return AsyncQueue(core, tenant, sweeper)


def make_core(store: Store, lobby: Lobby, defaults: QueuePolicy) -> Core:
    # Seeded by the system once. Asking it each time is a system call that gives up the interpreter lock, on every
    # enqueue; and no right hangs on an id that cannot be guessed, because every id is looked up within its tenant.
    dice = random.Random()
    return Core(store, lobby, defaults, IdMint(dice.randbytes), dice.random)


def encode_json(value: Any) -> bytes:
    if value is None:
        return b"null"
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as fault:
        raise InvalidRequest(f"cannot be written as JSON: {fault}") from fault


def new_tasks(command: str, payloads: Iterable[Any], **options: Any) -> list[NewTask]:
    """Orders for `enqueue_many`, one per payload. `options` are those of `NewTask`."""
    return [NewTask(command=command, payload=encode_json(payload), **options) for payload in payloads]


def _only(answers: Sequence[Task | CodeqError]) -> Task:
    [answer] = answers
    if isinstance(answer, CodeqError):
        raise answer
    return answer


def _ms(value: Seconds) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    try:
        return round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(f"a time is a number of seconds or a timedelta, not {value!r}") from None


def _unix_ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InvalidRequest("run_at needs a time zone, such as datetime.now(UTC)")
    return round(moment.timestamp() * 1000)


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
