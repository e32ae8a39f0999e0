"""The rules of the queue (domain/lifecycle.py) that concern one task and one move."""

from collections.abc import Callable

import msgspec
import pytest

from codeq.domain import lifecycle
from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import (
    AlreadyFinal,
    Cancelled,
    CodeqError,
    NotDead,
    NotFinal,
    NotInProgress,
    NotOwner,
    StaleTask,
)
from codeq.domain.queue import EffectivePolicy, Index
from codeq.domain.requests import NewTask
from codeq.domain.task import Body, Change, Holder, Move, Status, Task

ID = "0192f0c1-2d3e-7abc-8def-0123456789ab"
NOW = 1_700_000_000_000
LEASE = 30_000
KEEP = 86_400_000
PAYLOAD = b"seventeen bytes.."
ANN, BOB = "ann", "bob"


def new(*, visible_ms: int = 0, max_attempts: int = 5, max_deliveries: int = 100) -> Task:
    return enqueue(visible_ms=visible_ms, max_attempts=max_attempts, max_deliveries=max_deliveries).after


def enqueue(*, visible_ms: int = 0, max_attempts: int = 5, max_deliveries: int = 100) -> Change:
    sent = NewTask(
        command="mail", payload=PAYLOAD, priority=3, run_at_ms=visible_ms, max_attempts=max_attempts,
        backoff=Backoff(BackoffKind.FIXED), webhook="https://example.org", trace_parent="00-4bf92f35",
    )  # fmt: skip
    return lifecycle.enqueue(sent, ID, "acme", now_ms=NOW, policy=EffectivePolicy(max_deliveries=max_deliveries))


def delayed() -> Task:
    return new(visible_ms=NOW + 5_000)


def claimed(task: Task | None = None, worker: str = ANN) -> Task:
    return lifecycle.claim(task or new(), worker, NOW, lease_ms=LEASE).after


def holder(task: Task) -> Holder:
    return Holder(task.worker or "", task.lease_token)


def nack(task: Task, *, retry_ms: int = 1_000, reason: str = "boom", now_ms: int = NOW) -> Task:
    return lifecycle.nack(task, holder(task), now_ms, retry_ms=retry_ms, reason=reason, retention_ms=KEEP).after


def expire(task: Task, *, retry_ms: int = 0) -> Task:
    return lifecycle.expire(task, task.lease_until_ms, retry_ms=retry_ms, retention_ms=KEEP).after


def abandon(task: Task) -> Task:
    return lifecycle.abandon(task, holder(task), NOW, retention_ms=KEEP).after


def complete(task: Task) -> Task:
    return lifecycle.complete(task, holder(task), NOW + 7, retention_ms=KEEP).after


def fail(task: Task) -> Task:
    return lifecycle.fail(task, holder(task), NOW + 7, error="bad input", retention_ms=KEEP).after


def cancel(task: Task) -> Task:
    return lifecycle.cancel(task, NOW + 7, retention_ms=KEEP).after


def dead() -> Task:
    return nack(claimed(new(max_attempts=1)))


HELD_MOVES: dict[str, Callable[[Task, Holder], Change]] = {
    "heartbeat": lambda task, who: lifecycle.heartbeat(task, who, NOW, lease_ms=LEASE),
    "complete": lambda task, who: lifecycle.complete(task, who, NOW, retention_ms=KEEP),
    "fail": lambda task, who: lifecycle.fail(task, who, NOW, error="x", retention_ms=KEEP),
    "nack": lambda task, who: lifecycle.nack(task, who, NOW, retry_ms=0, reason="x", retention_ms=KEEP),
    "abandon": lambda task, who: lifecycle.abandon(task, who, NOW, retention_ms=KEEP),
}
every_held_move = pytest.mark.parametrize("move", HELD_MOVES.values(), ids=HELD_MOVES.keys())


def refusal(move: Callable[[Task, Holder], Change], task: Task, who: Holder) -> type[CodeqError]:
    with pytest.raises(CodeqError) as caught:
        move(task, who)
    return caught.type


# -- enqueue -----------------------------------------------------------------------------------------------------


def test_a_new_task_is_pending_and_has_not_been_tried() -> None:
    task = new()
    assert task.status is Status.PENDING
    assert (task.attempts, task.deliveries, task.lease_token, task.version) == (0, 0, 0, 0)
    assert (task.worker, task.lease_until_ms, task.error, task.ended_ms) == (None, 0, None, 0)
    assert (task.created_ms, task.updated_ms, task.status_before) == (NOW, NOW, None)
    assert (task.payload_bytes, task.trace_id, task.has_webhook, task.priority) == (17, "4bf92f35", True, 3)


def test_enqueue_is_a_change_from_nothing_and_carries_the_body() -> None:
    body = Body(PAYLOAD, webhook="https://example.org", trace_parent="00-4bf92f35")
    assert enqueue() == Change(Move.ENQUEUE, None, new(), body)


def test_what_a_producer_leaves_open_follows_the_policy_of_the_queue() -> None:
    policy = EffectivePolicy(max_attempts=7, max_deliveries=9)
    task = lifecycle.enqueue(NewTask(command="mail", delay_ms=5), ID, "acme", now_ms=NOW, policy=policy).after
    assert (task.max_attempts, task.max_deliveries, task.visible_ms, task.backoff) == (7, 9, NOW + 5, None)


@pytest.mark.parametrize("visible_ms", [0, NOW - 1, NOW])
def test_a_task_whose_time_has_come_is_visible_at_once(visible_ms: int) -> None:
    assert new(visible_ms=visible_ms).visible_ms == 0


def test_a_task_for_later_is_invisible_until_then() -> None:
    task = new(visible_ms=NOW + 1)
    assert task.visible_ms == NOW + 1
    assert lifecycle.position(task) is Index.DELAYED


def test_a_delayed_task_cannot_be_claimed_even_when_it_is_due() -> None:
    with pytest.raises(StaleTask):
        lifecycle.claim(delayed(), ANN, NOW + 9_000, lease_ms=LEASE)


def test_a_delayed_task_is_promoted_when_its_time_has_come_to_the_millisecond() -> None:
    after = lifecycle.promote(delayed(), NOW + 5_000).after
    assert (after.status, after.visible_ms, after.updated_ms) == (Status.PENDING, 0, NOW + 5_000)
    assert lifecycle.position(after) is Index.PENDING


def test_a_delayed_task_is_not_promoted_a_millisecond_early() -> None:
    with pytest.raises(StaleTask):
        lifecycle.promote(delayed(), NOW + 4_999)


@pytest.mark.parametrize("task", [new(), claimed(), complete(claimed()), dead(), cancel(delayed())])
def test_only_a_delayed_task_can_be_promoted(task: Task) -> None:
    with pytest.raises(StaleTask):
        lifecycle.promote(task, NOW + 999_999)


# -- claim -------------------------------------------------------------------------------------------------------


def test_a_claim_hands_the_task_to_the_worker_under_a_lease() -> None:
    task = claimed()
    assert (task.status, task.worker, task.lease_until_ms) == (Status.IN_PROGRESS, ANN, NOW + LEASE)
    assert (task.lease_token, task.deliveries, task.attempts) == (1, 1, 0)


def test_every_claim_issues_a_higher_token() -> None:
    first = claimed()
    second = claimed(abandon(first), BOB)
    third = claimed(nack(second, retry_ms=0))
    assert [first.lease_token, second.lease_token, third.lease_token] == [1, 2, 3]


@pytest.mark.parametrize("task", [claimed(), complete(claimed()), fail(claimed()), dead(), cancel(new())])
def test_a_task_that_is_not_pending_cannot_be_claimed(task: Task) -> None:
    with pytest.raises(StaleTask):
        lifecycle.claim(task, BOB, NOW, lease_ms=LEASE)


# -- who may act -------------------------------------------------------------------------------------------------


@every_held_move
def test_the_holder_may_act_with_its_token(move: Callable[[Task, Holder], Change]) -> None:
    task = claimed()
    assert move(task, Holder(ANN, 1)).before is task


@every_held_move
def test_without_a_token_the_owner_decides(move: Callable[[Task, Holder], Change]) -> None:
    assert move(claimed(), Holder(ANN)).after.deliveries == 1
    assert refusal(move, claimed(), Holder(BOB)) is NotOwner


@every_held_move
def test_another_worker_is_refused_even_with_the_right_token(move: Callable[[Task, Holder], Change]) -> None:
    assert refusal(move, claimed(), Holder(BOB, 1)) is NotOwner


@every_held_move
def test_an_older_token_of_the_same_worker_is_refused(move: Callable[[Task, Holder], Change]) -> None:
    again = claimed(abandon(claimed()), ANN)
    assert refusal(move, again, Holder(ANN, 1)) is NotOwner


@every_held_move
@pytest.mark.parametrize("token", [0, 2, -1])
def test_a_token_that_was_never_issued_is_refused(move: Callable[[Task, Holder], Change], token: int) -> None:
    assert refusal(move, claimed(), Holder(ANN, token)) is NotOwner


@every_held_move
@pytest.mark.parametrize("task", [new(), delayed(), expire(claimed()), abandon(claimed()), nack(claimed())])
def test_nobody_holds_a_pending_task(move: Callable[[Task, Holder], Change], task: Task) -> None:
    assert refusal(move, task, Holder(ANN, task.lease_token)) is NotInProgress


@every_held_move
@pytest.mark.parametrize("who", [Holder(ANN, 1), Holder(ANN), Holder(BOB, 7)])
def test_a_worker_of_a_cancelled_task_is_told_so(move: Callable[[Task, Holder], Change], who: Holder) -> None:
    assert refusal(move, cancel(claimed()), who) is Cancelled


@every_held_move
@pytest.mark.parametrize("ended", [complete(claimed()), fail(claimed()), dead()])
def test_the_last_holder_of_an_ended_task_is_told_that_it_is_over(
    move: Callable[[Task, Holder], Change], ended: Task
) -> None:
    assert refusal(move, ended, Holder(ANN, 1)) is NotInProgress


@every_held_move
@pytest.mark.parametrize("ended", [complete(claimed()), fail(claimed()), dead()])
def test_anyone_else_is_told_that_an_ended_task_was_not_theirs(
    move: Callable[[Task, Holder], Change], ended: Task
) -> None:
    assert refusal(move, ended, Holder(BOB, 1)) is NotOwner
    assert refusal(move, ended, Holder(ANN, 0)) is NotOwner


def test_a_late_worker_cannot_complete() -> None:
    first = claimed()
    second = claimed(expire(first), BOB)
    assert refusal(HELD_MOVES["complete"], second, holder(first)) is NotOwner
    assert refusal(HELD_MOVES["complete"], complete(second), holder(first)) is NotOwner
    assert complete(second).status is Status.COMPLETED


def test_no_worker_can_act_on_a_replayed_task_before_it_claims_it() -> None:
    replayed = lifecycle.replay(dead(), NOW).after
    for move in HELD_MOVES.values():
        assert refusal(move, replayed, Holder(ANN, 1)) is NotInProgress


# -- heartbeat ---------------------------------------------------------------------------------------------------


def test_a_heartbeat_extends_the_lease_from_now() -> None:
    after = lifecycle.heartbeat(claimed(), Holder(ANN, 1), NOW + 10_000, lease_ms=LEASE).after
    assert after.lease_until_ms == NOW + 10_000 + LEASE


def test_a_heartbeat_never_shortens_a_lease() -> None:
    task = claimed()
    after = lifecycle.heartbeat(task, Holder(ANN, 1), NOW + 1, lease_ms=100).after
    assert after.lease_until_ms == task.lease_until_ms


def test_a_heartbeat_changes_nothing_but_the_lease() -> None:
    task = msgspec.structs.replace(claimed(), version=42, previous=41, last_error="before")
    change = lifecycle.heartbeat(task, Holder(ANN, 1), NOW + 10_000, lease_ms=LEASE)
    assert change.move is Move.HEARTBEAT
    assert change.after == msgspec.structs.replace(task, lease_until_ms=NOW + 10_000 + LEASE)
    assert change.after.version == 42


# -- results -----------------------------------------------------------------------------------------------------


def test_complete_ends_the_task_and_remembers_who_did_it() -> None:
    change = lifecycle.complete(claimed(), Holder(ANN, 1), NOW + 7, retention_ms=KEEP, result=b"42")
    after = change.after
    assert (after.status, after.error, change.result) == (Status.COMPLETED, None, b"42")
    assert (after.ended_ms, after.purge_ms, after.lease_until_ms) == (NOW + 7, NOW + 7 + KEEP, 0)
    assert (after.worker, after.lease_token) == (ANN, 1)


def test_complete_keeps_the_last_error_of_earlier_tries() -> None:
    assert complete(claimed(nack(claimed(), retry_ms=0, reason="boom"))).last_error == "boom"


def test_a_workers_failure_is_final_and_not_dead_lettered() -> None:
    change = lifecycle.fail(claimed(), Holder(ANN, 1), NOW + 7, error="bad input", retention_ms=KEEP, result=b"{}")
    after = change.after
    assert (after.status, after.error, after.last_error) == (Status.FAILED, "bad input", "bad input")
    assert (after.ended_ms, after.purge_ms, change.result) == (NOW + 7, NOW + 7 + KEEP, b"{}")
    assert after.attempts == 0
    assert not after.is_dead
    assert lifecycle.position(after) is Index.NONE


def test_the_same_submit_again_is_a_repeat() -> None:
    assert lifecycle.is_repeat(complete(claimed()), Holder(ANN, 1), Status.COMPLETED)
    assert lifecycle.is_repeat(fail(claimed()), Holder(ANN, 1), Status.FAILED)
    assert lifecycle.is_repeat(complete(claimed()), Holder(ANN), Status.COMPLETED)


@pytest.mark.parametrize(
    ("task", "who", "status"),
    [
        (complete(claimed()), Holder(BOB, 1), Status.COMPLETED),
        (complete(claimed()), Holder(ANN, 0), Status.COMPLETED),
        (complete(claimed()), Holder(ANN, 1), Status.FAILED),
        (fail(claimed()), Holder(ANN, 1), Status.COMPLETED),
        (dead(), Holder(ANN, 1), Status.FAILED),
        (cancel(claimed()), Holder(ANN, 1), Status.CANCELLED),
        (claimed(), Holder(ANN, 1), Status.IN_PROGRESS),
        (new(), Holder(ANN, 0), Status.PENDING),
    ],
)
def test_a_submit_that_did_not_end_the_task_is_no_repeat(task: Task, who: Holder, status: Status) -> None:
    assert not lifecycle.is_repeat(task, who, status)


# -- failed deliveries -------------------------------------------------------------------------------------------


def test_a_nack_counts_an_attempt_and_delays_the_retry() -> None:
    after = nack(claimed(), retry_ms=1_000, reason="boom")
    assert (after.status, after.attempts, after.visible_ms) == (Status.PENDING, 1, NOW + 1_000)
    assert (after.last_error, after.error, after.worker, after.lease_until_ms) == ("boom", None, None, 0)
    assert lifecycle.position(after) is Index.DELAYED


def test_a_nack_without_delay_is_pending_now() -> None:
    after = nack(claimed(), retry_ms=0)
    assert (after.visible_ms, lifecycle.position(after)) == (0, Index.PENDING)
    assert claimed(after, BOB).lease_token == 2


def test_a_nack_at_the_limit_dead_letters_the_task() -> None:
    after = nack(claimed(new(max_attempts=1)), reason="boom", now_ms=NOW + 3)
    assert (after.status, after.error, after.last_error) == (Status.FAILED, lifecycle.MAX_ATTEMPTS, "boom")
    assert (after.attempts, after.visible_ms, after.lease_until_ms) == (1, 0, 0)
    assert (after.ended_ms, after.purge_ms) == (NOW + 3, NOW + 3 + KEEP)
    assert after.is_dead


def test_an_expired_lease_counts_like_a_nack() -> None:
    task = claimed()
    after = lifecycle.expire(task, NOW + LEASE, retry_ms=2_000, retention_ms=KEEP).after
    assert (after.status, after.attempts, after.visible_ms) == (Status.PENDING, 1, NOW + LEASE + 2_000)
    assert after.last_error == lifecycle.LEASE_EXPIRED


def test_an_expired_lease_without_backoff_is_pending_now() -> None:
    assert lifecycle.position(expire(claimed(), retry_ms=0)) is Index.PENDING


def test_an_expired_lease_at_the_limit_dead_letters_the_task() -> None:
    after = expire(claimed(new(max_attempts=1)))
    assert (after.status, after.error, after.last_error) == (
        Status.FAILED,
        lifecycle.MAX_ATTEMPTS,
        lifecycle.LEASE_EXPIRED,
    )
    assert after.is_dead


def test_a_lease_does_not_expire_a_millisecond_early() -> None:
    with pytest.raises(StaleTask):
        lifecycle.expire(claimed(), NOW + LEASE - 1, retry_ms=0, retention_ms=KEEP)


@pytest.mark.parametrize("task", [new(), delayed(), complete(claimed()), fail(claimed()), dead(), cancel(claimed())])
def test_only_a_task_in_progress_can_expire(task: Task) -> None:
    with pytest.raises(StaleTask):
        lifecycle.expire(task, NOW + 999_999, retry_ms=0, retention_ms=KEEP)


def test_a_heartbeat_in_time_keeps_the_lease_from_expiring() -> None:
    kept = lifecycle.heartbeat(claimed(), Holder(ANN, 1), NOW + LEASE - 1, lease_ms=LEASE).after
    with pytest.raises(StaleTask):
        lifecycle.expire(kept, NOW + LEASE, retry_ms=0, retention_ms=KEEP)


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.parametrize("lose", [lambda task: nack(task, retry_ms=0), expire], ids=["nack", "expire"])
def test_max_attempts_is_the_exact_number_of_deliveries_before_the_dead_letter_queue(
    limit: int, lose: Callable[[Task], Task]
) -> None:
    task, deliveries = new(max_attempts=limit), 0
    while task.status is Status.PENDING:
        task = lose(claimed(task))
        deliveries += 1
        assert task.attempts == deliveries
    assert deliveries == limit
    assert (task.is_dead, task.error) == (True, lifecycle.MAX_ATTEMPTS)


def test_abandon_puts_the_task_back_at_once_without_counting_an_attempt() -> None:
    after = abandon(claimed(nack(claimed(), retry_ms=0, reason="boom")))
    assert (after.status, after.attempts, after.deliveries, after.visible_ms) == (Status.PENDING, 1, 2, 0)
    assert (after.worker, after.last_error) == (None, "boom")
    assert lifecycle.position(after) is Index.PENDING


def test_a_task_abandoned_max_deliveries_times_is_dead_lettered() -> None:
    task, deliveries = new(max_deliveries=4), 0
    while task.status is Status.PENDING:
        task = abandon(claimed(task))
        deliveries += 1
    assert deliveries == 4
    assert (task.is_dead, task.error, task.attempts) == (True, lifecycle.MAX_DELIVERIES, 0)


def test_a_nack_at_the_last_delivery_dead_letters_the_task_below_its_attempts() -> None:
    after = nack(claimed(new(max_deliveries=1)), reason="boom")
    assert (after.error, after.last_error, after.attempts) == (lifecycle.MAX_DELIVERIES, "boom", 1)


def test_running_out_of_attempts_is_named_before_running_out_of_deliveries() -> None:
    assert nack(claimed(new(max_attempts=1, max_deliveries=1))).error == lifecycle.MAX_ATTEMPTS


# -- cancel, replay, purge ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [new(), delayed(), claimed(), nack(claimed())])
def test_a_task_that_has_not_ended_can_be_cancelled(task: Task) -> None:
    after = cancel(task)
    assert (after.status, after.ended_ms, after.purge_ms) == (Status.CANCELLED, NOW + 7, NOW + 7 + KEEP)
    assert (after.visible_ms, after.lease_until_ms) == (0, 0)
    assert lifecycle.position(after) is Index.NONE


@pytest.mark.parametrize("task", [complete(claimed()), fail(claimed()), dead(), cancel(new())])
def test_a_task_that_has_ended_cannot_be_cancelled(task: Task) -> None:
    with pytest.raises(AlreadyFinal):
        cancel(task)


def test_replay_gives_fresh_attempts_and_deliveries_and_keeps_the_token_rising() -> None:
    task = dead()
    after = lifecycle.replay(task, NOW + 9).after
    assert (after.status, after.attempts, after.deliveries, after.updated_ms) == (Status.PENDING, 0, 0, NOW + 9)
    assert (after.error, after.ended_ms, after.purge_ms, after.worker) == (None, 0, 0, None)
    assert lifecycle.position(after) is Index.PENDING
    assert claimed(after).lease_token == task.lease_token + 1


def test_replay_remembers_why_the_task_died() -> None:
    assert lifecycle.replay(dead(), NOW).after.last_error == "boom"


def test_a_task_dead_of_deliveries_can_be_delivered_again_after_replay() -> None:
    buried = abandon(claimed(new(max_deliveries=1)))
    assert claimed(lifecycle.replay(buried, NOW).after).deliveries == 1


@pytest.mark.parametrize("task", [new(), delayed(), claimed(), complete(claimed()), fail(claimed()), cancel(new())])
def test_only_a_dead_task_can_be_replayed(task: Task) -> None:
    with pytest.raises(NotDead):
        lifecycle.replay(task, NOW)


@pytest.mark.parametrize("task", [complete(claimed()), fail(claimed()), dead(), cancel(new()), cancel(claimed())])
def test_the_purge_of_an_ended_task_tells_how_it_had_ended(task: Task) -> None:
    change = lifecycle.purge(task, NOW + 50)
    after = change.after
    assert (change.move, after.status, after.error, after.worker) == (Move.PURGE, task.status, task.error, task.worker)
    assert (after.ended_ms, after.purge_ms, after.updated_ms) == (task.ended_ms, task.purge_ms, NOW + 50)


@pytest.mark.parametrize("task", [new(), delayed(), claimed(), lifecycle.replay(dead(), NOW).after])
def test_a_task_that_has_not_ended_is_never_purged(task: Task) -> None:
    with pytest.raises(NotFinal):
        lifecycle.purge(task, NOW + 10 * KEEP)


def test_the_purge_event_of_a_task_failed_by_its_worker_does_not_call_it_dead() -> None:
    assert not lifecycle.purge(fail(claimed()), NOW).after.is_dead


# -- index of a task ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "place"),
    [
        (new(), Index.PENDING),
        (delayed(), Index.DELAYED),
        (lifecycle.promote(delayed(), NOW + 5_000).after, Index.PENDING),
        (claimed(), Index.IN_PROGRESS),
        (nack(claimed()), Index.DELAYED),
        (abandon(claimed()), Index.PENDING),
        (complete(claimed()), Index.NONE),
        (fail(claimed()), Index.NONE),
        (cancel(new()), Index.NONE),
        (cancel(claimed()), Index.NONE),
        (dead(), Index.DEAD),
        (expire(claimed(new(max_attempts=1))), Index.DEAD),
        (abandon(claimed(new(max_deliveries=1))), Index.DEAD),
        (lifecycle.replay(dead(), NOW).after, Index.PENDING),
    ],
)
def test_the_position_follows_from_the_record(task: Task, place: Index) -> None:
    assert lifecycle.position(task) is place


# -- grace -------------------------------------------------------------------------------------------------------


def test_grace_lengthens_a_lease_that_would_end_too_soon() -> None:
    task = msgspec.structs.replace(claimed(), version=9, previous=8)
    extended = lifecycle.with_grace(task, NOW + LEASE + 1)
    assert extended == msgspec.structs.replace(task, lease_until_ms=NOW + LEASE + 1)


@pytest.mark.parametrize("least_ms", [0, NOW, NOW + LEASE])
def test_grace_never_shortens_a_lease(least_ms: int) -> None:
    task = claimed()
    assert lifecycle.with_grace(task, least_ms) is task


@pytest.mark.parametrize("task", [nack(claimed()), nack(claimed(), retry_ms=0), dead()])
def test_a_nack_is_a_repeat_with_the_token_of_the_delivery_that_it_ended(task: Task) -> None:
    assert lifecycle.is_nack_repeat(task, Holder(ANN, 1))
    assert not lifecycle.is_nack_repeat(task, Holder(ANN, None))
    assert not lifecycle.is_nack_repeat(task, Holder(ANN, 2))
    assert not lifecycle.is_abandon_repeat(task, Holder(ANN, 1))
    assert lifecycle.is_nack_repeat(task, Holder(BOB, 1)) == (task.worker is None)


@pytest.mark.parametrize("task", [claimed(), expire(claimed()), complete(claimed()), abandon(claimed()), new()])
def test_no_nack_is_a_repeat_of_what_was_not_nacked(task: Task) -> None:
    assert not lifecycle.is_nack_repeat(task, Holder(ANN, task.lease_token))


def test_after_its_promotion_a_task_still_tells_a_nack_from_an_expiry() -> None:
    later = NOW + 5_000
    nacked = lifecycle.promote(nack(claimed()), later).after
    expired = lifecycle.promote(expire(claimed(), retry_ms=1_000), LEASE + later).after
    assert lifecycle.is_nack_repeat(nacked, Holder(ANN, 1))
    assert not lifecycle.is_nack_repeat(expired, Holder(ANN, 1))
    assert not lifecycle.is_nack_repeat(lifecycle.promote(delayed(), later).after, Holder(ANN, 0))
    assert not lifecycle.is_nack_repeat(claimed(nacked), Holder(ANN, 1))


def test_an_abandon_is_a_repeat_with_the_token_of_the_delivery_that_it_ended() -> None:
    assert lifecycle.is_abandon_repeat(abandon(claimed()), Holder(ANN, 1))
    assert not lifecycle.is_abandon_repeat(abandon(claimed()), Holder(ANN, None))
    assert not lifecycle.is_abandon_repeat(claimed(abandon(claimed())), Holder(ANN, 1))
    assert not lifecycle.is_abandon_repeat(nack(claimed()), Holder(ANN, 1))
