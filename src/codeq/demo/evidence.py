"""Collects from the server what the audit needs, with each tenant's token and with the platform's."""

import random

import msgspec

from codeq.demo.acknowledged import AcknowledgedTask, FinalState
from codeq.demo.audit import Evidence
from codeq.demo.environment import DemoEnvironment
from codeq.demo.handlers import REPORT, report_of, result_of
from codeq.domain.errors import NotFound
from codeq.wire.events import Event

SAMPLE = 25
PAGE = 1000
EVENTS_PAGE = 5000


async def collect_evidence(demo: DemoEnvironment) -> Evidence:
    return Evidence(
        acknowledged=demo.acknowledged.tasks,
        repeats=demo.acknowledged.repeats,
        unanswered=demo.acknowledged.unanswered,
        events=await _all_events(demo),
        followed=demo.states.events,
        listed={name: await _listed(demo, name) for name in demo.tenants},
        cross_tenant_reads=await _cross_tenant_reads(demo),
        wrong_results=await _wrong_results(demo),
        wrong_artifacts=await _wrong_artifacts(demo),
        called_back=frozenset(demo.callbacks.task_ids),
        forged_callbacks=demo.callbacks.forged,
    )


async def _all_events(demo: DemoEnvironment) -> list[Event]:
    events: list[Event] = []
    shard, shards = 0, 1
    while shard < shards:
        offset, end = 1, 2
        while offset < end:
            page = await demo.platform.events(shard=shard, offset=offset, limit=EVENTS_PAGE)
            events += page.events
            offset, end, shards = page.next_offset, page.end_offset, page.shards
        shard += 1
    return events


async def _listed(demo: DemoEnvironment, tenant: str) -> dict[str, str]:
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = await demo.tenants[tenant].producer.list(cursor=cursor, limit=PAGE)
        found.update((task.id, task.status.value) for task in page.tasks)
        cursor = page.cursor
        if cursor is None:
            return found


async def _cross_tenant_reads(demo: DemoEnvironment) -> list[tuple[str, str]]:
    """Tries to read a sample of other tenants' tasks, and returns those that could be read."""
    readable = []
    for name, tenant in demo.tenants.items():
        for task in _sample([task for task in demo.acknowledged.tasks if task.tenant != name]):
            try:
                await tenant.producer.get(task.task_id)
            except NotFound:
                continue
            readable.append((name, task.task_id))
    return readable


async def _wrong_results(demo: DemoEnvironment) -> list[str]:
    wrong = []
    for name, tenant in demo.tenants.items():
        completed = FinalState.COMPLETED
        for task in _sample([t for t in demo.acknowledged.tasks if t.tenant == name and t.expected is completed]):
            details = await tenant.producer.get(task.task_id)
            if details.result != result_of(msgspec.json.decode(task.planned.task.payload)):
                wrong.append(task.task_id)
    return wrong


async def _wrong_artifacts(demo: DemoEnvironment) -> list[str]:
    reports = [t for t in demo.acknowledged.tasks if t.planned.task.command == "file_report"]
    client, wrong = demo.tenants["initech"].producer, []
    for task in _sample([task for task in reports if task.expected is FinalState.COMPLETED]):
        try:
            content = await client.read_artifact(task.task_id, REPORT)
        except NotFound:
            content = b""
        if content != report_of(msgspec.json.decode(task.planned.task.payload)):
            wrong.append(task.task_id)
    return wrong


def _sample(tasks: list[AcknowledgedTask]) -> list[AcknowledgedTask]:
    return random.Random(0).sample(tasks, min(SAMPLE, len(tasks)))
