"""The drawing at the head of `domain/lifecycle.py` agrees with the functions below it."""

import re
from collections.abc import Callable

from codeq.domain import lifecycle
from codeq.domain.errors import CodeqError
from codeq.domain.queue import EffectivePolicy
from codeq.domain.requests import NewTask
from codeq.domain.task import Change, Holder, Move, Status, Task

NOW, LATER, LEASE = 1_000_000, 2_000_000, 1_000
Edge = tuple[str, str, str]
LINE = re.compile(r"^ {4}(\(new\)|[A-Z_]+) +--(\w+)--> +(.+)$", re.MULTILINE)


def drawn() -> set[Edge]:
    edges = LINE.findall(lifecycle.__doc__ or "")
    return {(start, move, end.strip()) for start, move, ends in edges for end in ends.split("|")}


def new(visible_ms: int = 0, max_attempts: int = 5, max_deliveries: int = 5) -> Task:
    new_task = NewTask(command="mail", run_at_ms=visible_ms, max_attempts=max_attempts)
    policy = EffectivePolicy(max_deliveries=max_deliveries)
    task_id = "0192f0c1-2d3e-7abc-8def-0123456789ab"
    return lifecycle.enqueue(new_task, task_id, "acme", now_ms=NOW, policy=policy).after


def _holder(task: Task) -> Holder:
    return Holder(task.worker or "ann", task.lease_token)


MOVES: dict[Move, Callable[[Task], Change]] = {
    Move.PROMOTE: lambda task: lifecycle.promote(task, LATER),
    Move.CLAIM: lambda task: lifecycle.claim(task, "ann", LATER, lease_ms=LEASE),
    Move.COMPLETE: lambda task: lifecycle.complete(task, _holder(task), LATER, retention_ms=1),
    Move.FAIL: lambda task: lifecycle.fail(task, _holder(task), LATER, error="x", retention_ms=1),
    Move.NACK: lambda task: lifecycle.nack(task, _holder(task), LATER, retry_ms=1, reason="x", retention_ms=1),
    Move.EXPIRE: lambda task: lifecycle.expire(task, LATER + LEASE, retry_ms=1, retention_ms=1),
    Move.ABANDON: lambda task: lifecycle.abandon(task, _holder(task), LATER, retention_ms=1),
    Move.CANCEL: lambda task: lifecycle.cancel(task, LATER, retention_ms=1),
    Move.REPLAY: lambda task: lifecycle.replay(task, LATER),
    Move.PURGE: lambda task: lifecycle.purge(task, LATER),
}
STARTS = [
    new(),
    new(visible_ms=NOW + 1),
    new(visible_ms=LATER + 1),
    new(max_attempts=1),
    new(max_deliveries=1),
]


def reachable() -> list[Task]:
    """Returns tasks of every kind: the results of any three moves from a new one, each kind once."""
    found: dict[tuple[object, ...], Task] = {}
    edge = STARTS
    for _ in range(4):
        fresh = []
        for task in edge:
            kind = (task.status, task.move, task.visible_ms > LATER, bool(task.visible_ms), task.max_attempts,
                    task.max_deliveries)  # fmt: skip
            if kind not in found and task.move is not Move.PURGE:
                found[kind] = task
                fresh.append(task)
        edge = [change.after for task in fresh for change in _all_moves(task)]
    return list(found.values())


def _all_moves(task: Task) -> list[Change]:
    made = []
    for move in MOVES.values():
        try:
            made.append(move(task))
        except CodeqError:
            continue
    return made


def done() -> set[Edge]:
    edges: set[Edge] = set()
    for start in STARTS:
        edges.add(("(new)", start.move, start.status))
    for task in reachable():
        for change in _all_moves(task):
            edges.add((task.status, change.move, "(gone)" if change.move is Move.PURGE else change.after.status))
    return edges


def test_the_tasks_tried_are_of_every_status() -> None:
    assert {task.status for task in reachable()} == set(Status)


def test_every_line_of_the_drawing_was_read() -> None:
    lines = [line for line in (lifecycle.__doc__ or "").splitlines() if "-->" in line]
    assert len(LINE.findall(lifecycle.__doc__ or "")) == len(lines) > 10


def test_everything_drawn_happens() -> None:
    assert drawn() - done() == set()


def test_everything_that_happens_is_drawn() -> None:
    assert done() - drawn() == set()


def test_every_move_but_the_heartbeat_is_drawn() -> None:
    assert {move for _, move, _ in drawn()} == {str(move) for move in Move} - {"heartbeat"}


def test_a_heartbeat_leaves_the_status_alone_and_works_in_progress_only() -> None:
    accepted = set()
    for task in reachable():
        try:
            change = lifecycle.heartbeat(task, _holder(task), LATER, lease_ms=LEASE)
        except CodeqError:
            continue
        accepted.add((task.status, change.after.status))
    assert accepted == {(Status.IN_PROGRESS, Status.IN_PROGRESS)}


def test_a_move_is_named_after_its_function_and_records_where_it_came_from() -> None:
    for task in reachable():
        for change in _all_moves(task):
            assert MOVES[change.move](task) == change
            assert change.before is task
            assert (change.after.move, change.after.status_before) == (change.move, task.status)
