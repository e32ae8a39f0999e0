"""Ask the server for everything that the audit wants to know, as each tenant and as the platform."""

import random

import msgspec

from codeq.demo.audit import Evidence
from codeq.demo.environment import Stage
from codeq.demo.handlers import result_of
from codeq.demo.ledger import End, Receipt
from codeq.domain.errors import NotFound
from codeq.wire.events import Event

SAMPLE = 25
PAGE = 1000
EVENTS_PAGE = 5000


async def gather_evidence(stage: Stage) -> Evidence:
    receipts = stage.ledger.receipts
    return Evidence(
        receipts=receipts,
        repeats=stage.ledger.repeats,
        unanswered=stage.ledger.unanswered,
        events=await _whole_log(stage),
        followed=stage.board.events,
        listed={name: await _listed(stage, name) for name in stage.tenants},
        sightings=await _sightings(stage),
        wrong_results=await _wrong_results(stage),
    )


async def _whole_log(stage: Stage) -> list[Event]:
    events: list[Event] = []
    shard, shards = 0, 1
    while shard < shards:
        offset, end = 1, 2
        while offset < end:
            page = await stage.platform.events(shard=shard, offset=offset, limit=EVENTS_PAGE)
            events += page.events
            offset, end, shards = page.next_offset, page.end_offset, page.shards
        shard += 1
    return events


async def _listed(stage: Stage, tenant: str) -> dict[str, str]:
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = await stage.tenants[tenant].producer.list(cursor=cursor, limit=PAGE)
        found.update((task.id, task.status.value) for task in page.tasks)
        cursor = page.cursor
        if cursor is None:
            return found


async def _sightings(stage: Stage) -> list[tuple[str, str]]:
    """Try to read what belongs to others."""
    seen = []
    for name, tenant in stage.tenants.items():
        for receipt in _sample([one for one in stage.ledger.receipts if one.tenant != name]):
            try:
                await tenant.producer.get(receipt.task_id)
            except NotFound:
                continue
            seen.append((name, receipt.task_id))
    return seen


async def _wrong_results(stage: Stage) -> list[str]:
    wrong = []
    for name, tenant in stage.tenants.items():
        mine = [one for one in stage.ledger.receipts if one.tenant == name and one.end is End.COMPLETED]
        for receipt in _sample(mine):
            kept = await tenant.producer.get(receipt.task_id)
            if kept.result != result_of(msgspec.json.decode(receipt.order.task.payload)):
                wrong.append(receipt.task_id)
    return wrong


def _sample(receipts: list[Receipt]) -> list[Receipt]:
    return random.Random(0).sample(receipts, min(SAMPLE, len(receipts)))
