"""A delay is a delay: nothing is delivered before its time, and nothing is forgotten after it."""

from collections.abc import Callable

import pytest
from tests.priority.conftest import ManualClock, Site

from codeq.domain.errors import InvalidRequest
from codeq.priority import BlockingPriorityQueue, TaskPriority

Drain = Callable[[BlockingPriorityQueue], list[str]]


def test_a_delayed_task_is_not_delivered_early_even_if_it_is_alone(site: Site, clock: ManualClock) -> None:
    queue = site.queue(now_ms=clock)
    queue.enqueue("a", TaskPriority.HIGH)
    queue.dequeue()
    queue.requeue_with_delay("a", 10)
    clock.advance(9.999)
    assert queue.dequeue() is None
    assert (queue.queue_size(), queue.queue_size(include_delayed=True)) == (0, 1)
    clock.advance(0.001)
    assert queue.queue_size() == 1
    assert str(queue.dequeue()) == "a"


def test_a_normal_task_passes_a_delayed_high_one(site: Site, clock: ManualClock, drain: Drain) -> None:
    queue = site.queue(now_ms=clock)
    queue.enqueue("high", TaskPriority.HIGH)
    queue.dequeue()
    queue.requeue_with_delay("high", 10)
    queue.enqueue("normal")
    assert drain(queue) == ["normal"]
    clock.advance(10)
    assert drain(queue) == ["high"]


@pytest.mark.parametrize(("given", "kept"), [(None, 70), (100, 100), (0, 0)])
def test_requeue_keeps_the_priority_or_takes_another(
    site: Site, clock: ManualClock, given: int | None, kept: int
) -> None:
    queue = site.queue(now_ms=clock)
    queue.enqueue("a", 70)
    queue.dequeue()
    queue.requeue_with_delay("a", 1, priority=given)
    clock.advance(1)
    task = queue.dequeue()
    assert task is not None
    assert task.priority == kept


def test_requeue_without_a_delay_puts_the_task_behind_the_others(site: Site, clock: ManualClock, drain: Drain) -> None:
    queue = site.queue(now_ms=clock)
    for task_id in ("a", "b"):
        queue.enqueue(task_id)
    queue.dequeue()
    queue.requeue_with_delay("a", 0)
    assert drain(queue) == ["b", "a"]


def test_more_tasks_than_one_call_promotes_all_come(site: Site, clock: ManualClock, drain: Drain) -> None:
    queue = site.queue(now_ms=clock)
    ids = [f"task-{number}" for number in range(150)]
    for task_id in ids:
        queue.enqueue(task_id)
        queue.dequeue()
        queue.requeue_with_delay(task_id, 1)
    clock.advance(1)
    assert sorted(drain(queue)) == sorted(ids)


def test_a_member_that_another_program_put_into_the_retry_queue_is_served(
    site: Site, clock: ManualClock, drain: Drain
) -> None:
    queue = site.queue(now_ms=clock)
    site.raw.zadd(site.keys.retry, {"a": clock.ms - 1, "not an id": clock.ms - 1})
    assert drain(queue) == ["a"]
    assert [found.member for found in queue.corrupted()] == [b"not an id"]


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e12])
def test_an_impossible_delay_is_refused_and_the_lock_kept(site: Site, delay: float) -> None:
    queue = site.queue()
    queue.enqueue("a")
    queue.dequeue()
    with pytest.raises(InvalidRequest, match="delay"):
        queue.requeue_with_delay("a", delay)
    assert queue.is_locked("a")
