"""Who comes first: arrival inside a priority, duplicates, ageing."""

from collections.abc import Callable

import pytest
from tests.priority.conftest import ManualClock, Site

from codeq.domain.errors import InvalidRequest
from codeq.priority import BlockingPriorityQueue, InvalidTaskId, TaskPriority
from codeq.priority.tasks import BAND, score

Drain = Callable[[BlockingPriorityQueue], list[str]]


def test_tasks_of_one_millisecond_come_in_the_order_of_arrival(site: Site, clock: ManualClock, drain: Drain) -> None:
    queue = site.queue(now_ms=clock)
    ids = [str(number) for number in range(30, 0, -1)]  # as texts, "10" would be before "9"
    for task_id in ids:
        queue.enqueue(task_id)
    assert drain(queue) == ids


def test_a_task_that_returns_to_its_place_is_first_again(site: Site, clock: ManualClock, drain: Drain) -> None:
    queue = site.queue(now_ms=clock)
    for task_id in ("c", "b", "a"):
        queue.enqueue(task_id)
    taken = queue.dequeue()
    assert str(taken) == "c"
    queue.release_lock("c")
    assert drain(queue) == ["c", "b", "a"]


def test_every_score_is_exact_as_a_double() -> None:
    last_ms = BAND - 1
    for priority in range(101):
        for ms in (0, 1_738_800_000_000, last_ms):
            assert int(float(score(priority, ms))) == score(priority, ms)
            assert float(score(priority, ms)) != float(score(priority, ms) + 1)


def test_a_duplicate_keeps_its_place(site: Site, clock: ManualClock, drain: Drain) -> None:
    queue = site.queue(now_ms=clock)
    for task_id in ("a", "b"):
        queue.enqueue(task_id)
        clock.advance(1)
    assert not queue.enqueue("a")
    assert not queue.enqueue("a", 0)  # never lowered
    assert drain(queue) == ["a", "b"]


def test_a_duplicate_with_a_higher_priority_raises_the_task_and_keeps_its_time(
    site: Site, clock: ManualClock, drain: Drain
) -> None:
    queue = site.queue(now_ms=clock)
    queue.enqueue("push")
    clock.advance(1)
    queue.enqueue("pull-request", TaskPriority.HIGH)
    clock.advance(1)
    assert not queue.enqueue("push", TaskPriority.HIGH)
    assert queue.queue_size() == 2
    assert drain(queue) == ["push", "pull-request"]


def test_a_task_in_work_is_not_run_a_second_time_by_a_duplicate(site: Site) -> None:
    queue = site.queue()
    queue.enqueue("a")
    queue.dequeue()
    assert not queue.enqueue("a")
    assert queue.dequeue() is None
    queue.complete("a")
    assert queue.enqueue("a")


def test_the_higher_priority_of_a_duplicate_counts_when_the_task_returns(site: Site, clock: ManualClock) -> None:
    queue = site.queue(now_ms=clock)
    for task_id in ("a", "b"):
        queue.enqueue(task_id)
        queue.dequeue()
    queue.requeue_with_delay("a", 5)
    assert not queue.enqueue("a", 90)
    assert not queue.enqueue("b", 80)
    queue.release_lock("b")
    clock.advance(5)
    assert [task.priority for task in (queue.dequeue(), queue.dequeue()) if task] == [90, 80]


def test_without_ageing_a_normal_task_waits_for_every_high_one(site: Site, clock: ManualClock, drain: Drain) -> None:
    queue = site.queue(now_ms=clock)
    queue.enqueue("push")
    clock.advance(3600)
    queue.enqueue("pull", TaskPriority.HIGH)
    assert drain(queue) == ["pull", "push"]


def test_with_ageing_a_normal_task_cannot_starve(site: Site, clock: ManualClock) -> None:
    queue = site.queue(now_ms=clock, age_after_s=60)
    for task_id, priority in (("push", 50), ("low", 10)):
        queue.enqueue(task_id, priority)
    order = []
    for number in range(70):  # one high task each second, and one is taken
        queue.enqueue(f"pull-{number}", TaskPriority.HIGH)
        task = queue.dequeue()
        assert task is not None
        queue.complete(task)
        order.append(task.task_id)
        clock.advance(1)
    assert order[:60] == [f"pull-{number}" for number in range(60)]
    assert order[60:63] == ["push", "low", "pull-60"]


def test_the_priorities_are_those_of_the_story() -> None:
    assert (TaskPriority.HIGH, TaskPriority.NORMAL) == (100, 50)


@pytest.mark.parametrize("priority", [-1, 101, 50.5, "high", None, True])
def test_a_priority_outside_of_0_to_100_is_refused(site: Site, priority: int) -> None:
    with pytest.raises(InvalidRequest, match="priority"):
        site.queue().enqueue("a", priority)


@pytest.mark.parametrize(
    "task_id",
    [None, "", " ", 7, b"7", '"7"', "a b", "a\n", "tab\t", "\0", "ü", "x" * 257, "-a", "{a}", True],
    ids=lambda value: repr(value)[:12],
)
def test_no_id_and_malformed_ids_are_refused_by_every_call(site: Site, task_id: str) -> None:
    queue = site.queue()
    calls: list[Callable[[], object]] = [
        lambda: queue.enqueue(task_id),
        lambda: queue.complete(task_id),
        lambda: queue.renew(task_id),
        lambda: queue.release_lock(task_id),
        lambda: queue.requeue_with_delay(task_id, 1),
        lambda: queue.is_locked(task_id),
    ]
    for call in calls:
        with pytest.raises(InvalidTaskId):
            call()


@pytest.mark.parametrize("task_id", ["1", "x" * 256, "acme/api#12@3f2a", "a.b:c=d+e,f~g-h_i", "6fa459ea-ee8a"])
def test_ids_of_the_usual_kinds_are_accepted(site: Site, drain: Drain, task_id: str) -> None:
    queue = site.queue()
    assert queue.enqueue(task_id)
    assert drain(queue) == [task_id]
