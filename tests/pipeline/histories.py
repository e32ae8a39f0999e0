"""Event logs to test with, written by a real queue under a mixed load."""

import asyncio
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import codeq
from codeq.domain.artifacts import ArtifactInput
from codeq.domain.errors import CodeqError
from codeq.domain.queue import WEBHOOKS
from codeq.domain.requests import Claim, NewTask, Outcome
from codeq.domain.task import Holder, Status, Task
from codeq.domain.workers import WorkerInfo
from codeq.sdk.tasks import record_of
from codeq.testing import ClockForTests
from codeq.usecases import abandon, cancel, deliver, nack, submit, sweep
from codeq.usecases.claim import claim
from codeq.usecases.core import Core
from codeq.wire import events as wire

START_MS = 1_767_225_480_000  # two minutes before the end of a day, so that histories cross it
TENANTS, COMMANDS, SHARDS = ("acme", "globex"), ("mail", "resize", "charge"), 2
ERRORS = ("timeout after 30 s", "cannot open '/srv/in/4711.png'", "Timeout after 31 s", 'no such user: "ada"')

Row = dict[str, Any]


@dataclass(frozen=True)
class History:
    """Events as rows, and the store's own listing after the last of them."""

    events: list[Row]
    listing: list[Row]


def churn(seed: int, rounds: int) -> History:
    """Returns the log of a queue with two shards, after random moves by tenants, workers and operators."""
    return asyncio.run(_churn(seed, rounds))


async def _churn(seed: int, rounds: int) -> History:
    dice, clock = random.Random(seed), ClockForTests(START_MS)
    backoff = codeq.Backoff(codeq.BackoffKind.FIXED, 4000, 4000)
    defaults = codeq.QueuePolicy(
        max_attempts=3, max_deliveries=6, lease=20, backoff=backoff, retention=60, dead_retention=90,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="codeq-history-") as folder:
        async with await codeq.open_async(
            folder, shards=SHARDS, durability="process", clock=clock, sweeping=False, defaults=defaults
        ) as queue:
            few = codeq.QueuePolicy(max_attempts=2, max_consumers=4, max_deliveries=3, backoff=backoff, retention=60)
            for tenant in TENANTS:
                await queue.for_tenant(tenant).set_policy("charge", few)
            actors = [_Actor(queue.core, dice, tenant) for tenant in TENANTS]
            for _ in range(rounds):
                clock.now_ms += dice.choice((0, 1, 20, 700, 3000))
                await dice.choice(actors).act()
                if dice.random() < 0.4:
                    await _sweep(queue.core)
            logs = [(await queue.core.store.events(shard, 0, 10**6)).events for shard in range(SHARDS)]
            listing = [
                task
                for tenant in TENANTS
                for command in (None, WEBHOOKS)
                for task in await _all(queue.for_tenant(tenant), command)
            ]
    events = [row for shard, log in enumerate(logs) for row in rows(log, shard)]
    return History(events, [_listed(task) for task in listing])


async def _sweep(core: Core) -> None:
    await sweep.promote_due(core)
    await sweep.expire_leases(core)
    await sweep.purge_finished(core)
    for tenant in TENANTS:
        for delivery in await deliver.take(core, tenant, worker="server", limit=2, lease_ms=20_000):
            await deliver.delivered(core, delivery, status=204, ms=1)


async def _all(queue: codeq.AsyncQueue, command: str | None) -> list[Task]:
    found: list[Task] = []
    cursor = None
    while True:
        page = await queue.list(command=command, cursor=cursor, limit=1000)
        found += [record_of(task) for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            return found


class _Actor:
    def __init__(self, core: Core, dice: random.Random, tenant: str) -> None:
        self.core, self.dice, self.tenant = core, dice, tenant
        self.held: list[Task] = []
        self.known: list[str] = []

    async def act(self) -> None:
        roll = self.dice.random()
        if roll < 0.2:
            await self.enqueue()
        elif roll < 0.5:
            await self.claim()
        elif roll < 0.94:
            await self.end()
        elif roll < 0.97 and self.known:
            await cancel.cancel(self.core, self.tenant, [self.dice.choice(self.known)])
        else:
            await codeq.AsyncQueue(self.core, self.tenant, None).replay_dead(limit=2)

    async def enqueue(self) -> None:
        dice = self.dice
        queue = codeq.AsyncQueue(self.core, self.tenant, None)
        answers = await queue.enqueue_many([
            NewTask(
                command=dice.choice(COMMANDS), payload=b'"%s"' % (b"x" * dice.randrange(200)),
                priority=dice.choice((0, 0, 5, 9)), delay_ms=dice.choice((0, 0, 0, 2500, 30_000)),
                webhook="https://example.com/ended" if len(self.known) % 4 == 0 else None,
            )
            for _ in range(dice.randint(1, 5))
        ])  # fmt: skip
        self.known += [answer.id for answer in answers]

    async def claim(self) -> None:
        dice = self.dice
        commands = dice.choice((None, dice.sample(COMMANDS, dice.randint(1, 2))))
        number, limit = dice.randrange(3), dice.randint(1, 6)
        info = WorkerInfo(name=f"host:{number}") if number else None
        wanted = Claim(worker=f"{self.tenant}-{number}", commands=commands, limit=limit, info=info)
        self.held += [delivery.task for delivery in await claim(self.core, self.tenant, wanted)]

    async def end(self) -> None:
        dice, core, tenant = self.dice, self.core, self.tenant
        for task in [self.held.pop(dice.randrange(len(self.held))) for _ in range(min(3, len(self.held)))]:
            holder, roll, why = Holder(task.worker or "", task.lease_token), dice.random(), dice.choice(ERRORS)
            try:
                if roll < 0.3:
                    files = [ArtifactInput(name="log", content=b"x" * (task.version % 300))] * (task.version % 2)
                    outcome = Outcome(task_id=task.id, holder=holder, status=Status.COMPLETED, artifacts=files)
                    await submit.submit(core, tenant, [outcome])
                elif roll < 0.35:
                    outcome = Outcome(task_id=task.id, holder=holder, status=Status.FAILED, error=why)
                    await submit.submit(core, tenant, [outcome])
                elif roll < 0.75:
                    delay_ms = dice.choice((None, None, 0, 1500))
                    await nack.nack(core, tenant, task.id, holder, delay_ms=delay_ms, reason=why)
                elif roll < 0.9:
                    await abandon.abandon(core, tenant, task.id, holder)
            except CodeqError:
                pass  # its lease expired or it was cancelled; the jobs of all other rolls are left to expire


def rows(tasks: Sequence[Task], shard: int) -> list[Row]:
    """Returns the events as a reader of the log gets them."""
    return wire.arrow_batch(wire.arrow_fields(tasks), shard, wire.arrow_schema()).to_pylist()  # type: ignore[no-any-return]


def _listed(task: Task) -> Row:
    return {"tenant": task.tenant, "task_id": task.id, "status": task.status.value}


def cut(history: History, dice: random.Random, batches: int) -> list[list[Row]]:
    """Cuts the events into batches that continue each other in every shard, and shuffles each batch."""
    cuts: list[list[Row]] = [[] for _ in range(batches)]
    shards = {row["shard"] for row in history.events}
    for shard in shards:
        log = [row for row in history.events if row["shard"] == shard]
        ends = sorted(dice.randrange(len(log)) for _ in range(batches - 1))
        for i, (start, end) in enumerate(zip([0, *ends], [*ends, len(log)], strict=True)):
            cuts[i] += log[start:end]
    for batch in cuts:
        dice.shuffle(batch)
    return cuts


def frame(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """Returns events as Spark reads them from the server."""
    return spark.createDataFrame(arrow(rows))


def arrow(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=wire.arrow_schema())


def empty(spark: SparkSession, schema: Any) -> DataFrame:
    return spark.createDataFrame([], schema)
