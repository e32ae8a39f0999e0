"""A delayed task is not delivered before its time."""

from tests.contract.world import World, by_shard, ids

from codeq.domain.queue import Index
from codeq.domain.task import Move, Status
from codeq.usecases import sweep


async def test_a_delayed_task_is_claimed_at_its_millisecond_and_not_before(world: World) -> None:
    await world.enqueue(delay_ms=1_500)
    world.clock.pass_ms(1_499)
    assert await world.claim() == []
    world.clock.pass_ms(1)
    assert len(await world.claim()) == 1


async def test_a_time_to_run_at_is_kept_to_the_millisecond(world: World) -> None:
    task = await world.enqueue(run_at_ms=world.clock.now_ms + 123, delay_ms=1)
    assert task.visible_ms == world.clock.now_ms + 123
    world.clock.pass_ms(122)
    assert await world.claim() == []
    world.clock.pass_ms(1)
    assert ids(await world.claim()) == [task.id]


async def test_a_time_in_the_past_means_at_once(world: World) -> None:
    task = await world.enqueue(run_at_ms=world.clock.now_ms - 1)
    assert task.visible_ms == 0
    assert ids(await world.claim()) == [task.id]


async def test_a_delayed_task_is_invisible_whatever_its_priority(world: World) -> None:
    await world.enqueue(priority=9, delay_ms=1_000)
    plain = await world.enqueue(priority=0)
    assert ids(await world.drain()) == [plain.id]
    assert await world.counts() == (0, 1, 1, 0)


async def test_the_sweep_promotes_what_is_due_and_nothing_else(world: World) -> None:
    soon = await world.enqueue(delay_ms=100)
    late = await world.enqueue(delay_ms=101)
    world.clock.pass_ms(100)
    assert await world.sweep() == (1, 0, 0)
    promoted = await world.load(soon)
    assert (promoted.status, promoted.move, promoted.visible_ms) == (Status.PENDING, Move.PROMOTE, 0)
    assert (await world.load(late)).move is Move.ENQUEUE
    assert await world.counts() == (1, 1, 0, 0)
    assert await world.sweep() == (0, 0, 0)


async def test_a_claim_finds_what_is_due_without_any_sweep(world: World) -> None:
    queued = [await world.enqueue(delay_ms=10 * i) for i in range(1, 6)]
    world.clock.pass_ms(50)
    assert sorted(ids(await world.claim(limit=10))) == sorted(ids(queued))


async def test_delayed_tasks_become_visible_in_the_order_of_their_times(world: World) -> None:
    queued = [await world.enqueue(delay_ms=delay) for delay in (500, 100, 300, 200, 400, 900, 800, 700, 600)]
    world.clock.pass_ms(1_000)
    await world.sweep()
    wanted = sorted(queued, key=lambda task: task.visible_ms)
    assert by_shard(await world.drain()) == by_shard(wanted)


async def test_a_promoted_task_goes_to_the_back_of_its_priority(world: World) -> None:
    delayed = [await world.enqueue(delay_ms=10) for _ in range(3)]
    plain = [await world.enqueue() for _ in range(3)]
    world.clock.pass_ms(10)
    assert by_shard(await world.drain()) == by_shard(plain + delayed)


async def test_promotion_works_in_pieces_when_more_is_due_than_one_sweep_moves(world: World) -> None:
    queued = await world.enqueue_many(50, delay_ms=10)
    world.clock.pass_ms(10)
    moved = 0
    while piece := await sweep.promote_due(world.core, 7):
        moved += piece
    assert moved == 50
    assert sorted(ids(await world.drain(limit=10))) == sorted(ids(queued))


async def test_a_sooner_task_enqueued_after_a_later_one_is_not_overlooked(world: World) -> None:
    await world.enqueue(delay_ms=10_000)
    assert await world.sweep() == (0, 0, 0)
    soon = await world.enqueue(delay_ms=100)
    world.clock.pass_ms(100)
    assert ids(await world.claim()) == [soon.id]
    sooner_still = await world.enqueue(delay_ms=5)
    world.clock.pass_ms(5)
    assert await world.sweep() == (1, 0, 0)
    assert ids(await world.claim()) == [sooner_still.id]


async def test_due_answers_the_earliest_first(world: World) -> None:
    for delay in (500, 100, 300, 200, 400, 900, 800, 700, 600):
        await world.enqueue(delay_ms=delay)
    due = await world.store.due(Index.DELAYED, world.clock.now_ms + 650, 100)
    times = [task.visible_ms - world.clock.now_ms for task in due]
    assert times == [100, 200, 300, 400, 500, 600]


async def test_due_answers_no_more_than_was_asked_for(world: World) -> None:
    await world.enqueue_many(30, delay_ms=10)
    assert len(await world.store.due(Index.DELAYED, world.clock.now_ms + 10, 4)) == 4
