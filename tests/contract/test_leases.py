"""A task is leased to one worker at a time, until its lease expires."""

import asyncio

import msgspec
import pytest
from tests.contract.world import BACKOFF_MS, LEASE_MS, TENANT, World, accepted, holder_of, ids

from codeq.domain import lifecycle
from codeq.domain.errors import Cancelled, InvalidRequest, NotInProgress, NotOwner
from codeq.domain.queue import Index, OnExpiry
from codeq.domain.requests import Outcome
from codeq.domain.task import Holder, Move, Status
from codeq.usecases import cancel, heartbeat, nack, submit, sweep


async def test_a_lost_lease_expires_by_the_sweep_without_any_claim(world: World) -> None:
    task = await world.enqueue()
    await world.claim_one()
    world.clock.pass_ms(LEASE_MS - 1)
    assert await world.sweep() == (0, 0, 0)
    world.clock.pass_ms(1)
    assert await world.sweep() == (0, 1, 0)
    back = await world.load(task)
    assert (back.status, back.move, back.attempts, back.last_error) == (
        Status.PENDING, Move.EXPIRE, 1, "LEASE_EXPIRED",
    )  # fmt: skip
    assert (back.visible_ms, back.worker, back.lease_until_ms) == (world.clock.now_ms + BACKOFF_MS, None, 0)
    assert await world.counts() == (0, 1, 0, 0)


async def test_a_lost_lease_is_found_before_a_claim_without_any_sweep(world: World) -> None:
    await world.set_policy("work", msgspec.structs.replace(world.defaults, on_expiry=OnExpiry.IMMEDIATE))
    task = await world.enqueue()
    await world.claim_one(worker="lost")
    world.clock.pass_ms(LEASE_MS)
    [again] = await world.claim("work", worker="next")
    assert (again.id, again.worker, again.lease_token, again.attempts) == (task.id, "next", 2, 1)


async def test_expired_leases_wait_for_their_backoff_unless_the_queue_says_immediate(world: World) -> None:
    await world.set_policy("now", msgspec.structs.replace(world.defaults, on_expiry=OnExpiry.IMMEDIATE))
    for command in ("now", "later"):
        await world.enqueue(command)
        await world.claim_one(command)
    world.clock.pass_ms(LEASE_MS)
    await world.sweep()
    assert await world.counts("now") == (1, 0, 0, 0)
    assert await world.counts("later") == (0, 1, 0, 0)


async def test_a_heartbeat_extends_the_lease(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    world.clock.pass_ms(LEASE_MS - 1)
    assert (await world.heartbeat(held)).lease_until_ms == world.clock.now_ms + LEASE_MS
    world.clock.pass_ms(LEASE_MS - 1)
    assert await world.sweep() == (0, 0, 0)
    world.clock.pass_ms(1)
    assert await world.sweep() == (0, 1, 0)


async def test_a_heartbeat_never_shortens_a_lease(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one(lease_ms=100_000)
    assert (await world.heartbeat(held, extend_ms=100)).lease_until_ms == held.lease_until_ms
    world.clock.pass_ms(99_999)
    assert await world.sweep() == (0, 0, 0)


async def test_a_heartbeat_may_ask_for_its_own_length(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one(lease_ms=1_000)
    assert (await world.heartbeat(held, extend_ms=5_000)).lease_until_ms == world.clock.now_ms + 5_000
    assert (await world.load(held)).lease_until_ms == world.clock.now_ms + 5_000
    for bad in (0, 99, -1, 10**12):
        with pytest.raises(InvalidRequest):
            await world.heartbeat(held, extend_ms=bad)


async def test_a_heartbeat_of_another_worker_or_an_older_token_is_refused(world: World) -> None:
    task = await world.enqueue()
    first = await world.claim_one(worker="ann")
    await world.abandon(first)
    second = await world.claim_one(worker="ann")
    for wrong in (Holder("bob"), Holder("bob", 2), Holder("ann", 1), Holder("ann", 3)):
        with pytest.raises(NotOwner):
            await heartbeat.heartbeat(world.core, TENANT, task.id, wrong)
    await heartbeat.heartbeat(world.core, TENANT, task.id, Holder("ann"))  # the token is optional
    assert (await world.load(task)).lease_token == second.lease_token


async def test_a_late_worker_cannot_end_or_give_back_a_task_that_another_holds(world: World) -> None:
    task = await world.enqueue()
    late = await world.claim_one(worker="late")
    world.clock.pass_ms(LEASE_MS)
    await world.sweep()
    for verb in (world.complete, world.fail, world.nack, world.abandon, world.heartbeat):
        with pytest.raises(NotInProgress):  # it has no lease
            await verb(late)
    world.clock.pass_ms(BACKOFF_MS)
    newer = await world.claim_one(worker="newer")
    for verb in (world.complete, world.fail, world.nack, world.abandon, world.heartbeat):
        with pytest.raises(NotOwner):
            await verb(late)
    assert (await world.load(task)).worker == "newer"
    await world.complete(newer, b'"newer"')
    for verb in (world.complete, world.fail, world.nack, world.heartbeat):
        with pytest.raises(NotOwner):  # ended by another delivery
            await verb(late)
    assert (await world.get(task)).result == b'"newer"'


async def test_an_older_token_of_the_same_worker_is_late_too(world: World) -> None:
    await world.enqueue()
    first = await world.claim_one(worker="ann")
    await world.nack(first, delay_ms=0)
    second = await world.claim_one(worker="ann")
    with pytest.raises(NotOwner):
        await world.complete(first)
    await world.complete(second)


async def test_the_same_submit_again_answers_the_stored_result(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    first = await world.complete(held, b"1")
    world.clock.pass_ms(1_000)
    again = await world.complete(held, b"2")
    assert (again.task, again.result) == (first.task, b"1")
    with pytest.raises(NotInProgress):
        await world.fail(held)
    assert (await world.get(held)).result == b"1"


async def test_the_same_failure_again_answers_the_stored_one(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    first = await world.fail(held, "first", b"1")
    again = await world.fail(held, "second")
    assert (again.task, again.result) == (first.task, b"1")
    with pytest.raises(NotInProgress):
        await world.complete(held)


async def test_the_same_submit_twice_in_one_batch_ends_the_task_once(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    outcome = Outcome(task_id=held.id, holder=holder_of(held), status=Status.COMPLETED, result=b"1")
    one, two = [accepted(answer) for answer in await submit.submit(world.core, TENANT, [outcome, outcome])]
    assert one.task.version == two.task.version
    assert one.result == two.result == b"1"
    assert [event.move for event in await world.history(held)] == [Move.ENQUEUE, Move.CLAIM, Move.COMPLETE]


async def test_a_batch_of_results_answers_each_on_its_own(world: World) -> None:
    await world.enqueue_many(4)
    held = await world.claim(limit=4)
    await world.abandon(held[1])
    outcomes = [Outcome(task_id=task.id, holder=holder_of(task), status=Status.COMPLETED) for task in held]
    answers = await submit.submit(world.core, TENANT, outcomes)
    assert [isinstance(answer, NotInProgress) for answer in answers] == [False, True, False, False]
    assert await world.counts() == (1, 0, 0, 0)


async def test_a_worker_ends_a_task_as_completed_or_failed_only(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    for status in (Status.PENDING, Status.IN_PROGRESS, Status.CANCELLED):
        outcome = Outcome(task_id=held.id, holder=holder_of(held), status=status)
        [answer] = await submit.submit(world.core, TENANT, [outcome])
        assert isinstance(answer, InvalidRequest)
    with pytest.raises(InvalidRequest):
        await world.fail(held, "")
    assert (await world.load(held)).status is Status.IN_PROGRESS


async def test_a_nack_sent_again_is_answered_as_the_first_and_counts_once(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    first = await world.nack(held, "busy")
    world.clock.pass_ms(1_000)
    await world.reopen()
    assert await world.nack(held, "busy") == first
    world.clock.pass_ms(BACKOFF_MS)
    await world.sweep()
    promoted = await world.nack(held, "busy")
    assert (promoted.move, promoted.attempts, promoted.last_error) == (Move.PROMOTE, 1, "busy")
    moves = [event.move for event in await world.history(held)]
    assert moves == [Move.ENQUEUE, Move.CLAIM, Move.NACK, Move.PROMOTE]
    await world.claim_one()
    with pytest.raises(NotOwner):  # delivered again
        await world.nack(held, "busy")


async def test_the_last_nack_sent_again_is_answered_with_the_dead_task(world: World) -> None:
    await world.enqueue(max_attempts=1)
    held = await world.claim_one()
    dead = await world.nack(held, "hopeless")
    assert dead.is_dead
    assert await world.nack(held, "hopeless") == dead
    with pytest.raises(NotOwner):
        await nack.nack(world.core, TENANT, held.id, Holder("another", held.lease_token))


async def test_an_abandon_sent_again_is_answered_as_the_first(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    assert await world.abandon(held) == await world.abandon(held)
    assert [event.move for event in await world.history(held)] == [Move.ENQUEUE, Move.CLAIM, Move.ABANDON]
    for verb in (world.nack, world.complete):
        with pytest.raises(NotInProgress):  # another verb is no repeat
            await verb(held)


async def test_without_its_token_a_nack_sent_again_is_refused(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    holder = Holder(held.worker or "", None)
    await nack.nack(world.core, TENANT, held.id, holder)
    with pytest.raises(NotInProgress):
        await nack.nack(world.core, TENANT, held.id, holder)


async def test_a_nack_after_the_lease_has_expired_is_late_also_once_the_task_is_promoted(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    world.clock.pass_ms(LEASE_MS)
    await world.sweep()
    world.clock.pass_ms(BACKOFF_MS)
    await world.sweep()
    assert (await world.load(held)).move is Move.PROMOTE
    with pytest.raises(NotInProgress):
        await world.nack(held)


async def test_a_delayed_task_that_was_never_delivered_has_no_nack_to_repeat(world: World) -> None:
    task = await world.enqueue(delay_ms=10)
    world.clock.pass_ms(10)
    await world.sweep()
    with pytest.raises(NotInProgress):
        await nack.nack(world.core, TENANT, task.id, Holder("worker", 0))


async def test_a_task_that_nobody_holds_cannot_be_ended(world: World) -> None:
    task = await world.enqueue()
    for verb in (world.complete, world.fail, world.nack, world.abandon, world.heartbeat):
        with pytest.raises(NotInProgress):
            await verb(task)


async def test_a_cancelled_task_tells_its_worker_so(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    await world.cancel(held)
    for verb in (world.heartbeat, world.complete, world.fail, world.nack, world.abandon):
        with pytest.raises(Cancelled):
            await verb(held)


async def test_a_stale_change_commits_as_none_and_changes_nothing(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    now_ms = world.clock.now_ms
    stale = lifecycle.complete(held, holder_of(held), now_ms, retention_ms=1_000, result=b"late")
    await world.abandon(held)
    before, events = await world.load(held), await world.events()
    assert await world.store.commit([stale]) == [None]
    assert await world.load(held) == before
    assert await world.counts() == (1, 0, 0, 0)
    assert await world.events() == events


async def test_of_two_changes_of_one_task_in_a_batch_the_first_wins(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    now_ms = world.clock.now_ms
    done = lifecycle.complete(held, holder_of(held), now_ms, retention_ms=1_000)
    gone = lifecycle.cancel(held, now_ms, retention_ms=1_000)
    first, second = await world.store.commit([done, gone])
    assert (first, second) == (done.after, None)
    assert (await world.load(held)).status is Status.COMPLETED


async def test_of_two_calls_that_make_the_same_change_in_the_same_millisecond_one_is_refused(world: World) -> None:
    task = await world.enqueue()
    first, second = (lifecycle.cancel(task, world.clock.now_ms, retention_ms=1_000) for _ in range(2))
    assert await world.store.commit([first]) == [first.after]
    events = await world.events()
    assert await world.store.commit([second]) == [None]
    assert await world.events() == events


async def test_two_results_of_one_delivery_in_the_same_millisecond_are_answered_with_the_stored_one(
    world: World,
) -> None:
    await world.enqueue()
    held = await world.claim_one()
    answers = await asyncio.gather(*(world.complete(held, result) for result in (b'"one"', b'"two"', b'"three"')))
    assert {answer.result for answer in answers} == {(await world.get(held)).result}
    moves = [event.move for events in (await world.events()).values() for event in events]
    assert moves == [Move.ENQUEUE, Move.CLAIM, Move.COMPLETE]


async def test_of_cancels_in_the_same_millisecond_one_is_accepted(world: World) -> None:
    task = await world.enqueue()
    answers = await asyncio.gather(*(cancel.cancel(world.core, TENANT, [task.id]) for _ in range(3)))
    assert sorted(type(answer).__name__ for [answer] in answers) == ["AlreadyFinal", "AlreadyFinal", "Task"]


async def test_a_stale_heartbeat_extends_nothing(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    beat = lifecycle.heartbeat(held, holder_of(held), world.clock.now_ms, lease_ms=10**6)
    await world.abandon(held)
    assert await world.store.commit([beat]) == [None]
    assert (await world.load(held)).status is Status.PENDING
    again = await world.claim_one()
    assert again.lease_until_ms == world.clock.now_ms + LEASE_MS


async def test_a_stale_change_of_a_purged_task_commits_as_none(world: World) -> None:
    task = await world.enqueue()
    cancelled = await world.cancel(task)
    purge = lifecycle.purge(cancelled, world.clock.now_ms)
    assert await world.store.commit([purge]) == [purge.after]
    assert await world.store.commit([lifecycle.purge(cancelled, world.clock.now_ms)]) == [None]


async def test_many_leases_expire_in_pieces_and_none_is_forgotten(world: World) -> None:
    queued = await world.enqueue_many(60)
    await world.claim(limit=60)
    world.clock.pass_ms(LEASE_MS)
    while await sweep.expire_leases(world.core, 7):
        pass
    assert await world.counts() == (0, 60, 0, 0)
    assert {(await world.load(task)).attempts for task in queued} == {1}


async def test_only_the_leases_that_ran_out_expire(world: World) -> None:
    await world.enqueue_many(3)
    short, long, beating = [await world.claim_one(lease_ms=ms) for ms in (1_000, 10_000, 1_000)]
    await world.heartbeat(beating, extend_ms=8_000)
    world.clock.pass_ms(1_000)
    assert await world.sweep() == (0, 1, 0)
    assert (await world.load(short)).status is Status.PENDING
    assert {(await world.load(task)).status for task in (long, beating)} == {Status.IN_PROGRESS}


async def test_due_leases_are_answered_earliest_first_after_heartbeats_too(world: World) -> None:
    await world.enqueue_many(3)
    held = [await world.claim_one(lease_ms=ms) for ms in (1_000, 1_500, 1_800)]
    await world.heartbeat(held[0], extend_ms=2_000)
    due = await world.store.due(Index.IN_PROGRESS, world.clock.now_ms + 5_000, 10)
    assert ids(due) == ids([held[1], held[2], held[0]])


@pytest.mark.parametrize("move", [Move.EXPIRE, Move.ABANDON])
async def test_an_end_of_a_lease_decided_before_a_heartbeat_does_not_end_the_extended_lease(
    world: World, move: Move
) -> None:
    """So a claim sent again, which extends the lease, keeps what the first call is about to hand back."""
    await world.enqueue()
    held = await world.claim_one()
    if move is Move.EXPIRE:
        stale = lifecycle.expire(held, held.lease_until_ms, retry_ms=0, retention_ms=1)
    else:
        stale = lifecycle.abandon(held, holder_of(held), world.clock(), retention_ms=1)
    await world.heartbeat(held, extend_ms=2 * LEASE_MS)
    assert await world.store.commit([stale]) == [None]
    assert (await world.load(held)).status is Status.IN_PROGRESS
    await world.complete(held)
