"""A failed delivery is retried a fixed number of times, and then dead-lettered."""

import msgspec
import pytest
from tests.contract.world import BACKOFF_MS, KEEP_DEAD_MS, LEASE_MS, MAX_ATTEMPTS, World, by_shard, ids

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import InvalidRequest
from codeq.domain.task import Move, Status


async def test_a_nacked_task_comes_back_after_its_backoff(world: World) -> None:
    await world.enqueue()
    back = await world.nack(await world.claim_one(), "no luck")
    assert (back.status, back.attempts, back.last_error, back.error) == (Status.PENDING, 1, "no luck", None)
    assert back.visible_ms == world.clock.now_ms + BACKOFF_MS
    assert await world.counts() == (0, 1, 0, 0)
    world.clock.pass_ms(BACKOFF_MS - 1)
    assert await world.claim() == []
    world.clock.pass_ms(1)
    assert (await world.claim_one()).lease_token == 2


async def test_a_nack_may_name_its_own_delay(world: World) -> None:
    await world.enqueue()
    back = await world.nack(await world.claim_one(), delay_ms=123)
    assert back.visible_ms == world.clock.now_ms + 123


async def test_a_nack_with_delay_zero_goes_to_the_back_of_the_queue_now(world: World) -> None:
    queued = [await world.enqueue() for _ in range(6)]
    held = await world.claim_one()
    back = await world.nack(held, delay_ms=0)
    assert (back.status, back.visible_ms) == (Status.PENDING, 0)
    assert await world.counts() == (6, 0, 0, 0)
    wanted = [task for task in queued if task.id != held.id] + [held]
    assert by_shard(await world.drain()) == by_shard(wanted)


async def test_a_task_may_bring_its_own_backoff(world: World) -> None:
    await world.enqueue(backoff=Backoff(BackoffKind.LINEAR, 1_000), max_attempts=5)
    for attempt in (1, 2, 3):
        back = await world.nack(await world.claim_one())
        assert back.visible_ms == world.clock.now_ms + 1_000 * attempt
        world.clock.pass_ms(1_000 * attempt)


@pytest.mark.parametrize("attempts", [1, 2, 5])
async def test_max_attempts_is_exactly_the_number_of_deliveries(world: World, attempts: int) -> None:
    task = await world.enqueue(max_attempts=attempts)
    deliveries = 0
    while taken := await world.claim():
        deliveries += 1
        await world.nack(taken[0], f"try {deliveries}", delay_ms=0)
    assert deliveries == attempts
    dead = await world.load(task)
    assert (dead.status, dead.error, dead.last_error) == (Status.FAILED, "MAX_ATTEMPTS", f"try {attempts}")
    assert (dead.attempts, dead.deliveries, dead.is_dead) == (attempts, attempts, True)
    assert dead.purge_ms == world.clock.now_ms + KEEP_DEAD_MS
    assert await world.counts() == (0, 0, 0, 1)


async def test_expired_leases_count_as_attempts_and_end_in_the_dead_letter_queue(world: World) -> None:
    task = await world.enqueue()
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert (await world.claim_one()).deliveries == attempt
        world.clock.pass_ms(LEASE_MS)
        await world.sweep()
        world.clock.pass_ms(BACKOFF_MS)
    assert await world.claim() == []
    dead = await world.load(task)
    assert (dead.status, dead.move, dead.error, dead.last_error) == (
        Status.FAILED, Move.EXPIRE, "MAX_ATTEMPTS", "LEASE_EXPIRED",
    )  # fmt: skip
    assert await world.counts() == (0, 0, 0, 1)


async def test_an_abandoned_task_is_back_at_once_and_no_attempt_is_counted(world: World) -> None:
    queued = [await world.enqueue(max_attempts=1) for _ in range(6)]
    held = await world.claim_one()
    back = await world.abandon(held)
    assert (back.status, back.attempts, back.deliveries, back.visible_ms) == (Status.PENDING, 0, 1, 0)
    wanted = [task for task in queued if task.id != held.id] + [held]
    assert by_shard(await world.drain()) == by_shard(wanted)


async def test_a_task_handed_back_too_often_is_dead(world: World) -> None:
    await world.set_policy("work", msgspec.structs.replace(world.defaults, max_deliveries=4))
    task = await world.enqueue()
    deliveries = 0
    while taken := await world.claim():
        deliveries += 1
        await world.abandon(taken[0])
    dead = await world.load(task)
    assert deliveries == 4
    assert (dead.status, dead.error, dead.attempts, dead.is_dead) == (Status.FAILED, "MAX_DELIVERIES", 0, True)
    assert await world.counts() == (0, 0, 0, 1)


async def test_the_last_reason_is_kept_through_later_moves(world: World) -> None:
    await world.enqueue()
    await world.nack(await world.claim_one(), "the reason", delay_ms=0)
    held = await world.claim_one()
    assert held.last_error == "the reason"
    done = await world.complete(held)
    assert (done.task.last_error, done.task.error) == ("the reason", None)


async def test_an_overlong_reason_is_cut_and_a_bad_delay_refused(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    for bad in (-1, 10**12):
        with pytest.raises(InvalidRequest):
            await world.nack(held, delay_ms=bad)
    back = await world.nack(held, "x" * 100_000)
    assert back.last_error == "x" * 2_000


async def test_a_worker_s_failure_is_not_retried_even_with_attempts_left(world: World) -> None:
    task = await world.enqueue(max_attempts=5)
    await world.fail(await world.claim_one())
    world.clock.pass_ms(BACKOFF_MS)
    assert await world.claim() == []
    assert not (await world.load(task)).is_dead


async def test_retried_tasks_keep_their_priority(world: World) -> None:
    high = await world.enqueue(priority=7)
    await world.nack(await world.claim_one(), delay_ms=10)
    await world.enqueue_many(5, priority=3)
    world.clock.pass_ms(10)
    await world.sweep()
    taken = await world.claim(limit=10)
    assert next(task for task in taken if task.id == high.id).priority == 7
    if world.store.shards == 1:
        assert taken[0].id == high.id
    assert len(set(ids(taken))) == 6
