"""Only ended tasks are purged, counted from their end, with all that belongs to them."""

import msgspec
from tests.contract.engines import on_every_engine
from tests.contract.world import BACKOFF_MS, KEEP_DEAD_MS, KEEP_MS, LEASE_MS, TENANT, World

from codeq.domain.requests import Filter
from codeq.domain.task import Status
from codeq.usecases import sweep

pytestmark = on_every_engine


async def test_retention_is_counted_from_the_end_of_the_task(world: World) -> None:
    await world.enqueue()
    world.clock.pass_ms(10 * KEEP_MS)  # a long wait in the queue does not count
    done = (await world.complete(await world.claim_one())).task
    world.clock.pass_ms(KEEP_MS - 1)
    assert await world.sweep() == (0, 0, 0)
    assert not await world.is_gone(done)
    world.clock.pass_ms(1)
    assert await world.sweep() == (0, 0, 1)
    assert await world.is_gone(done)


async def test_every_way_of_ending_is_purged_in_its_time(world: World) -> None:
    await world.enqueue_many(2)
    one, two = await world.claim(limit=2)
    ended = [(await world.complete(one)).task, (await world.fail(two)).task, await world.cancel(await world.enqueue())]
    world.clock.pass_ms(KEEP_MS)
    assert await world.sweep() == (0, 0, 3)
    assert [await world.is_gone(task) for task in ended] == [True, True, True]
    assert await world.find_all() == []


async def test_dead_tasks_have_a_setting_of_their_own(world: World) -> None:
    dead = await world.dead()
    world.clock.pass_ms(KEEP_DEAD_MS - 1)
    assert await world.sweep() == (0, 0, 0)
    assert await world.counts() == (0, 0, 0, 1)
    world.clock.pass_ms(1)
    assert await world.sweep() == (0, 0, 1)
    assert await world.is_gone(dead)
    assert await world.counts() == (0, 0, 0, 0)


async def test_retention_is_a_rule_of_the_queue(world: World) -> None:
    await world.set_policy("short", msgspec.structs.replace(world.defaults, retention_ms=1_000))
    short, long = await world.cancel(await world.enqueue("short")), await world.cancel(await world.enqueue("long"))
    world.clock.pass_ms(1_000)
    await world.sweep()
    assert await world.is_gone(short)
    assert not await world.is_gone(long)


async def test_record_body_result_and_key_go_together(world: World) -> None:
    task = await world.enqueue(idempotency_key="k", payload=b"1")
    await world.complete(await world.claim_one(), b"2")
    world.clock.pass_ms(KEEP_MS)
    await world.sweep()
    assert await world.store.get_tasks(TENANT, [task.id]) == [None]
    assert await world.store.get_records(TENANT, [task.id]) == [None]
    fresh = await world.enqueue(idempotency_key="k", payload=b"3")
    assert fresh.id != task.id
    await world.reopen()
    assert await world.is_gone(task)
    assert (await world.get(fresh)).body.payload == b"3"


async def test_tasks_that_have_not_ended_are_never_purged_however_old(world: World) -> None:
    pending = await world.enqueue("pending")
    delayed = await world.enqueue("delayed", delay_ms=300 * 86_400_000)
    await world.enqueue("held")
    held = await world.claim_one("held", lease_ms=12 * 3_600_000)
    for _ in range(10):
        world.clock.pass_ms(2 * KEEP_DEAD_MS)
        await world.heartbeat(held, extend_ms=12 * 3_600_000)
        assert await world.sweep() == (0, 0, 0)
    assert (await world.load(pending)).status is Status.PENDING
    assert (await world.load(delayed)).visible_ms == delayed.visible_ms
    assert (await world.load(held)).status is Status.IN_PROGRESS
    assert len(await world.claim("pending")) == 1


async def test_a_replayed_task_is_not_purged_by_its_first_death(world: World) -> None:
    dead = await world.dead()
    await world.replay(dead)
    world.clock.pass_ms(KEEP_DEAD_MS)
    assert await world.sweep() == (0, 0, 0)
    again = await world.nack(await world.claim_one())
    assert again.is_dead
    world.clock.pass_ms(KEEP_DEAD_MS - 1)
    assert await world.sweep() == (0, 0, 0)
    world.clock.pass_ms(1)
    assert await world.sweep() == (0, 0, 1)


async def test_many_ended_tasks_are_purged_in_pieces_and_none_is_forgotten(world: World) -> None:
    await world.enqueue_many(60)
    for task in await world.claim(limit=60):
        await world.complete(task)
    world.clock.pass_ms(KEEP_MS)
    purged = 0
    while piece := await sweep.purge_finished(world.core, 7):
        purged += piece
    assert purged == 60
    assert await world.find_all() == []


async def test_a_task_purged_by_hand_is_not_purged_again(world: World) -> None:
    first, second = [await world.cancel(task) for task in await world.enqueue_many(2)]
    await world.purge(first)
    world.clock.pass_ms(KEEP_MS)
    assert await world.sweep() == (0, 0, 1)
    assert await world.is_gone(second)
    assert await world.sweep() == (0, 0, 0)


async def test_retention_goes_on_after_reopening(world: World) -> None:
    await world.cancel(await world.enqueue())
    await world.dead()
    await world.reopen()
    world.clock.pass_ms(KEEP_MS)
    assert await world.sweep() == (0, 0, 1)
    await world.reopen()
    world.clock.pass_ms(KEEP_DEAD_MS - KEEP_MS)
    assert await world.sweep() == (0, 0, 1)
    assert await world.find_all(Filter()) == []


async def test_counts_are_exact_after_every_kind_of_move(world: World) -> None:
    await world.enqueue_many(8)
    delayed = await world.enqueue_many(2, delay_ms=1_000)
    assert await world.counts() == (8, 2, 0, 0)
    held = await world.claim(limit=6)
    assert await world.counts() == (2, 2, 6, 0)
    await world.complete(held[0])
    await world.fail(held[1])
    assert await world.counts() == (2, 2, 4, 0)
    await world.nack(held[2])
    await world.nack(held[3], delay_ms=0)
    assert await world.counts() == (3, 3, 2, 0)
    await world.abandon(held[4])
    await world.cancel(held[5])
    await world.cancel(delayed[0])
    assert await world.counts() == (4, 2, 0, 0)
    world.clock.pass_ms(BACKOFF_MS)
    await world.sweep()
    assert await world.counts() == (6, 0, 0, 0)
    dying = await world.claim(limit=6)
    for task in dying:
        await world.heartbeat(task)
    world.clock.pass_ms(LEASE_MS)
    await world.sweep()
    assert await world.counts() == (0, 6, 0, 0)
    world.clock.pass_ms(BACKOFF_MS)
    for task in await world.claim(limit=6):
        await world.kill(task) if task.attempts == 1 else await world.nack(task)
    pending, waiting, running, dead = await world.counts()
    assert (pending + waiting, running) == (0, 0)
    assert dead == 6
    for task in await world.find_all(Filter(status=Status.FAILED), limit=3):
        if task.is_dead:
            await world.replay(task)
    assert await world.counts() == (6, 0, 0, 0)
    for task in await world.find_all(Filter(status=Status.PENDING)):
        await world.cancel(task)
    assert await world.store.counts(None) == {}
    world.clock.pass_ms(KEEP_DEAD_MS)
    await world.sweep()
    assert await world.find_all() == []
    assert await world.store.counts(None) == {}


async def test_the_age_of_a_queue_is_that_of_its_longest_waiting_task(world: World) -> None:
    first_ms = world.clock.now_ms
    await world.enqueue(priority=0)
    world.clock.pass_ms(100)
    await world.enqueue(priority=9)
    world.clock.pass_ms(100)
    await world.enqueue(priority=0)
    for _ in range(2):
        [counts] = (await world.store.counts(TENANT, ages=True)).values()
        assert (counts.pending, counts.oldest_ms) == (3, first_ms)
        await world.reopen()
    [plain] = (await world.store.counts(TENANT)).values()
    assert plain.oldest_ms is None
    await world.claim(limit=3)
    [counts] = (await world.store.counts(TENANT, ages=True)).values()
    assert (counts.in_progress, counts.oldest_ms) == (3, None)
