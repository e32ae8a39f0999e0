"""The eight acceptance criteria of the story, each on a real Redis and on a real cluster."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.priority.conftest import ManualClock, Site

from codeq.priority import BlockingPriorityQueue, LockLost, TaskPriority

Drain = Callable[[BlockingPriorityQueue], list[str]]


def test_ac1_the_queue_has_enqueue_dequeue_and_requeue_with_delay(site: Site, clock: ManualClock) -> None:
    queue = site.queue(now_ms=clock)
    assert queue.enqueue("1", TaskPriority.HIGH)
    task = queue.dequeue()
    assert task is not None
    assert (str(task), task.priority, task.attempts) == ("1", 100, 1)
    queue.requeue_with_delay("1", 30)
    assert queue.dequeue() is None
    clock.advance(30)
    again = queue.dequeue()
    assert again is not None
    assert (again.task_id, again.attempts) == ("1", 2)


def test_ac2_the_queue_is_a_sorted_set_with_the_score_of_the_formula(site: Site, clock: ManualClock) -> None:
    queue = site.queue(now_ms=clock)
    for priority in (100, 50, 0, 73):
        queue.enqueue(f"task-{priority}", priority)
    scores = dict(site.raw.zrange(site.keys.queue, 0, -1, withscores=True))
    assert scores == {f"task-{p}".encode(): (100 - p) * 1e13 + clock.ms for p in (100, 50, 0, 73)}
    assert site.keys.queue.endswith("task:queue")
    taken = [queue.dequeue() for _ in range(4)]
    assert [task.priority for task in taken if task] == [100, 73, 50, 0]


def test_ac3_a_task_in_work_has_a_lock_with_its_worker_for_300_seconds(site: Site) -> None:
    queue = site.queue(worker="host-1:uuid")
    queue.enqueue("7")
    task = queue.dequeue()
    assert task is not None
    key = site.keys.lock("7")
    assert key.endswith("task:lock:7")
    assert site.raw.get(key).decode() == task.lock == f"host-1:uuid:{task.fencing}"
    assert 295_000 < site.raw.pttl(key) <= 300_000


def test_ac4_dequeue_pops_and_locks_at_once_and_answers_nothing_when_the_queue_is_empty(site: Site) -> None:
    queue = site.queue()
    assert queue.dequeue() is None
    queue.enqueue("1")
    task = queue.dequeue()
    assert task is not None
    assert site.raw.zscore(site.keys.queue, "1") is None
    assert site.raw.exists(site.keys.lock("1"))
    assert site.raw.zscore(site.keys.in_flight, "1") is not None
    assert site.queue().dequeue() is None


def test_ac5_requeue_releases_the_lock_and_scores_by_the_time_after_the_delay(
    site: Site, clock: ManualClock, drain: Drain
) -> None:
    queue = site.queue(now_ms=clock)
    queue.enqueue("failed", TaskPriority.HIGH)
    queue.dequeue()
    queue.requeue_with_delay("failed", 60)
    assert not queue.is_locked("failed")
    due = clock.ms + 60_000
    assert site.raw.zscore(site.keys.retry, "failed") == due
    clock.advance(60)
    queue.enqueue("normal")
    queue.enqueue("high, later".replace(", ", "-"), TaskPriority.HIGH)
    assert drain(queue) == ["failed", "high-later", "normal"]


def test_ac6_size_and_locks_can_be_looked_at_and_a_lock_released(site: Site) -> None:
    queue = site.queue()
    for number in range(3):
        queue.enqueue(str(number))
    assert (queue.queue_size(), queue.is_locked("0")) == (3, False)
    task = queue.dequeue()
    assert (queue.queue_size(), queue.is_locked("0"), str(task)) == (2, True, "0")
    assert queue.release_lock("0")
    assert (queue.queue_size(), queue.is_locked("0")) == (3, False)
    assert not queue.release_lock("0")


def test_ac7_order_locks_delay_and_edge_cases(site: Site, clock: ManualClock, drain: Drain) -> None:
    queue, other = site.queue(now_ms=clock), site.queue(now_ms=clock)
    for task_id, priority in [("n1", 50), ("h1", 100), ("n2", 50), ("h2", 100)]:
        assert queue.enqueue(task_id, priority)
    assert not queue.enqueue("n1")
    clock.advance(1)
    first = queue.dequeue()
    assert str(first) == "h1"
    clock.advance(301)
    with pytest.raises(LockLost):
        queue.complete("h1")
    assert drain(other) == ["h1", "h2", "n1", "n2"]
    assert other.dequeue() is None


def test_ac8_many_threads_get_every_task_once_in_the_order_of_priorities(site: Site) -> None:
    producer = site.queue()
    expected = [f"task-{number}" for number in range(200)]
    for number, task_id in enumerate(expected):
        producer.enqueue(task_id, TaskPriority.HIGH if number % 2 else TaskPriority.NORMAL)
    taken: list[tuple[str, int]] = []
    guard = threading.Lock()

    def work(queue: BlockingPriorityQueue) -> None:
        while task := queue.dequeue():
            with guard:
                taken.append((task.task_id, task.fencing))
            queue.complete(task)

    queues = [site.queue() for _ in range(3)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, queues * 2))
    assert Counter(task_id for task_id, _ in taken) == Counter(expected)
    in_order = [int(task_id.removeprefix("task-")) % 2 for task_id, _ in sorted(taken, key=lambda pair: pair[1])]
    assert in_order == [1] * 100 + [0] * 100
    assert producer.queue_size(include_delayed=True) == 0
