"""Invariants of one task after any sequence of moves by any caller at any time."""

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from codeq.domain import lifecycle
from codeq.domain.errors import CodeqError
from codeq.domain.queue import EffectivePolicy, Index
from codeq.domain.requests import NewTask
from codeq.domain.task import Change, Holder, Move, Status, Task

START, KEEP = 1_700_000_000_000, 500_000
FIXED = (
    "id", "tenant", "command", "priority", "created_ms", "max_attempts", "max_deliveries", "payload_bytes",
    "trace_id", "backoff", "has_webhook",
)  # fmt: skip
HELD = {Move.HEARTBEAT, Move.COMPLETE, Move.FAIL, Move.NACK, Move.ABANDON}


class Step(msgspec.Struct, frozen=True):
    """One attempted move. `behind` is how far the caller's token lags; None when it sends none."""

    move: Move
    worker: str
    behind: int | None
    pause_ms: int
    wait_ms: int


moves = st.sampled_from([Move.CLAIM] * 5 + [Move.NACK] * 3 + [move for move in Move if move is not Move.ENQUEUE])
steps = st.builds(
    Step,
    moves,
    st.sampled_from(["ann", "ann", "bob"]),
    st.sampled_from([0, 0, 0, 1, -1, None]),
    st.sampled_from([0, 1, 99, 100, 5_000]),
    st.sampled_from([0, 0, 100, 1_000]),
)


def make(task: Task, step: Step, now_ms: int, who: Holder) -> Change:  # noqa: C901 - one line per move
    match step.move:
        case Move.PROMOTE:
            return lifecycle.promote(task, now_ms)
        case Move.CLAIM:
            return lifecycle.claim(task, step.worker, now_ms, lease_ms=100 + step.wait_ms)
        case Move.HEARTBEAT:
            return lifecycle.heartbeat(task, who, now_ms, lease_ms=100 + step.wait_ms)
        case Move.COMPLETE:
            return lifecycle.complete(task, who, now_ms, retention_ms=KEEP)
        case Move.FAIL:
            return lifecycle.fail(task, who, now_ms, error="no", retention_ms=KEEP)
        case Move.NACK:
            return lifecycle.nack(task, who, now_ms, retry_ms=step.wait_ms, reason="boom", retention_ms=KEEP)
        case Move.EXPIRE:
            return lifecycle.expire(task, now_ms, retry_ms=step.wait_ms, retention_ms=KEEP)
        case Move.ABANDON:
            return lifecycle.abandon(task, who, now_ms, retention_ms=KEEP)
        case Move.CANCEL:
            return lifecycle.cancel(task, now_ms, retention_ms=KEEP)
        case Move.REPLAY:
            return lifecycle.replay(task, now_ms)
        case Move.PURGE:
            return lifecycle.purge(task, now_ms)
    raise AssertionError(f"{step.move} is not tried here")


def a_new_task(max_attempts: int, max_deliveries: int, delay_ms: int) -> Task:
    new_task = NewTask(command="mail", run_at_ms=START + delay_ms, max_attempts=max_attempts)
    policy = EffectivePolicy(max_deliveries=max_deliveries)
    task_id = "0192f0c1-2d3e-7abc-8def-0123456789ab"
    return lifecycle.enqueue(new_task, task_id, "acme", now_ms=START, policy=policy).after


def check_step(step: Step, change: Change, now_ms: int, who: Holder) -> None:
    before, after = change.before, change.after
    assert before is not None
    assert change.move is step.move
    assert [getattr(after, field) for field in FIXED] == [getattr(before, field) for field in FIXED]
    assert after.lease_token == before.lease_token + (step.move is Move.CLAIM)
    if before.status.is_final:
        assert step.move is Move.PURGE or (step.move is Move.REPLAY and before.is_dead)
    if step.move in HELD:
        assert before.status is Status.IN_PROGRESS
        assert who.worker == before.worker
        assert who.token in (None, before.lease_token)
    if step.move is Move.HEARTBEAT:
        assert after.lease_until_ms >= before.lease_until_ms
        assert (after.version, after.previous, after.updated_ms) == (
            before.version,
            before.previous,
            before.updated_ms,
        )
    else:
        assert (after.version, after.previous, after.updated_ms) == (0, before.version, now_ms)
        assert (after.move, after.status_before) == (step.move, before.status)


def check_record(task: Task) -> None:
    """Checks the invariants of any record, whatever moves led to it."""
    running, pending = task.status is Status.IN_PROGRESS, task.status is Status.PENDING
    assert 0 <= task.attempts <= task.max_attempts
    assert task.attempts <= task.deliveries <= task.max_deliveries
    assert task.deliveries <= task.lease_token
    assert bool(task.lease_until_ms) is running
    assert bool(task.ended_ms) is task.status.is_final
    assert task.purge_ms == (task.ended_ms + KEEP if task.status.is_final else 0)
    assert pending or not task.visible_ms
    assert not (pending and task.worker)
    assert not (running and task.worker is None)
    assert bool(task.error) is (task.status is Status.FAILED)
    place = {Status.IN_PROGRESS: Index.IN_PROGRESS, Status.PENDING: Index.PENDING}.get(task.status, Index.NONE)
    place = Index.DELAYED if task.visible_ms else Index.DEAD if task.is_dead else place
    assert lifecycle.position(task) is place


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, min_size=5, max_size=60), st.integers(1, 4), st.integers(1, 8), st.sampled_from([0, 0, 100]))
def test_the_rules_hold_after_any_sequence_of_moves(
    sequence: list[Step], max_attempts: int, max_deliveries: int, delay_ms: int
) -> None:
    task = a_new_task(max_attempts, max_deliveries, delay_ms)
    now_ms, version, claims, failures = START, 1, 0, 0
    for step in sequence:
        now_ms += step.pause_ms
        who = Holder(step.worker, None if step.behind is None else task.lease_token - step.behind)
        untouched = msgspec.structs.replace(task)
        try:
            change = make(task, step, now_ms, who)
        except CodeqError:
            assert task == untouched
            continue
        assert task == untouched
        check_step(step, change, now_ms, who)
        if step.move is Move.PURGE:
            event("purged")
            break
        task = change.after
        if step.move is not Move.HEARTBEAT:
            version += 1
            task = msgspec.structs.replace(task, version=version)
        claims += step.move is Move.CLAIM
        failures += step.move in (Move.NACK, Move.EXPIRE)
        if step.move is Move.REPLAY:
            claims = failures = 0
            event("replayed")
        check_record(task)
        assert (task.deliveries, task.attempts) == (claims, failures)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 100), st.data())
def test_max_attempts_bounds_deliveries_exactly_however_they_fail(limit: int, data: st.DataObject) -> None:
    task, delivered = a_new_task(limit, 10_000, 0), 0
    ways = data.draw(st.lists(st.booleans(), min_size=limit, max_size=limit))
    while task.status is Status.PENDING:
        task = lifecycle.claim(task, "ann", START, lease_ms=100).after
        if ways[delivered]:
            task = lifecycle.expire(task, START + 100, retry_ms=0, retention_ms=KEEP).after
        else:
            task = lifecycle.nack(task, Holder("ann"), START, retry_ms=0, reason="", retention_ms=KEEP).after
        delivered += 1
    assert (delivered, task.is_dead) == (limit, True)
