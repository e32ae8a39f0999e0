"""Members that are no tasks are set aside as they were, reported, and stop nothing."""

import logging
from collections.abc import Callable

import pytest
from tests.priority.conftest import ManualClock, Site

from codeq.priority import BlockingPriorityQueue

Drain = Callable[[BlockingPriorityQueue], list[str]]
BAD = {b"\xff\xfe": "not UTF-8", b'"123"': "not a task id", b"": "not a task id", b"a b": "not a task id"}


def test_corrupted_members_are_set_aside_and_reported(
    site: Site, drain: Drain, caplog: pytest.LogCaptureFixture
) -> None:
    queue = site.queue()
    site.raw.zadd(site.keys.queue, dict.fromkeys(BAD, 5.0))
    queue.enqueue("good")
    with caplog.at_level(logging.WARNING, "codeq.priority"):
        assert drain(queue) == ["good"]
    found = queue.corrupted()
    assert {entry.member: entry.reason for entry in found} == BAD
    assert {entry.score for entry in found} == {5.0}
    assert sum("corrupted" in record.getMessage() for record in caplog.records) == len(BAD)
    assert queue.queue_size() == 0


@pytest.mark.parametrize("score", [-1.0, 1.01e15, float("inf"), float("-inf")])
@pytest.mark.parametrize("age_after_s", [None, 60])
def test_a_score_of_no_priority_is_corruption_too(
    site: Site, drain: Drain, score: float, age_after_s: float | None
) -> None:
    queue = site.queue(age_after_s=age_after_s)
    site.raw.zadd(site.keys.queue, {"odd": score})
    queue.enqueue("good")
    assert drain(queue) == ["good"]
    assert [(entry.member, entry.score, entry.reason) for entry in queue.corrupted()] == [
        (b"odd", score, "the score is of no priority")
    ]


def test_an_enqueue_repairs_the_score_of_its_task(site: Site, drain: Drain) -> None:
    queue = site.queue()
    site.raw.zadd(site.keys.queue, {"a": float("inf")})
    assert queue.enqueue("a")
    site.raw.zadd(site.keys.queue, {"a": float("inf")})
    assert queue.enqueue("a")
    assert drain(queue) == ["a"]


def test_hundreds_of_corrupted_members_do_not_stop_a_dequeue(site: Site, drain: Drain) -> None:
    queue = site.queue()
    site.raw.zadd(site.keys.queue, {f"bad {number}": number for number in range(300)})
    queue.enqueue("good")
    assert drain(queue) == ["good"]
    assert len(queue.corrupted(limit=1000)) == 300
    assert len(queue.corrupted(limit=10)) == 10


def test_a_member_that_another_program_added_by_the_formula_is_a_task(
    site: Site, clock: ManualClock, drain: Drain
) -> None:
    queue = site.queue(now_ms=clock)
    site.raw.zadd(site.keys.queue, {"123": 50 * 1e13 + clock.ms - 5, "124": clock.ms})
    task = queue.dequeue()
    assert task is not None
    assert (task.task_id, task.priority, task.attempts) == ("124", 100, 1)
    assert drain(queue) == ["123"]
    clock.advance(300)
    assert drain(queue) == ["124"]


def test_a_limit_of_nothing_names_nothing(site: Site) -> None:
    site.raw.zadd(site.keys.corrupted, {"no task": 1, "none either": 2})
    queue = site.queue()
    assert [len(queue.corrupted(limit)) for limit in (-1, 0, 1, 2)] == [0, 0, 1, 2]
