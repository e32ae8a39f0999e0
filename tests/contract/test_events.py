"""Every change is one event, in order and without gaps; the history of a task is the chain of its events."""

import pytest
from tests.contract.world import BACKOFF_MS, KEEP_DEAD_MS, LEASE_MS, World, ids

from codeq.domain.errors import InvalidRequest
from codeq.domain.ids import shard_of
from codeq.domain.task import Move, Status, Task


async def lively(world: World) -> list[Move]:
    """Makes every kind of move, and returns the moves in order."""
    task = await world.enqueue(idempotency_key="one")
    moves = [Move.ENQUEUE]
    await world.enqueue(idempotency_key="one")  # a replay is no change
    held = await world.claim_one()
    await world.heartbeat(held)  # neither is a heartbeat
    await world.nack(held, "first")
    moves += [Move.CLAIM, Move.NACK]
    world.clock.pass_ms(BACKOFF_MS)
    await world.abandon(await world.claim_one())
    moves += [Move.PROMOTE, Move.CLAIM, Move.ABANDON]
    held = await world.claim_one()
    world.clock.pass_ms(LEASE_MS)
    await world.sweep()
    moves += [Move.CLAIM, Move.EXPIRE]
    world.clock.pass_ms(BACKOFF_MS)
    await world.nack(await world.claim_one(), "last")
    moves += [Move.PROMOTE, Move.CLAIM, Move.NACK]
    await world.replay(task)
    await world.complete(await world.claim_one())
    return [*moves, Move.REPLAY, Move.CLAIM, Move.COMPLETE]


async def test_every_change_is_one_event_and_a_heartbeat_is_none(world: World) -> None:
    moves = await lively(world)
    events = [event for shard in (await world.events()).values() for event in shard]
    assert [event.move for event in events] == moves


async def test_events_are_numbered_without_gaps_from_one(world: World) -> None:
    await lively(world)
    await world.enqueue_many(700)
    await world.claim(limit=300)
    for shard, events in (await world.events()).items():
        assert [event.version for event in events] == list(range(1, len(events) + 1))
        assert {shard_of(event.id) for event in events} <= {shard}
        after = await world.store.events(shard, 0, 1)
        assert (after.first, after.next) == (1, len(events) + 1)


async def test_an_event_is_the_task_as_its_move_left_it(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    back = await world.nack(held, "why", delay_ms=5)
    events = (await world.events())[shard_of(held.id)]
    assert events[-2:] == [held, back]
    assert (back.status_before, back.previous) == (Status.IN_PROGRESS, held.version)
    assert await world.load(back) == back


async def test_the_last_event_of_each_task_is_its_record(world: World) -> None:
    await world.enqueue_many(10)
    for number, task in enumerate(await world.claim(limit=8)):
        await (world.complete, world.fail, world.nack, world.abandon, world.cancel)[number % 5](task)
    latest = {event.id: event for events in (await world.events()).values() for event in events}
    found = {task.id: task for task in await world.find_all()}
    assert latest == found


async def test_events_are_read_from_any_number_and_as_many_as_asked(world: World) -> None:
    await world.enqueue_many(900, "batch")
    for _ in range(9):
        await world.enqueue("single")
    for shard, events in (await world.events()).items():
        for start in (0, 1, 2, 100, 255, 256, 257, 258, len(events), len(events) + 1, len(events) + 100):
            for limit in (0, 1, 3, 300, 5_000):
                read = await world.store.events(shard, start, limit)
                assert read.events == events[max(0, start - 1) :][:limit]
                assert (read.first, read.next) == (1, len(events) + 1)


async def test_the_history_of_a_task_is_the_chain_of_its_moves(world: World) -> None:
    moves = await lively(world)
    await world.enqueue_many(5)
    [task] = [task for task in await world.find_all() if task.status is Status.COMPLETED]
    history = await world.history(task)
    assert [event.move for event in history] == moves
    assert [event.previous for event in history] == [0, *(event.version for event in history[:-1])]
    assert history[-1] == task
    assert {event.id for event in history} == {task.id}


async def test_a_purge_is_the_last_event_of_a_task(world: World) -> None:
    task = await world.cancel(await world.enqueue())
    await world.purge(task)
    last = (await world.events())[shard_of(task.id)][-1]
    assert (last.id, last.move, last.status, last.previous) == (task.id, Move.PURGE, Status.CANCELLED, task.version)


async def test_events_survive_reopening_and_their_numbers_go_on(world: World) -> None:
    await lively(world)
    before = await world.events()
    await world.reopen()
    assert await world.events() == before
    task = await world.enqueue()
    shard = shard_of(task.id)
    assert task.version == len(before[shard]) + 1


async def test_trimming_by_age_forgets_only_older_events(world: World) -> None:
    await _one_event_a_second(world, 12)
    cut_ms = world.clock.now_ms - 5_000
    before = await world.events()
    trimmed = await world.store.trim(before_ms=cut_ms, keep_max=10**9)
    after = await world.events()
    assert after == {
        shard: [event for event in events if event.updated_ms >= cut_ms] for shard, events in before.items()
    }
    assert trimmed == sum(len(before[shard]) - len(after[shard]) for shard in before)
    assert trimmed > 0


async def test_trimming_by_number_keeps_the_newest(world: World) -> None:
    await _one_event_a_second(world, 12)
    before = await world.events()
    await world.store.trim(before_ms=0, keep_max=2)
    assert await world.events() == {shard: events[-2:] for shard, events in before.items()}
    assert await world.store.trim(before_ms=0, keep_max=2) == 0


async def test_trimming_never_takes_an_event_that_should_be_kept(world: World) -> None:
    await world.enqueue_many(999)  # many events at once, which an engine may store together
    before = await world.events()
    for keep in (5_000, 200, 100, 1, 0):
        await world.store.trim(before_ms=0, keep_max=keep)
        after = await world.events()
        for shard, events in after.items():
            assert len(events) >= min(keep, len(before[shard]))
            assert events == before[shard][len(before[shard]) - len(events) :]


async def test_reads_behind_the_trim_start_at_the_first_event_left(world: World) -> None:
    await _one_event_a_second(world, 12)
    before = await world.events()
    await world.store.trim(before_ms=0, keep_max=2)
    for shard, events in before.items():
        read = await world.store.events(shard, 1, 100)
        assert read.first == events[-2].version
        assert read.events == events[-2:]
        assert read.next == events[-1].version + 1


async def test_the_history_of_trimmed_events_is_shorter(world: World) -> None:
    task = await world.enqueue()
    held = await world.claim_one()
    await world.abandon(held)
    world.clock.pass_ms(10)
    again = await world.claim_one()
    await world.store.trim(before_ms=world.clock.now_ms, keep_max=10**9)
    assert await world.history(task) == [again]
    await world.store.trim(before_ms=world.clock.now_ms + 1, keep_max=10**9)
    assert await world.history(task) == []
    assert (await world.load(task)).status is Status.IN_PROGRESS


async def test_numbers_go_on_after_everything_was_trimmed_and_reopened(world: World) -> None:
    queued = await world.enqueue_many(9)
    nexts = [(await world.store.events(shard, 0, 1)).next for shard in range(world.store.shards)]
    await world.store.trim(before_ms=0, keep_max=0)
    await world.store.flush()
    assert all(not events for events in (await world.events()).values())
    await world.reopen()
    assert [(await world.store.events(shard, 0, 1)).next for shard in range(world.store.shards)] == nexts
    task = await world.enqueue()
    assert task.version == nexts[shard_of(task.id)]
    assert sorted(ids(await world.drain())) == sorted([*ids(queued), task.id])


async def test_a_trim_survives_reopening(world: World) -> None:
    await _one_event_a_second(world, 12)
    await world.store.trim(before_ms=0, keep_max=2)
    before = await world.events()
    await world.reopen()
    assert await world.events() == before


async def test_tasks_outlive_their_trimmed_events(world: World) -> None:
    dead = await world.dead()
    await world.store.trim(before_ms=0, keep_max=0)
    assert (await world.load(dead)).is_dead
    await world.replay(dead)
    await world.complete(await world.claim_one())
    world.clock.pass_ms(KEEP_DEAD_MS)
    assert await world.sweep() == (0, 0, 1)


@pytest.mark.parametrize("shard", [-1, 3, 4096])
async def test_a_shard_that_does_not_exist_has_no_events_to_read(world: World, shard: int) -> None:
    await world.enqueue()
    with pytest.raises(InvalidRequest):
        await world.store.events(shard, 0, 10)


async def _one_event_a_second(world: World, number: int) -> list[Task]:
    tasks = []
    for _ in range(number):
        tasks.append(await world.enqueue())
        world.clock.pass_ms(1_000)
    return tasks
