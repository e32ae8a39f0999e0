"""The producers: a steady stream of every kind of task, keys that are sent twice on purpose, batches, and a rush."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from codeq.demo.environment import Stage
from codeq.demo.ledger import End, Order
from codeq.domain.errors import CodeqError
from codeq.domain.requests import NewTask
from codeq.sdk.jobs import encode_json
from codeq.wire.errors import Unreachable

STREAM_SHARE = 0.25
"""Of all tasks, how many come in the steady stream; the others come in the rush."""
STREAM_UNTIL = 0.72
TICK_S = 0.1
REPEATED = 0.1
"""How many orders are sent a second time while the first is still on its way."""
DEATHS = 3
"""Tries of a task that is meant to die: few, so that it does so soon."""


def order(tenant: str, command: str, number: int, *, end: End = End.COMPLETED, **given: Any) -> Order:
    """An order whose key and payload follow from its number, so that it can be sent again."""
    options = {name: given.pop(name) for name in ("priority", "delay_ms", "max_attempts") if name in given}
    payload = encode_json({"n": number, "work_s": 0, **given})
    key = f"{tenant}-{command}-{number}"
    return Order(NewTask(command=command, payload=payload, idempotency_key=key, **options), end)


def stream(tenant: str, chance: random.Random) -> Iterator[Order]:
    """What the tenant orders day in, day out."""
    number = 0
    while True:
        number += 1
        yield {"acme": _shop, "globex": _studio, "initech": _office}[tenant](number, chance)


def _shop(number: int, chance: random.Random) -> Order:
    if number % 50 == 7:
        return order("acme", "charge_card", number, card="unreadable", end=End.DEAD, max_attempts=DEATHS)
    if number % 25 == 3:
        return order("acme", "charge_card", number, card="stolen", end=End.FAILED)
    if number % 3 == 0:
        delay_ms = chance.randrange(500, 4000)
        return order("acme", "send_receipt", number, delay_ms=delay_ms, work_s=0.02)
    busy = chance.choice([0, 0, 0, 1, 2])
    return order("acme", "charge_card", number, card="good", busy=busy, work_s=0.02, priority=chance.randrange(10))


def _studio(number: int, chance: random.Random) -> Order:
    if number % 4 == 0:
        return order("globex", "render_video", number, work_s=chance.uniform(0.05, 0.3), priority=9)
    return order("globex", "make_thumbnail", number, priority=chance.randrange(5))


def _office(number: int, chance: random.Random) -> Order:
    if number % 15 == 1:
        return order("initech", "file_report", number, max_attempts=DEATHS)
    return order("initech", "import_row", number, priority=chance.randrange(3))


async def produce(stage: Stage, tenant: str) -> None:
    """Send the tenant's share of the stream, evenly until its end."""
    chance = random.Random(tenant)  # the same orders in every run
    orders = stream(tenant, chance)
    share = round(stage.tasks * STREAM_SHARE / len(stage.tenants))
    until_s = stage.seconds * STREAM_UNTIL
    sent = 0
    while sent < share:
        due = min(share, round(share * min(1.0, stage.now_s / until_s))) - sent
        batch = list(islice(orders, due))
        sent += len(batch)
        singles, rest = batch[: len(batch) // 3], batch[len(batch) // 3 :]
        await asyncio.gather(*[send(stage, tenant, one, chance) for one in singles], send_many(stage, tenant, rest))
        await asyncio.sleep(TICK_S)


async def send(stage: Stage, tenant: str, one: Order, chance: random.Random) -> None:
    """One order by itself; now and then twice at once, as by an impatient finger."""
    times = 2 if chance.random() < REPEATED * 3 else 1
    ids = await asyncio.gather(*[_enqueue(stage, tenant, [one]) for _ in range(times)])
    [first] = ids[0]
    if first is not None:
        stage.ledger.acknowledge(tenant, one, first)
        for [again] in ids[1:]:
            stage.ledger.repeat(tenant, one, first, again or "")


async def send_many(stage: Stage, tenant: str, orders: Sequence[Order]) -> None:
    if orders:
        for one, task_id in zip(orders, await _enqueue(stage, tenant, orders), strict=True):
            if task_id is not None:
                stage.ledger.acknowledge(tenant, one, task_id)


async def send_again(stage: Stage, tenant: str, count: int) -> tuple[int, int]:
    """Repeat the newest orders of a tenant. Answers how many, and how many gave the task they had made before."""
    mine = [receipt for receipt in stage.ledger.receipts if receipt.tenant == tenant][-count:]
    if not mine:
        return 0, 0
    ids = await _enqueue(stage, tenant, [receipt.order for receipt in mine])
    for receipt, again in zip(mine, ids, strict=True):
        stage.ledger.repeat(tenant, receipt.order, receipt.task_id, again or "")
    return len(mine), sum(receipt.task_id == again for receipt, again in zip(mine, ids, strict=True))


async def rush(stage: Stage, tenant: str, command: str, count: int) -> None:
    """Put many tasks in one by one, as a loop would; the batcher sends them together."""
    orders = [order(tenant, command, 1_000_000 + number) for number in range(count)]
    async with stage.tenants[tenant].producer.batcher(size=250) as batcher:
        tickets = [(one, await batcher.put(one.task)) for one in orders]
    for one, ticket in tickets:
        stage.ledger.acknowledge(tenant, one, (await ticket).id)


async def _enqueue(stage: Stage, tenant: str, orders: Sequence[Order]) -> list[str | None]:
    """The ids of the tasks; None where it is not known whether there is one. The client repeats what was lost."""
    try:
        answers = await stage.tenants[tenant].producer.enqueue_many([one.task for one in orders])
    except Unreachable:
        stage.ledger.unanswered += len(orders)
        return [None] * len(orders)
    for answer in answers:
        if isinstance(answer, CodeqError):
            raise answer
    return [answer.id for answer in answers if not isinstance(answer, CodeqError)]
