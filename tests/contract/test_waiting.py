"""Long polls: woken by the event, first come first served, and losing no task when they are cancelled."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.contract.engines import on_files
from tests.contract.world import BACKOFF_MS, LEASE_MS, TENANT, World, ids

from codeq.domain.errors import InvalidRequest, NotFound, StoreError
from codeq.domain.task import Status, Task

WAIT_MS = 20_000
"""Longer than any test takes: a waiter that is not woken fails the test by its timeout."""

Waiting = asyncio.Task[list[Task]]


async def wait_in_line(world: World, number: int, *commands: str, **options: int) -> list[Waiting]:
    """Starts claims that wait, in the order of the returned list."""
    waiting: list[Waiting] = []
    for i in range(number):
        before = claims_in_line(world)
        claim = world.claim(*commands, worker=f"w{i}", wait_ms=WAIT_MS, **options)  # type: ignore[arg-type]
        waiting.append(asyncio.create_task(claim))
        await asyncio.sleep(0)
        while not world.engine.is_local and claims_in_line(world) == before:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)
    return waiting


def claims_in_line(world: World) -> int:
    return sum(len(line) for line in world.core.waiters._claims.values())


async def turns(world: World, number: int = 50, *, done: Sequence["asyncio.Task[Any]"] = ()) -> None:
    """Lets everything that is ready run. Where answers come from another process, waits for those that must be `done`,
    and a little for others that must not be."""
    for _ in range(number):
        await asyncio.sleep(0 if world.engine.is_local else 0.001)
    if done and not world.engine.is_local:
        await asyncio.wait(done, timeout=WAIT_MS / 2000)


async def test_a_waiting_claim_is_woken_by_an_enqueue(world: World) -> None:
    [waiting] = await wait_in_line(world, 1, "work")
    await turns(world)
    assert not waiting.done()
    task = await world.enqueue()
    assert ids(await waiting) == [task.id]


async def test_a_waiting_claim_is_served_within_a_few_turns_of_the_loop_not_by_polling(world: World) -> None:
    [waiting] = await wait_in_line(world, 1, "work")
    await world.enqueue()
    await turns(world, done=[waiting])
    assert waiting.done()


async def test_a_waiting_claim_is_woken_with_every_answer_forced_to_disk(synced_world: World) -> None:
    waiting = await wait_in_line(synced_world, 3, "work")
    queued = await synced_world.enqueue_many(3)
    taken = [task for claim in waiting for task in await claim]
    assert sorted(ids(taken)) == sorted(ids(queued))


@pytest.mark.parametrize("way", ["promote", "nack", "abandon", "expire", "replay"])
async def test_a_waiting_claim_is_woken_by_every_way_into_the_queue(world: World, way: str) -> None:
    if way == "promote":
        task = await world.enqueue(delay_ms=10)
    elif way == "replay":
        task = await world.dead()
    else:
        await world.enqueue()
        task = await world.claim_one()
    [waiting] = await wait_in_line(world, 1, "work")
    if way == "promote":
        world.clock.pass_ms(10)
        await world.sweep()
    elif way == "expire":
        world.clock.pass_ms(LEASE_MS)
        await world.sweep()
        world.clock.pass_ms(BACKOFF_MS)
        await world.sweep()
    elif way == "nack":
        await world.nack(task, delay_ms=0)
    else:
        await getattr(world, way)(task)
    assert ids(await waiting) == [task.id]


async def test_waiters_are_served_first_come_first_served(world: World) -> None:
    waiting = await wait_in_line(world, 5, "work")
    for place in range(5):
        task = await world.enqueue()
        await turns(world, done=waiting[: place + 1])
        assert [claim.done() for claim in waiting] == [True] * (place + 1) + [False] * (4 - place)
        assert ids(waiting[place].result()) == [task.id]


async def test_one_batch_serves_as_many_waiters_as_it_has_tasks(world: World) -> None:
    waiting = await wait_in_line(world, 5, "work")
    await world.enqueue_many(3)
    await turns(world, done=waiting[:3])
    assert [claim.done() for claim in waiting] == [True, True, True, False, False]
    await world.enqueue_many(7)
    await turns(world, done=waiting)
    assert all(claim.done() for claim in waiting)
    assert await world.counts() == (5, 0, 5, 0)


@on_files  # elsewhere a newcomer may be quicker than the signal to those who wait
async def test_those_who_wait_are_served_before_a_newcomer(world: World) -> None:
    [waiting] = await wait_in_line(world, 1, "work")
    _, newcomer = await asyncio.gather(world.enqueue(), world.claim("work", worker="newcomer"))
    assert newcomer == []
    assert len(await waiting) == 1


async def test_a_waiter_of_all_commands_stands_in_the_same_line(world: World) -> None:
    [every] = await wait_in_line(world, 1)
    [work] = await wait_in_line(world, 1, "work")
    await world.enqueue("work")
    await turns(world, done=[every])
    assert (every.done(), work.done()) == (True, False)
    await world.enqueue("other")
    await turns(world)
    assert not work.done()
    await world.enqueue("work")
    assert len(await work) == 1


async def test_a_waiter_of_several_commands_is_woken_by_each(world: World) -> None:
    for command in ("a", "b"):
        [waiting] = await wait_in_line(world, 1, "a", "b")
        await world.enqueue(command)
        assert [task.command for task in await waiting] == [command]


async def test_a_waiter_is_not_woken_by_other_queues_or_tenants(world: World) -> None:
    [waiting] = await wait_in_line(world, 1, "work")
    await world.enqueue("other")
    await world.enqueue("work", tenant="other")
    await turns(world)
    assert not waiting.done()
    await world.enqueue("work")
    assert [task.tenant for task in await waiting] == [TENANT]


async def test_a_cancelled_waiter_loses_no_task(world: World) -> None:
    first, second = await wait_in_line(world, 2, "work")
    first.cancel()
    task = await world.enqueue()
    assert ids(await second) == [task.id]
    assert first.cancelled()


async def test_a_waiter_cancelled_just_as_it_is_served_gives_its_task_to_the_next(world: World) -> None:
    for turn in range(8):
        first, second = await wait_in_line(world, 2, "work")
        task = await world.enqueue()
        await turns(world, turn)
        first.cancel()
        done, _ = await asyncio.wait([first], timeout=10)
        assert done
        if first.cancelled():
            assert ids(await second) == [task.id]
        else:
            assert ids(first.result()) == [task.id]
            second.cancel()
            await asyncio.wait([second])
        await turns(world)
        await world.cancel(task)
        assert await world.counts() == (0, 0, 0, 0)


async def test_a_claim_cancelled_while_it_waits_for_the_disk_loses_no_task(synced_world: World) -> None:
    world = synced_world
    await world.enqueue(max_attempts=1)
    claim = asyncio.create_task(world.claim("work"))
    await asyncio.sleep(0)
    claim.cancel()
    await asyncio.wait([claim])
    assert claim.cancelled()
    await world.store.flush()
    assert await world.counts() == (1, 0, 0, 0)
    assert (await world.claim_one("work")).attempts == 0


async def test_a_waiting_claim_answers_nothing_when_its_time_is_over(world: World) -> None:
    assert await world.claim("work", wait_ms=20) == []
    task = await world.enqueue()
    assert (await world.load(task)).status is Status.PENDING
    assert ids(await world.claim("work")) == [task.id]


async def test_a_claim_that_finds_something_does_not_wait(world: World) -> None:
    await world.enqueue()
    waiting = asyncio.create_task(world.claim("work", limit=10, wait_ms=WAIT_MS))
    await turns(world, done=[waiting])
    assert waiting.done()


async def test_a_waiter_takes_up_to_its_limit(world: World) -> None:
    [waiting] = await wait_in_line(world, 1, "work", limit=4)
    await world.enqueue_many(9)
    taken = await waiting
    assert 1 <= len(taken) <= 4
    assert (await world.counts())[2] == len(taken)


async def test_many_waiters_and_many_tasks_meet_without_loss(world: World) -> None:
    waiting = await wait_in_line(world, 40, "a", "b")
    queued = [await world.enqueue("ab"[i % 2]) for i in range(40)]
    taken = [task for claims in await asyncio.gather(*waiting) for task in claims]
    assert sorted(ids(taken)) == sorted(ids(queued))


async def test_a_waiting_reader_is_woken_by_completion(world: World) -> None:
    task = await world.enqueue()
    waiting = asyncio.create_task(world.get(task, wait_ms=WAIT_MS))
    await turns(world)
    held = await world.claim_one()
    await turns(world)
    assert not waiting.done()
    await world.complete(held, b"42")
    await turns(world, done=[waiting])
    assert waiting.done()
    record = waiting.result()
    assert (record.task.status, record.result) == (Status.COMPLETED, b"42")


@pytest.mark.parametrize("way", ["fail", "cancel", "kill", "expire"])
async def test_a_waiting_reader_is_woken_by_every_way_to_end(world: World, way: str) -> None:
    task = await world.enqueue(max_attempts=1)
    waiting = [asyncio.create_task(world.get(task, wait_ms=WAIT_MS)) for _ in range(3)]
    await turns(world)
    held = await world.claim_one()
    if way == "expire":
        world.clock.pass_ms(LEASE_MS)
        await world.sweep()
    else:
        await getattr(world, way)(held)
    assert {record.task.status.is_final for record in await asyncio.gather(*waiting)} == {True}


async def test_a_waiting_reader_answers_the_task_as_it_is_when_its_time_is_over(world: World) -> None:
    task = await world.enqueue()
    assert (await world.get(task, wait_ms=20)).task.status is Status.PENDING


async def test_a_reader_of_an_ended_task_does_not_wait(world: World) -> None:
    task = await world.cancel(await world.enqueue())
    waiting = asyncio.create_task(world.get(task, wait_ms=WAIT_MS))
    await turns(world, done=[waiting])
    assert waiting.done()


async def test_a_reader_that_was_cancelled_leaves_nothing_behind(world: World) -> None:
    task = await world.enqueue()
    waiting = asyncio.create_task(world.get(task, wait_ms=WAIT_MS))
    await turns(world)
    waiting.cancel()
    await asyncio.wait([waiting])
    await world.complete(await world.claim_one())
    assert (await world.get(task, wait_ms=WAIT_MS)).task.status is Status.COMPLETED


async def test_waits_keep_to_their_limits(world: World) -> None:
    task = await world.enqueue("other")
    for bad in (-1, 30_001):
        with pytest.raises(InvalidRequest):
            await world.claim("work", wait_ms=bad)
    for bad in (-1, 60_001):
        with pytest.raises(InvalidRequest):
            await world.get(task, wait_ms=bad)


async def test_waiting_for_an_unknown_task_is_refused_at_once(world: World) -> None:
    task = await world.cancel(await world.enqueue())
    await world.purge(task)
    with pytest.raises(NotFound):
        await world.get(task, wait_ms=WAIT_MS)


async def test_a_waiter_learns_that_the_store_was_closed(world: World) -> None:
    [waiting] = await wait_in_line(world, 1, "work")
    await world.enqueue("other")
    await world.close()
    with pytest.raises(StoreError):
        await world.enqueue()
    waiting.cancel()
    await asyncio.wait([waiting])
