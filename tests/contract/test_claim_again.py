"""A claim that is sent again with its request id gets the tasks that it has leased, and no others."""

import asyncio
import contextlib

import pytest
from tests.contract.world import BACKOFF_MS, LEASE_MS, TENANT, World, ids

from codeq.domain.errors import InvalidRequest
from codeq.domain.queue import QueuePolicy
from codeq.domain.requests import Claim
from codeq.domain.task import Move, Status, Task
from codeq.usecases import claim as claiming

ID = "a request"


def leases(tasks: list[Task]) -> list[tuple[str, int, int]]:
    return sorted((task.id, task.lease_token, task.version) for task in tasks)


async def test_the_same_request_gets_the_same_tasks_and_takes_no_others(world: World) -> None:
    for priority in (0, 0, 0, 9, 9, 9, 4, 4, 4, 0):  # of each, one in every shard
        await world.enqueue(priority=priority)
    first = await world.claim(limit=7, request_id=ID)
    assert len(first) == 7
    again = await world.claim(limit=7, request_id=ID)
    assert leases(again) == leases(first)
    assert await world.counts() == (3, 0, 7, 0)
    assert {(await world.load(task)).deliveries for task in first} == {1}
    events = [event.move for shard in (await world.events()).values() for event in shard]
    assert events.count(Move.CLAIM) == 7
    assert len(await world.claim(limit=7, request_id="another")) == 3


async def test_tasks_that_are_asked_for_again_have_their_bodies(world: World) -> None:
    for payload in (b'"small"', b'"' + b"x" * 100_000 + b'"'):
        await world.enqueue(payload=payload)
    wanted = Claim(worker="worker", limit=2, request_id=ID)
    first = await claiming.claim(world.core, TENANT, wanted)
    again = await claiming.claim(world.core, TENANT, wanted)
    assert {delivery.task.id: delivery.body for delivery in again} == {
        delivery.task.id: delivery.body for delivery in first
    }
    assert [delivery.is_repeat for delivery in first + again] == [False, False, True, True]


async def test_a_request_is_known_after_a_restart(world: World) -> None:
    await world.enqueue_many(8)
    first = await world.claim(limit=5, request_id=ID)
    await world.claim(limit=1, request_id="another")
    await world.reopen()
    assert leases(await world.claim(limit=5, request_id=ID)) == leases(first)
    for task in first[1:]:
        await world.complete(task)
    await world.reopen()
    assert leases(await world.claim(limit=5, request_id=ID)) == leases(first[:1])
    await world.complete(first[0])
    await world.reopen()
    assert len(await world.claim(limit=5, request_id=ID)) == 2
    assert await world.claim(limit=5) == []


async def test_a_request_belongs_to_its_worker_and_tenant(world: World) -> None:
    [ours] = [await world.enqueue()]
    theirs = await world.enqueue(tenant="other")
    assert ids(await world.claim(request_id=ID)) == [ours.id]
    assert await world.claim(worker="another", request_id=ID) == []
    assert ids(await world.claim(tenant="other", request_id=ID)) == [theirs.id]
    assert ids(await world.claim(request_id=ID)) == [ours.id]


async def test_tasks_that_have_ended_or_were_given_back_are_not_delivered_again_by_their_request(world: World) -> None:
    await world.enqueue_many(5)
    done, failed, nacked, cancelled, held = await world.claim(limit=5, request_id=ID)
    await world.complete(done)
    await world.fail(failed)
    await world.nack(nacked)
    await world.cancel(cancelled)
    assert leases(await world.claim(limit=5, request_id=ID)) == leases([held])


async def test_a_task_that_was_leased_again_belongs_to_the_newer_claim(world: World) -> None:
    await world.enqueue_many(2)
    lost, held = await world.claim(limit=2, request_id=ID)
    await world.abandon(lost)
    [newer] = await world.claim(request_id="newer")
    assert (newer.id, newer.lease_token) == (lost.id, 2)
    assert leases(await world.claim(limit=2, request_id=ID)) == leases([held])
    assert leases(await world.claim(request_id="newer")) == leases([newer])


async def test_a_request_is_forgotten_with_its_last_lease(world: World) -> None:
    await world.enqueue(max_attempts=5)
    [first] = await world.claim(request_id=ID)
    await world.nack(first, delay_ms=0)
    [second] = await world.claim(request_id=ID)
    assert (second.id, second.lease_token) == (first.id, 2)
    world.clock.pass_ms(LEASE_MS)
    await world.sweep()
    world.clock.pass_ms(BACKOFF_MS)
    [third] = await world.claim(request_id=ID)
    assert (third.lease_token, third.attempts) == (3, 2)


async def test_a_request_that_got_nothing_is_not_remembered(world: World) -> None:
    assert await world.claim(request_id=ID) == []
    task = await world.enqueue()
    assert ids(await world.claim(request_id=ID)) == [task.id]


async def test_tasks_that_are_asked_for_again_have_a_whole_lease(world: World) -> None:
    await world.enqueue()
    [first] = await world.claim(request_id=ID)
    world.clock.pass_ms(LEASE_MS - 1)
    [again] = await world.claim(request_id=ID)
    assert again.lease_until_ms == world.clock.now_ms + LEASE_MS
    world.clock.pass_ms(1)
    assert (await world.sweep())[1] == 0
    assert (await world.complete(first)).task.status is Status.COMPLETED


async def test_a_paused_or_full_queue_answers_a_request_again(world: World) -> None:
    await world.enqueue_many(2)
    await world.set_policy("work", QueuePolicy(max_consumers=1))
    first = await world.claim("work", request_id=ID)
    assert leases(await world.claim("work", request_id=ID)) == leases(first)
    await world.set_policy("work", QueuePolicy(paused=True))
    assert leases(await world.claim("work", request_id=ID)) == leases(first)


async def test_a_request_gets_tasks_of_the_commands_that_it_names(world: World) -> None:
    for command in ("mail", "work"):
        await world.enqueue(command)
    first = await world.claim("mail", "work", limit=2, request_id=ID)
    again = await world.claim("mail", limit=2, request_id=ID)
    assert leases(again) == leases([task for task in first if task.command == "mail"])


async def test_a_claim_that_waited_can_be_sent_again(world: World) -> None:
    waiting = asyncio.create_task(world.claim(wait_ms=10_000, request_id=ID))
    await asyncio.sleep(0)
    task = await world.enqueue()
    first = await waiting
    assert ids(first) == [task.id]
    assert leases(await world.claim(wait_ms=10_000, request_id=ID)) == leases(first)


async def test_a_claim_that_was_handed_back_is_forgotten(world: World) -> None:
    waiting = asyncio.create_task(world.claim(wait_ms=10_000, request_id=ID))
    await asyncio.sleep(0)
    task = await world.enqueue()
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):  # raised unless it has been served already
        await waiting
    [again] = await world.claim(wait_ms=10_000, request_id=ID)
    assert (again.id, again.attempts, again.lease_token) == (task.id, 0, again.deliveries)
    assert await world.counts() == (0, 0, 1, 0)


async def test_a_call_whose_caller_has_gone_leaves_the_tasks_to_the_call_that_asked_again(world: World) -> None:
    """Even if both are served in the same millisecond."""
    await world.enqueue_many(3)
    wanted = Claim(worker="worker", limit=3, request_id=ID)
    first, again = [await claiming.claim(world.core, TENANT, wanted) for _ in range(2)]
    await claiming.hand_back(world.core, TENANT, claiming.leases_of(first))
    assert await world.counts() == (0, 0, 3, 0)
    assert claiming.leases_of(again) == []


async def test_a_call_whose_caller_has_gone_hands_back_what_nobody_asked_for_again(world: World) -> None:
    await world.enqueue_many(3)
    first = await claiming.claim(world.core, TENANT, Claim(worker="worker", limit=3, request_id=ID))
    await claiming.hand_back(world.core, TENANT, claiming.leases_of(first))
    assert await world.counts() == (3, 0, 0, 0)
    again = await world.claim(limit=3, request_id=ID)
    assert {(task.attempts, task.lease_token) for task in again} == {(0, 2)}


async def test_two_calls_with_one_request_id_that_wait_get_the_same_task(world: World) -> None:
    calls = [asyncio.create_task(world.claim(wait_ms=10_000, request_id=ID)) for _ in range(2)]
    await asyncio.sleep(0)
    await world.enqueue()
    first, again = [await call for call in calls]
    assert leases(first) == leases(again)
    assert await world.counts() == (0, 0, 1, 0)


@pytest.mark.parametrize("request_id", ["", "x" * 65, "a\nb", "\ud800"])
async def test_a_request_id_is_a_short_line_of_text(world: World, request_id: str) -> None:
    await world.enqueue()
    with pytest.raises(InvalidRequest):
        await world.claim(request_id=request_id)
    assert await world.counts() == (1, 0, 0, 0)
    assert len(await world.claim(request_id="é" * 64)) == 1
