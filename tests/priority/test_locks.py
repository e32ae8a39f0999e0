"""Whose task it is: owners, expiry, renewal, fencing, and locks of others."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.priority.conftest import ManualClock, Site

from codeq.domain.errors import InvalidRequest
from codeq.priority import BlockingPriorityQueue, Claimed, LockLost

Drain = Callable[[BlockingPriorityQueue], list[str]]
CALLS: dict[str, Callable[[BlockingPriorityQueue, "str | Claimed"], object]] = {
    "renew": lambda queue, task: queue.renew(task),
    "complete": lambda queue, task: queue.complete(task),
    "release_lock": lambda queue, task: queue.release_lock(task),
    "requeue_with_delay": lambda queue, task: queue.requeue_with_delay(task, 1),
}


@pytest.mark.parametrize("call", CALLS)
def test_another_worker_is_refused_and_changes_nothing(site: Site, call: str) -> None:
    owner, other = site.queue(), site.queue()
    owner.enqueue("a")
    task = owner.dequeue()
    assert task is not None
    with pytest.raises(LockLost, match="holds it"):
        CALLS[call](other, "a")
    assert other.is_locked("a")
    owner.complete(task)


@pytest.mark.parametrize("call", CALLS)
def test_a_late_worker_is_refused_while_the_next_one_works(site: Site, clock: ManualClock, call: str) -> None:
    late, prompt = site.queue(now_ms=clock), site.queue(now_ms=clock)
    late.enqueue("a")
    late.dequeue()
    clock.advance(300)
    task = prompt.dequeue()
    assert task is not None
    assert task.attempts == 2
    with pytest.raises(LockLost):
        CALLS[call](late, "a")
    assert prompt.is_locked("a")
    prompt.complete(task)


@pytest.mark.parametrize("call", ["renew", "complete", "requeue_with_delay"])
def test_a_lock_that_expired_is_lost_also_if_nobody_took_the_task(site: Site, clock: ManualClock, call: str) -> None:
    queue = site.queue(now_ms=clock)
    queue.enqueue("a")
    queue.dequeue()
    clock.advance(300)
    assert not queue.is_locked("a")
    with pytest.raises(LockLost, match="expired"):
        CALLS[call](queue, "a")
    assert queue.queue_size() == 1


@pytest.mark.parametrize("call", CALLS)
def test_the_fencing_number_tells_two_deliveries_to_one_worker_apart(site: Site, clock: ManualClock, call: str) -> None:
    queue = site.queue(now_ms=clock)
    queue.enqueue("a")
    first = queue.dequeue()
    clock.advance(300)
    second = queue.dequeue()
    assert first is not None
    assert second is not None
    assert second.fencing > first.fencing
    with pytest.raises(LockLost):
        CALLS[call](queue, first)
    queue.complete(second)


def test_renewing_keeps_the_lock_past_its_time(site: Site, clock: ManualClock) -> None:
    queue = site.queue(now_ms=clock, lock_ttl_s=10)
    queue.enqueue("a")
    queue.dequeue()
    for _ in range(5):
        clock.advance(9)
        queue.renew("a")
    assert queue.recover() == []
    assert queue.is_locked("a")
    queue.complete("a")


def test_a_real_lock_expires_by_itself_and_the_task_is_delivered_again(site: Site) -> None:
    dying, next_worker = site.queue(lock_ttl_s=0.1), site.queue()
    dying.enqueue("a")
    dying.dequeue()
    task = next_worker.dequeue(wait=10)
    assert task is not None
    assert (task.task_id, task.attempts) == ("a", 2)
    next_worker.complete(task)


def test_what_was_completed_is_not_delivered_again(site: Site, clock: ManualClock) -> None:
    queue = site.queue(now_ms=clock)
    queue.enqueue("a")
    queue.complete(str(queue.dequeue()))
    clock.advance(1000)
    assert queue.recover() == []
    assert queue.dequeue() is None
    with pytest.raises(LockLost):
        queue.complete("a")
    assert not site.raw.hexists(site.keys.records, "a")


def test_recover_returns_the_tasks_of_dead_workers_all_of_them(site: Site, clock: ManualClock, drain: Drain) -> None:
    queue = site.queue(now_ms=clock)
    ids = [f"task-{number}" for number in range(150)]
    for task_id in ids:
        queue.enqueue(task_id)
        queue.dequeue()
    clock.advance(300)
    assert queue.queue_size() == 150
    assert sorted(queue.recover()) == sorted(ids)
    assert drain(queue) == ids


def test_a_dequeue_recovers_some_at_a_time_and_none_is_forgotten(site: Site, clock: ManualClock, drain: Drain) -> None:
    queue = site.queue(now_ms=clock)
    ids = [f"task-{number}" for number in range(150)]
    for task_id in ids:
        queue.enqueue(task_id)
        queue.dequeue()
    clock.advance(300)
    assert sorted(drain(queue)) == sorted(ids)


def test_a_head_that_another_program_locked_does_not_stall_the_queue(
    site: Site, clock: ManualClock, drain: Drain
) -> None:
    queue = site.queue(now_ms=clock)
    for task_id in ("locked-1", "locked-2", "free-1", "free-2"):
        queue.enqueue(task_id)
    for task_id in ("locked-1", "locked-2"):
        site.raw.set(site.keys.lock(task_id), "somebody", ex=300)
    assert queue.is_locked("locked-1")
    assert drain(queue) == ["free-1", "free-2"]
    assert queue.queue_size(include_delayed=True) == 2
    site.raw.delete(site.keys.lock("locked-1"), site.keys.lock("locked-2"))
    clock.advance(300)
    assert drain(queue) == ["locked-1", "locked-2"]


def test_a_key_in_place_of_a_lock_that_is_none_stops_nothing(site: Site, drain: Drain) -> None:
    queue = site.queue()
    site.raw.hset(site.keys.lock("odd"), "a", "b")
    queue.enqueue("odd")
    queue.enqueue("good")
    assert drain(queue) == ["good"]
    assert queue.is_locked("odd")


def test_a_hundred_locked_heads_are_passed_in_one_dequeue(site: Site, drain: Drain) -> None:
    queue = site.queue()
    for number in range(100):
        site.raw.set(site.keys.lock(f"locked-{number}"), "somebody", ex=300)
        queue.enqueue(f"locked-{number}", 100)
    queue.enqueue("free")
    assert drain(queue) == ["free"]


def test_a_task_that_another_program_adds_while_it_runs_runs_once(site: Site, drain: Drain) -> None:
    queue = site.queue()
    queue.enqueue("a")
    queue.dequeue()
    site.raw.zadd(site.keys.queue, {"a": 1_738_800_000_000})
    assert drain(site.queue()) == []
    queue.complete("a")
    assert queue.queue_size(include_delayed=True) == 0


def test_an_operator_can_release_the_lock_of_a_worker_that_hangs(site: Site, drain: Drain) -> None:
    hanging, operator = site.queue(), site.queue()
    hanging.enqueue("a")
    task = hanging.dequeue()
    assert task is not None
    assert operator.release_lock("a", force=True)
    assert drain(operator) == ["a"]
    with pytest.raises(LockLost):
        hanging.complete(task)


def test_a_task_that_is_delivered_too_often_is_set_aside_and_can_be_revived(
    site: Site, clock: ManualClock, drain: Drain
) -> None:
    queue = site.queue(now_ms=clock, max_attempts=3)
    queue.enqueue("poison")
    queue.enqueue("good")
    for _ in range(3):
        assert str(queue.dequeue()) == "poison"
        clock.advance(300)
    assert drain(queue) == ["good"]
    assert queue.dead() == ["poison"]
    assert queue.enqueue("poison")
    assert queue.dead() == []
    task = queue.dequeue()
    assert task is not None
    assert task.attempts == 1


def test_the_default_worker_is_the_host_and_a_number_of_its_own(site: Site) -> None:
    first, second = site.queue(), site.queue()
    assert first.worker != second.worker
    assert first.worker.count(":") == 1


@pytest.mark.parametrize("options", [{"lock_ttl_s": 0}, {"lock_ttl_s": float("nan")}, {"age_after_s": -1},
                                     {"max_attempts": 0}, {"worker": ""}, {"lock_ttl_s": "5"}, {"lock_ttl_s": True},
                                     {"age_after_s": 10**400}, {"max_attempts": 2.5}])  # fmt: skip
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        BlockingPriorityQueue("redis://127.0.0.1:1/0", **options)
