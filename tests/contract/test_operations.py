"""Operators cancel, replay and purge: one task, or all that match."""

import pytest
from tests.contract.engines import on_every_engine
from tests.contract.world import BACKOFF_MS, KEEP_MS, TENANT, World, ids, replay_each

from codeq.domain.errors import AlreadyFinal, CodeqError, NotDead, NotFinal, NotFound
from codeq.domain.queue import QueueKey
from codeq.domain.requests import Filter
from codeq.domain.task import Move, Status, Task
from codeq.usecases import cancel, purge, replay

pytestmark = on_every_engine


async def test_a_pending_task_is_cancelled_at_once(world: World) -> None:
    queued = await world.enqueue_many(3)
    cancelled = await world.cancel(queued[1])
    assert (cancelled.status, cancelled.ended_ms) == (Status.CANCELLED, world.clock.now_ms)
    assert cancelled.purge_ms == world.clock.now_ms + KEEP_MS
    assert await world.counts() == (2, 0, 0, 0)
    assert sorted(ids(await world.drain())) == sorted([queued[0].id, queued[2].id])


async def test_one_claim_finds_a_task_behind_thousands_of_cancelled_ones(world: World) -> None:
    queued = await world.enqueue_many(7000)
    last = await world.enqueue()
    for start in range(0, len(queued), 1000):
        await cancel.cancel(world.core, TENANT, ids(queued[start : start + 1000]))
    assert (await world.claim_one()).id == last.id


async def test_a_delayed_task_is_cancelled_at_once_and_never_promoted(world: World) -> None:
    task = await world.enqueue(delay_ms=1_000)
    await world.cancel(task)
    assert await world.counts() == (0, 0, 0, 0)
    world.clock.pass_ms(1_000)
    assert await world.sweep() == (0, 0, 0)
    assert await world.claim() == []


async def test_a_task_in_progress_is_cancelled_under_its_worker(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    assert (await world.cancel(held)).status is Status.CANCELLED
    assert await world.counts() == (0, 0, 0, 0)
    world.clock.pass_ms(10**6)
    assert (await world.sweep())[1] == 0  # its lease ended with it


async def test_an_ended_task_cannot_be_cancelled(world: World) -> None:
    await world.enqueue()
    done = (await world.complete(await world.claim_one())).task
    dead = await world.dead()
    cancelled = await world.cancel(await world.enqueue())
    for task in (done, dead, cancelled):
        with pytest.raises(AlreadyFinal):
            await world.cancel(task)


async def test_the_same_id_twice_in_one_call_is_cancelled_once(world: World) -> None:
    task = await world.enqueue()
    first, second = await cancel.cancel(world.core, TENANT, [task.id, task.id])
    assert isinstance(first, Task)
    assert isinstance(second, AlreadyFinal)


async def test_a_replayed_task_starts_afresh_and_keeps_its_tokens_and_history(world: World) -> None:
    dead = await world.dead()
    back = await world.replay(dead)
    assert (back.status, back.attempts, back.deliveries, back.lease_token) == (Status.PENDING, 0, 0, 1)
    assert (back.error, back.last_error, back.ended_ms, back.purge_ms) == (None, "killed", 0, 0)
    assert await world.counts() == (1, 0, 0, 0)
    held = await world.claim_one()
    assert (held.id, held.lease_token) == (dead.id, 2)
    moves = [event.move for event in await world.history(held)]
    assert moves == [Move.ENQUEUE, Move.CLAIM, Move.NACK, Move.REPLAY, Move.CLAIM]


async def test_only_dead_tasks_can_be_replayed(world: World) -> None:
    pending = await world.enqueue()
    delayed = await world.enqueue(delay_ms=10)
    held = await world.claim_one()
    failed = (await world.fail(held)).task
    await world.enqueue("other")
    done = (await world.complete(await world.claim_one("other"))).task
    cancelled = await world.cancel(await world.enqueue("other"))
    for task in (pending, delayed, failed, done, cancelled):
        with pytest.raises(NotDead):
            await world.replay(task)


async def test_a_replayed_task_can_die_again(world: World) -> None:
    dead = await world.dead()
    await world.replay(dead)
    again = await world.nack(await world.claim_one(), "again")
    assert again.is_dead
    assert again.last_error == "again"
    assert await world.counts() == (0, 0, 0, 1)
    assert ids(await world.find_all(Filter(index=None, status=Status.FAILED))) == [dead.id]


async def test_a_purged_task_is_gone(world: World) -> None:
    await world.enqueue(idempotency_key="k")
    done = (await world.complete(await world.claim_one(), b"1")).task
    purged = await world.purge(done)
    assert purged.move is Move.PURGE
    assert await world.is_gone(done)
    assert await world.store.get_records(TENANT, [done.id]) == [None]
    for verb in (world.get, world.history, world.purge, world.cancel, world.replay, world.complete):
        with pytest.raises(NotFound):
            await verb(done)
    assert await world.find_all() == []


async def test_a_task_that_has_not_ended_cannot_be_purged(world: World) -> None:
    pending = await world.enqueue()
    delayed = await world.enqueue(delay_ms=10_000)
    await world.enqueue("other")
    held = await world.claim_one("other")
    for task in (pending, delayed, held):
        with pytest.raises(NotFinal):
            await world.purge(task)


async def test_a_purged_dead_task_leaves_the_dead_letter_queue(world: World) -> None:
    dead = await world.dead()
    await world.purge(dead)
    assert await world.counts() == (0, 0, 0, 0)
    assert await world.store.counts(TENANT) == {}


async def test_all_dead_tasks_that_match_are_replayed(world: World) -> None:
    dead = [await world.dead(command) for command in ("a", "a", "b", "a")]
    swept = await replay.replay(world.core, TENANT, Filter(command="a"), limit=100)
    assert (swept.matched, swept.changed) == (3, 3)
    assert sorted(swept.ids) == sorted(task.id for task in dead if task.command == "a")
    assert await world.counts("a") == (3, 0, 0, 0)
    assert await world.counts("b") == (0, 0, 0, 1)


async def test_a_dry_run_counts_and_changes_nothing(world: World) -> None:
    for _ in range(3):
        await world.dead()
    for sweep in (replay.replay, purge.purge):
        swept = await sweep(world.core, TENANT, Filter(), limit=100, dry_run=True)
        assert (swept.matched, swept.changed) == (3, 0)
    assert await world.counts() == (0, 0, 0, 3)


async def test_no_more_than_the_limit_is_replayed_or_purged(world: World) -> None:
    for _ in range(7):
        await world.dead()
    assert (await replay.replay(world.core, TENANT, Filter(), limit=3)).changed == 3
    assert (await purge.purge(world.core, TENANT, Filter(), limit=2)).changed == 2
    assert await world.counts() == (3, 0, 0, 2)


async def test_dead_tasks_are_chosen_by_error_too(world: World) -> None:
    await world.enqueue_many(4, max_attempts=1)
    for number, task in enumerate(await world.claim(limit=4)):
        await world.nack(task, "odd one" if number % 2 else "even one")
    swept = await purge.purge(world.core, TENANT, Filter(error="odd"), limit=100)
    assert swept.changed == 2
    assert {task.last_error for task in await world.find_all()} == {"even one"}


async def test_a_batch_of_operations_answers_each_on_its_own(world: World) -> None:
    dead, pending = await world.dead(), await world.enqueue(delay_ms=BACKOFF_MS)
    answers = await replay_each(world.core, TENANT, [pending.id, dead.id, "nonsense"])
    assert [isinstance(answer, CodeqError) for answer in answers] == [True, False, True]


async def test_the_counts_of_all_queues_come_in_parts_and_are_those_of_each(world: World) -> None:
    await world.enqueue_many(3, "mail")
    await world.enqueue_many(2, "work", tenant="other")
    await world.claim("mail")
    await world.enqueue("work", delay_ms=1000)
    found = {queue: counts async for part in world.store.all_counts() for queue, counts in part.items()}
    assert found == await world.store.counts(None)
    assert {queue: (counts.pending, counts.delayed, counts.in_progress) for queue, counts in found.items()} == {
        QueueKey(TENANT, "mail"): (2, 0, 1),
        QueueKey("other", "work"): (2, 0, 0),
        QueueKey(TENANT, "work"): (0, 1, 0),
    }
    named = {queue async for part in world.store.all_counts("work") for queue in part}
    assert named == {QueueKey(TENANT, "work"), QueueKey("other", "work")}
