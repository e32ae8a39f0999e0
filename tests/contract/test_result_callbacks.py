"""A task with a webhook that ends, on whatever path, creates its delivery in the same atomic step, and exactly one."""

import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.contract.world import BACKOFF_MS, LEASE_MS, TENANT, World, holder_of

from codeq.domain import lifecycle
from codeq.domain.artifacts import Artifact, join_result
from codeq.domain.errors import CodeqError
from codeq.domain.ids import shard_of
from codeq.domain.queue import WEBHOOKS, QueueKey, QueuePolicy
from codeq.domain.requests import Filter
from codeq.domain.task import Move, Status, Task
from codeq.server.metrics import Metrics
from codeq.server.scrape import Scraper
from codeq.store.interface import ClaimRequest
from codeq.usecases import abandon, deliver
from codeq.usecases.result_callbacks import with_deliveries

URL = "https://example.com/done"


async def deliveries(world: World) -> list[dict[str, Any]]:
    """Returns the payloads of all deliveries there are, oldest first."""
    found = await world.find_all(Filter(command=WEBHOOKS))
    records = await world.store.get_records(TENANT, [task.id for task in reversed(found)])
    return [json.loads(record.body.payload) for record in records if record is not None]


async def _held(world: World, **options: Any) -> Task:
    await world.enqueue(webhook=URL, **options)
    return await world.claim_one()


async def _complete(world: World) -> None:
    await world.complete(await _held(world), b'{"width":640}')


async def _fail(world: World) -> None:
    await world.fail(await _held(world), "broken")


async def _nack(world: World) -> None:
    await world.nack(await _held(world, max_attempts=1), "no luck")


async def _expire(world: World) -> None:
    await _held(world, max_attempts=1)
    world.clock.pass_ms(LEASE_MS)
    await world.sweep()


async def _expire_by_claim(world: World) -> None:
    await _held(world, max_attempts=1)
    world.clock.pass_ms(LEASE_MS)
    assert await world.claim() == []


async def _abandon(world: World) -> None:
    task = await _held(world)
    for _ in range(task.max_deliveries):
        await world.abandon(task)
        if found := await world.claim():
            [task] = found


async def _cancel_pending(world: World) -> None:
    await world.cancel(await world.enqueue(webhook=URL))


async def _cancel_in_progress(world: World) -> None:
    await world.cancel(await _held(world))


ENDS: list[tuple[Callable[[World], Awaitable[None]], Status, str | None]] = [
    (_complete, Status.COMPLETED, None),
    (_fail, Status.FAILED, "broken"),
    (_nack, Status.FAILED, "MAX_ATTEMPTS"),
    (_expire, Status.FAILED, "MAX_ATTEMPTS"),
    (_expire_by_claim, Status.FAILED, "MAX_ATTEMPTS"),
    (_abandon, Status.FAILED, "MAX_DELIVERIES"),
    (_cancel_pending, Status.CANCELLED, None),
    (_cancel_in_progress, Status.CANCELLED, None),
]


@pytest.mark.parametrize(("end", "status", "error"), ENDS, ids=[end.__name__[1:] for end, _, _ in ENDS])
async def test_every_end_of_a_task_with_a_webhook_creates_one_delivery(
    world: World, end: Callable[[World], Awaitable[None]], status: Status, error: str | None
) -> None:
    await end(world)
    [task] = await world.find_all()
    [callback] = await deliveries(world)
    assert (callback["taskId"], callback["command"], callback["url"]) == (task.id, "work", URL)
    assert (callback["status"], callback["error"]) == (status, error)
    assert callback["result"] == ({"width": 640} if end is _complete else None)
    assert await world.counts(WEBHOOKS) == (1, 0, 0, 0)


async def test_a_delivery_is_in_the_shard_of_its_task_and_its_event_follows(world: World) -> None:
    tasks = [await world.enqueue(webhook=URL) for _ in range(4)]
    for _ in tasks:
        await world.complete(await world.claim_one())
    for shard, events in (await world.events()).items():
        for before, after in itertools.pairwise(events):
            if before.move is Move.COMPLETE:
                assert (after.move, after.command, after.version) == (Move.ENQUEUE, WEBHOOKS, before.version + 1)
                assert shard_of(after.id) == shard
    assert {callback["taskId"] for callback in await deliveries(world)} == {task.id for task in tasks}


async def test_what_does_not_end_a_task_creates_no_delivery(world: World) -> None:
    task = await _held(world)
    await world.heartbeat(task)
    await world.nack(task, "again")
    world.clock.pass_ms(BACKOFF_MS)
    await world.abandon(await world.claim_one())
    assert await deliveries(world) == []


async def test_a_task_without_a_webhook_creates_none(world: World) -> None:
    await world.enqueue()
    await world.complete(await world.claim_one())
    assert await deliveries(world) == []


async def test_a_repeated_and_a_late_result_create_no_second_delivery(world: World) -> None:
    task = await _held(world)
    await world.complete(task)
    await world.complete(task)
    with pytest.raises(CodeqError):
        await world.fail(task)
    assert len(await deliveries(world)) == 1


async def test_a_replayed_task_that_ends_again_creates_another(world: World) -> None:
    await _nack(world)
    [dead] = await world.find_all()
    await world.replay(dead)
    await world.complete(await world.claim_one())
    assert [callback["status"] for callback in await deliveries(world)] == [Status.FAILED, Status.COMPLETED]


async def test_a_change_that_is_refused_creates_none(world: World) -> None:
    """Two calls decide by the same version: one is refused, with its delivery, whether its body is short or long."""
    for result in (b"1", b'"' + b"x" * 5_000 + b'"'):
        task = await _held(world)
        now_ms = world.clock.now_ms
        winner = lifecycle.complete(task, holder_of(task), now_ms, retention_ms=1000, result=b"0")
        loser = lifecycle.fail(task, holder_of(task), now_ms, error="late", retention_ms=1000, result=result)
        first, second = await with_deliveries(world.core, [winner, loser])
        assert first.delivery is not None
        assert second.delivery is not None
        assert [done is not None for done in await world.store.commit([first])] == [True]
        assert await world.store.commit([second]) == [None]
        assert await world.store.get_tasks(TENANT, [second.delivery.after.id]) == [None]
    assert [callback["result"] for callback in await deliveries(world)] == [0, 0]


async def test_a_large_result_travels_with_its_delivery(world: World) -> None:
    result = json.dumps("y" * 100_000).encode()
    await world.complete(await _held(world), result)
    [callback] = await deliveries(world)
    assert callback["result"] == json.loads(result)


async def test_the_artifacts_of_a_result_travel_with_its_delivery(world: World) -> None:
    task = await _held(world)
    link = Artifact("report.pdf", url="https://example.com/report.pdf")
    stored = join_result(b'{"ok":true}', [link])
    change = lifecycle.complete(task, holder_of(task), world.clock.now_ms, retention_ms=1000, result=stored)
    assert await world.core.commit([change]) == [change.after]
    [callback] = await deliveries(world)
    assert callback["result"] == {"ok": True}
    assert [(each["name"], each["url"]) for each in callback["artifacts"]] == [(link.name, link.url)]


async def test_many_tasks_with_large_payloads_end_with_their_deliveries(world: World) -> None:
    for _ in range(6):
        await world.enqueue(webhook=URL, payload=json.dumps("z" * 200_000).encode(), max_attempts=1)
    assert len(await world.claim(limit=6)) == 6
    world.clock.pass_ms(LEASE_MS)
    await world.sweep()
    assert len(await deliveries(world)) == 6


async def test_deliveries_survive_a_restart(world: World) -> None:
    await _complete(world)
    await world.reopen()
    [callback] = await deliveries(world)
    assert callback["result"] == {"width": 640}
    assert await world.counts(WEBHOOKS) == (1, 0, 0, 0)


async def test_claims_of_all_commands_and_plain_lists_leave_deliveries_out(world: World) -> None:
    await _complete(world)
    assert await world.claim(limit=10) == []
    assert [task.command for task in await world.find_all()] == ["work"]
    [task] = await _taken(world)
    assert task.command == WEBHOOKS
    await world.nack(task, "503", delay_ms=0)


async def test_a_claim_that_names_the_command_of_deliveries_is_refused(world: World) -> None:
    await _complete(world)
    with pytest.raises(CodeqError, match="command"):
        await world.claim(WEBHOOKS)


async def test_a_delivery_has_the_attempts_and_the_backoff_of_webhooks(world: World) -> None:
    await _complete(world)
    waits = []
    while True:
        [task] = await _taken(world)
        assert task.max_attempts == 5
        back = await world.nack(task, "503")
        if back.status is Status.FAILED:
            break
        waits.append(back.visible_ms - world.clock.now_ms)
        world.clock.pass_ms(waits[-1])
        await world.sweep()
    assert waits == [2_000, 4_000, 8_000, 16_000]
    assert await world.counts(WEBHOOKS) == (0, 0, 0, 1)
    assert await world.find_all(Filter(index=None, status=Status.FAILED)) == []


async def test_a_task_may_be_handed_back_with_a_delay_that_counts_no_attempt(world: World) -> None:
    await world.enqueue()
    task = await world.claim_one()
    back = await abandon.abandon(world.core, TENANT, task.id, holder_of(task), delay_ms=700)
    assert (back.status, back.attempts, back.visible_ms) == (Status.PENDING, 0, world.clock.now_ms + 700)
    assert await world.claim() == []
    world.clock.pass_ms(700)
    assert (await world.claim_one()).deliveries == 2


async def _taken(world: World) -> list[Task]:
    request = ClaimRequest(
        tenant=TENANT,
        commands=[WEBHOOKS],
        worker="deliverer",
        lease_ms=LEASE_MS,
        limit=10,
        policy_of=world.core.policy_of,
    )
    assert world.core.policy_of(QueueKey(TENANT, WEBHOOKS)).max_attempts == 5
    return [delivery.task for delivery in await world.store.take(request)]


async def test_deliveries_that_die_without_their_sender_are_counted_with_their_command(world: World) -> None:
    metrics = Metrics()
    world.store.peers.add_listener(metrics)
    await world.set_policy(WEBHOOKS, QueuePolicy(max_attempts=1, max_deliveries=1))
    for command in ("lost", "handed.back", "refused"):
        await world.enqueue(command, webhook=URL)
        await world.complete(await world.claim_one(command))
        [delivery] = await deliver.take(world.core, TENANT, worker="server", limit=1, lease_ms=LEASE_MS)
        if command == "lost":  # its server was killed
            world.clock.pass_ms(LEASE_MS)
            await world.sweep()
        elif command == "handed.back":
            await deliver.hand_back(world.core, delivery)
        else:
            await deliver.failed(world.core, delivery, "HTTP 500")
    scraper = Scraper(metrics, world.core)
    for _ in range(2):  # a second scrape counts nothing again
        text = (await scraper.scrape()).decode()
        counted = {line for line in text.splitlines() if line.startswith("codeq_webhook_deliveries_total{")}
        assert counted == {
            f'codeq_webhook_deliveries_total{{command="{command}",kind="task_result",outcome="failure"}} 1.0'
            for command in ("lost", "handed.back")
        }, "whoever sends counts the one that was refused"
