"""Produces the tasks of the demo: a steady stream of every kind, keys sent twice on purpose, batches, and a rush."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from codeq.demo.acknowledged import FinalState, PlannedTask
from codeq.demo.environment import DemoEnvironment
from codeq.domain.errors import CodeqError
from codeq.domain.requests import NewTask
from codeq.sdk.json_encoding import encode_json
from codeq.wire.errors import Unreachable

STREAM_SHARE = 0.25
"""The fraction of all tasks that the steady stream produces; the rush produces the rest."""
STREAM_UNTIL = 0.72
TICK_S = 0.1
REPEATED = 0.3
"""The fraction of single tasks that are enqueued twice at the same time."""
FEW_ATTEMPTS = 3
"""For tasks that are meant to be dead-lettered soon."""


def plan(
    tenant: str, command: str, number: int, *, expected: FinalState = FinalState.COMPLETED, **given: Any
) -> PlannedTask:
    """A task whose key and payload follow from its number, so that it can be enqueued again."""
    options = {name: given.pop(name) for name in ("priority", "delay_ms", "max_attempts") if name in given}
    payload = encode_json({"n": number, "work_s": 0, **given})
    key = f"{tenant}-{command}-{number}"
    return PlannedTask(NewTask(command=command, payload=payload, idempotency_key=key, **options), expected)


def _acme(number: int, rng: random.Random) -> PlannedTask:
    if number % 50 == 7:
        dead = FinalState.DEAD
        return plan("acme", "charge_card", number, card="unreadable", expected=dead, max_attempts=FEW_ATTEMPTS)
    if number % 25 == 3:
        return plan("acme", "charge_card", number, card="stolen", expected=FinalState.FAILED)
    if number % 3 == 0:
        return plan("acme", "send_receipt", number, delay_ms=rng.randrange(500, 4000), work_s=0.02)
    busy = rng.choice([0, 0, 0, 1, 2])
    return plan("acme", "charge_card", number, card="good", busy=busy, work_s=0.02, priority=rng.randrange(10))


def _globex(number: int, rng: random.Random) -> PlannedTask:
    if number % 4 == 0:
        return plan("globex", "render_video", number, work_s=rng.uniform(0.05, 0.3), priority=9)
    return plan("globex", "make_thumbnail", number, priority=rng.randrange(5))


def _initech(number: int, rng: random.Random) -> PlannedTask:
    if number % 15 == 1:
        return plan("initech", "file_report", number, max_attempts=FEW_ATTEMPTS)
    return plan("initech", "import_row", number, priority=rng.randrange(3))


_PLANS = {"acme": _acme, "globex": _globex, "initech": _initech}


def stream(tenant: str, rng: random.Random) -> Iterator[PlannedTask]:
    """An endless mix of the tenant's tasks."""
    number = 0
    while True:
        number += 1
        yield _PLANS[tenant](number, rng)


async def produce(demo: DemoEnvironment, tenant: str) -> None:
    """Enqueues the tenant's share of the stream at an even rate."""
    rng = random.Random(tenant)  # the same tasks in every run
    planned = stream(tenant, rng)
    share = round(demo.tasks * STREAM_SHARE / len(demo.tenants))
    until_s = demo.seconds * STREAM_UNTIL
    sent = 0
    while sent < share:
        due = min(share, round(share * min(1.0, demo.now_s / until_s))) - sent
        batch = [_with_webhook(demo, one) for one in islice(planned, due)]
        sent += len(batch)
        single, rest = batch[: len(batch) // 3], batch[len(batch) // 3 :]
        await asyncio.gather(
            *[_enqueue_one(demo, tenant, one, rng) for one in single], enqueue_batch(demo, tenant, rest)
        )
        await asyncio.sleep(TICK_S)


def _with_webhook(demo: DemoEnvironment, planned: PlannedTask) -> PlannedTask:
    """Asks for a callback at the end of reports: those that die first and are replayed get two."""
    new = planned.task
    if new.command != "file_report":
        return planned
    return PlannedTask(msgspec.structs.replace(new, webhook=demo.callbacks.url), planned.expected)


async def enqueue_batch(demo: DemoEnvironment, tenant: str, tasks: Sequence[PlannedTask]) -> None:
    if tasks:
        for planned, task_id in zip(tasks, await _enqueue(demo, tenant, tasks), strict=True):
            if task_id is not None:
                demo.acknowledged.add(tenant, planned, task_id)


async def enqueue_again(demo: DemoEnvironment, tenant: str, count: int) -> tuple[int, int]:
    """Enqueues the tenant's newest tasks a second time. Returns how many, and how many got the id of the first time."""
    tasks = [task for task in demo.acknowledged.tasks if task.tenant == tenant][-count:]
    if not tasks:
        return 0, 0
    ids = await _enqueue(demo, tenant, [task.planned for task in tasks])
    for task, again in zip(tasks, ids, strict=True):
        demo.acknowledged.add_repeat(tenant, task.planned, task.task_id, again or "")
    return len(tasks), sum(task.task_id == again for task, again in zip(tasks, ids, strict=True))


async def rush(demo: DemoEnvironment, tenant: str, command: str, count: int) -> None:
    """Enqueues many tasks in a loop, through a batcher that groups them into calls."""
    tasks = [plan(tenant, command, 1_000_000 + number) for number in range(count)]
    async with demo.tenants[tenant].producer.batcher(size=250) as batcher:
        tickets = [(planned, await batcher.put(planned.task)) for planned in tasks]
    for planned, ticket in tickets:
        demo.acknowledged.add(tenant, planned, (await ticket).id)


async def _enqueue_one(demo: DemoEnvironment, tenant: str, planned: PlannedTask, rng: random.Random) -> None:
    """Enqueues a single task, sometimes by two concurrent calls with the same key."""
    calls = 2 if rng.random() < REPEATED else 1
    ids = await asyncio.gather(*[_enqueue(demo, tenant, [planned]) for _ in range(calls)])
    [first] = ids[0]
    if first is not None:
        demo.acknowledged.add(tenant, planned, first)
        for [again] in ids[1:]:
            demo.acknowledged.add_repeat(tenant, planned, first, again or "")


async def _enqueue(demo: DemoEnvironment, tenant: str, tasks: Sequence[PlannedTask]) -> list[str | None]:
    """The ids of the tasks; None where it is unknown whether the task exists, after all retries of the client."""
    try:
        results = await demo.tenants[tenant].producer.enqueue_many(
            [planned.task for planned in tasks], refusals="return"
        )
    except Unreachable:
        demo.acknowledged.unanswered += len(tasks)
        return [None] * len(tasks)
    for result in results:
        if isinstance(result, CodeqError):
            raise result
    return [result.id for result in results if not isinstance(result, CodeqError)]
