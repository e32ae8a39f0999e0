"""The queue and a simple model run the same calls, and after each one they must agree on everything."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.priority.conftest import Site
from tests.priority.model import Model, Place
from tests.redis_servers import RedisNode

from codeq.priority import BlockingPriorityQueue, Claimed, LockLost

pytestmark = pytest.mark.slow

IDS = st.sampled_from(["9", "10", "a", "b/1", "c"])
PRIORITIES = st.sampled_from([0, 50, 50, 100, 99])
WORKERS: dict[str, dict[str, Any]] = {"ann": {}, "bob": {"age_after_s": 120}, "eve": {"max_attempts": 3}}
NAMES = st.sampled_from(sorted(WORKERS))
HAVE_CLAIM = st.booleans()
IN_FLIGHT = st.none() | st.integers(0, 4)
"""Which of the tasks in flight to name together with its worker; None to name any task and any worker."""


class PriorityQueueAgainstModel(RuleBasedStateMachine):
    node: RedisNode

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.site = Site(self.node.url, self.node.client(), is_cluster=False)
        self.queues: dict[str, BlockingPriorityQueue] = {
            name: self.site.queue(worker=name, now_ms=lambda: self.model.now_ms, **options)
            for name, options in WORKERS.items()
        }
        self.claims: dict[str, tuple[Claimed, int]] = {}
        self.fencing = 0

    @rule(task_id=IDS, priority=PRIORITIES)
    def enqueue(self, task_id: str, priority: int) -> None:
        assert self.queues["ann"].enqueue(task_id, priority) == self.model.enqueue(task_id, priority)

    @rule(worker=NAMES)
    def dequeue(self, worker: str) -> None:
        options = WORKERS[worker]
        age_s, attempts_max = options.get("age_after_s"), options.get("max_attempts")
        expected = self.model.dequeue(worker, age_ms=age_s and age_s * 1000, attempts_max=attempts_max)
        task = self.queues[worker].dequeue()
        assert (task and task.task_id) == expected
        if task:
            entry = self.model.entries[task.task_id]
            assert (task.priority, task.attempts) == (entry.priority, entry.attempts)
            assert task.fencing > self.fencing
            self.fencing = task.fencing
            self.claims[task.task_id] = (task, entry.delivery)

    @rule(
        worker=NAMES,
        task_id=IDS,
        flight=IN_FLIGHT,
        by_claim=HAVE_CLAIM,
        verb=st.sampled_from(["renew", "complete", "release"]),
    )
    def finish(self, worker: str, task_id: str, *, flight: int | None, by_claim: bool, verb: str) -> None:
        worker, task_id = self._pick(worker, task_id, flight)
        queue = self.queues[worker]
        calls: dict[str, Callable[[str | Claimed], object]] = {
            "renew": queue.renew,
            "complete": queue.complete,
            "release": queue.release_lock,
        }
        changes: dict[str, Callable[[str], None]] = {
            "renew": self.model.renew,
            "complete": self.model.complete,
            "release": self.model.release,
        }
        task, is_holder = self._task(worker, task_id, by_claim=by_claim)
        if is_holder:
            calls[verb](task)
            changes[verb](task_id)
        elif verb == "release" and not self.model.is_locked(task_id):
            assert queue.release_lock(task) is False
        else:
            with pytest.raises(LockLost):
                calls[verb](task)

    @rule(
        worker=NAMES,
        task_id=IDS,
        flight=IN_FLIGHT,
        by_claim=HAVE_CLAIM,
        delay_s=st.sampled_from([0, 1, 60]),
        priority=st.none() | PRIORITIES,
    )
    def requeue(
        self, worker: str, task_id: str, *, flight: int | None, by_claim: bool, delay_s: int, priority: int | None
    ) -> None:
        worker, task_id = self._pick(worker, task_id, flight)
        task, is_holder = self._task(worker, task_id, by_claim=by_claim)
        if is_holder:
            self.queues[worker].requeue_with_delay(task, delay_s, priority)
            self.model.requeue(task_id, delay_s * 1000, priority)
        else:
            with pytest.raises(LockLost):
                self.queues[worker].requeue_with_delay(task, delay_s, priority)

    @rule(seconds=st.sampled_from([0.001, 1, 59, 299.999, 300]))
    def time_passes(self, seconds: float) -> None:
        self.model.now_ms += round(seconds * 1000)

    @rule()
    def recover(self) -> None:
        assert set(self.queues["eve"].recover()) == self.model.recover()

    @rule()
    def forget_scripts(self) -> None:
        self.site.raw.script_flush()

    @invariant()
    def sizes_agree(self) -> None:
        queue = self.queues["ann"]
        for include_delayed in (False, True):
            assert queue.queue_size(include_delayed) == self.model.size(include_delayed=include_delayed)

    @invariant()
    def locks_agree(self) -> None:
        for task_id in ("9", "10", "a", "b/1", "c"):
            assert self.queues["bob"].is_locked(task_id) == self.model.is_locked(task_id)

    @invariant()
    def places_agree(self) -> None:
        keys = self.site.keys
        places = {Place.QUEUE: keys.queue, Place.RETRY: keys.retry, Place.FLIGHT: keys.in_flight, Place.DEAD: keys.dead}
        for place, key in places.items():
            found = {member.decode(): int(score) for member, score in self.site.raw.zrange(key, 0, -1, withscores=True)}
            expected = {
                task_id: entry.score if place in (Place.QUEUE, Place.DEAD) else entry.until_ms
                for task_id, entry in self.model.entries.items()
                if entry.place is place
            }
            assert found == expected
        assert self.site.raw.hlen(keys.records) == len(self.model.entries)

    def teardown(self) -> None:
        self.site.close()

    def _pick(self, worker: str, task_id: str, flight: int | None) -> tuple[str, str]:
        """Returns a worker and a task in its hands, so that walks get far; or what was given."""
        flights = [(entry.worker, id_) for id_, entry in self.model.entries.items() if entry.place is Place.FLIGHT]
        return flights[flight % len(flights)] if flights and flight is not None else (worker, task_id)

    def _task(self, worker: str, task_id: str, *, by_claim: bool) -> tuple[str | Claimed, bool]:
        """Returns the id, or the newest claim of it by anybody, and whether the worker holds that."""
        if by_claim and task_id in self.claims:
            task, delivery = self.claims[task_id]
            return task, self.model.holds(worker, task_id, delivery)
        return task_id, self.model.holds(worker, task_id)


def test_the_queue_agrees_with_the_model(node: RedisNode) -> None:
    PriorityQueueAgainstModel.node = node
    run_state_machine_as_test(
        PriorityQueueAgainstModel,
        settings=settings(
            max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
