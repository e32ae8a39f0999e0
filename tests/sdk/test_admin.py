"""What operators call means the same for all four kinds of clients."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from tests.sdk.clients import WORKER
from tests.server.server_process import eventually

from codeq import OnExpiry, PartialBackoff, QueuePolicy, Status, Task, linear, partial_backoff
from codeq.domain.requests import BulkResult
from codeq.errors import InvalidRequest, NotDead, NotFound, PolicyChanged
from codeq.sdk.blocking import BlockingVerbs

UNKNOWN = "019b0000-0000-7000-8000-000000000000"


def dead(queue: BlockingVerbs, command: str = "work", reason: str = "broken") -> Task:
    task = queue.enqueue(command, 1, max_attempts=1)
    [job] = queue.claim(command, worker=WORKER)
    queue.nack(job, reason)
    return task


def test_dead_tasks_are_listed_oldest_death_first(queue: BlockingVerbs) -> None:
    first, second, other = dead(queue), dead(queue, reason="worse"), dead(queue, "other")
    queue.enqueue("work", "alive")
    page = queue.list(dead=True, command="work")
    assert [task.id for task in page.tasks] == [first.id, second.id]
    assert [(task.error, task.last_error, task.is_dead) for task in page.tasks] == [
        ("MAX_ATTEMPTS", "broken", True),
        ("MAX_ATTEMPTS", "worse", True),
    ]
    assert {task.id for task in queue.list(dead=True).tasks} == {first.id, second.id, other.id}
    assert [task.id for task in queue.list(dead=True, error="wors").tasks] == [second.id]
    assert [task.id for task in queue.list(dead=True, status="FAILED", command="other").tasks] == [other.id]
    assert queue.list(dead=True, status="PENDING").tasks == []
    assert queue.queues()["work"].dead == 2


def test_the_dead_are_paged_through(queue: BlockingVerbs) -> None:
    buried = [dead(queue).id for _ in range(5)]
    found: list[str] = []
    cursor = None
    while True:
        page = queue.list(dead=True, limit=2, cursor=cursor)
        found += [task.id for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == buried


def test_a_dead_task_is_replayed_with_all_its_tries(queue: BlockingVerbs) -> None:
    task = dead(queue)
    queue.replay(task.id)
    [job] = queue.claim("work", worker=WORKER)
    assert (job.id, job.attempt, job.holder.token) == (task.id, 1, 2)
    with pytest.raises(NotDead, match=task.id):
        queue.replay(task.id)
    with pytest.raises(NotFound, match=UNKNOWN):
        queue.replay(UNKNOWN)


def test_a_dead_task_is_forgotten(queue: BlockingVerbs) -> None:
    task = dead(queue)
    queue.purge(task.id)
    with pytest.raises(NotFound):
        queue.get(task.id)
    alive = queue.enqueue("work", 1)
    with pytest.raises(NotDead):
        queue.purge(alive.id)
    with pytest.raises(NotFound):
        queue.purge(UNKNOWN)


@pytest.mark.parametrize("verb", ["replay_dead", "purge_dead"])
def test_many_dead_tasks_are_chosen_by_id(queue: BlockingVerbs, verb: str) -> None:
    sweep = getattr(queue, verb)
    first, second = dead(queue), dead(queue)
    alive = queue.enqueue("work", 1)
    chosen = [first.id, alive.id, UNKNOWN]
    assert sweep(ids=chosen, dry_run=True) == BulkResult(1, 0, [first.id])
    assert sweep(ids=chosen) == BulkResult(1, 1, [first.id], {alive.id: "not-dead", UNKNOWN: "not-found"})
    assert [task.id for task in queue.list(dead=True).tasks] == [second.id]
    assert sweep(ids=[]) == BulkResult(0, 0, [])
    assert [task.id for task in queue.list(dead=True).tasks] == [second.id]


@pytest.mark.parametrize("verb", ["replay_dead", "purge_dead"])
def test_many_dead_tasks_are_chosen_by_what_they_are(queue: BlockingVerbs, verb: str) -> None:
    sweep = getattr(queue, verb)
    [a, b, c, d] = [dead(queue), dead(queue, reason="disk"), dead(queue, "other"), dead(queue, "third")]
    assert sweep("work", error="disk", dry_run=True) == BulkResult(1, 0, [b.id])
    assert sweep("work", error="disk") == BulkResult(1, 1, [b.id])
    assert sweep(error="brok", limit=1).changed == 1
    assert len(queue.list(dead=True).tasks) == 2
    left = {task.id for task in queue.list(dead=True).tasks}
    assert left < {a.id, c.id, d.id}
    done = sweep()
    assert (done.matched, done.changed, set(done.ids), done.refused) == (2, 2, left, {})
    assert sweep() == BulkResult(0, 0, [])


def test_ended_tasks_are_forgotten_before_their_time(queue: BlockingVerbs) -> None:
    tasks = [queue.enqueue("work", n) for n in range(3)]
    queue.cancel(tasks[0].id)
    queue.cancel(tasks[1].id)
    assert queue.cleanup() == 0
    tomorrow = datetime.now(UTC) + timedelta(days=1, minutes=1)
    assert queue.cleanup(before=tomorrow, limit=1) == 1
    assert queue.cleanup(before=tomorrow) == 1
    assert [task.id for task in queue.list().tasks] == [tasks[2].id]


POLICY = QueuePolicy(
    max_attempts=2,
    max_deliveries=7,
    lease=12.5,
    backoff=linear(1.25, 60),
    on_expiry=OnExpiry.IMMEDIATE,
    retention=3_600,
    dead_retention=7_200,
    max_consumers=3,
    priority_tiers=(1, 5),
    dead_letter_ref="elsewhere",
)


def rules(policy: QueuePolicy | None) -> QueuePolicy:
    """Without what the store notes about the policy."""
    assert policy is not None
    return replace(policy, version=0, created_at=None, updated_at=None)


def test_a_policy_is_kept_followed_and_forgotten(queue: BlockingVerbs) -> None:
    assert queue.policy("work") is None
    queue.set_policy("work", POLICY)
    assert rules(queue.policy("work")) == POLICY
    assert queue.enqueue("work", 1).max_attempts == 2
    [job] = queue.claim("work", worker=WORKER)
    task = queue.get(job.id).task
    assert task.lease_until == task.updated_at + timedelta(seconds=12.5)
    assert queue.nack(job).delay_seconds == 1.25
    queue.set_policy("work", None)
    queue.set_policy("work", None)
    assert queue.policy("work") is None
    assert queue.enqueue("work", 1).max_attempts == 5


def test_a_rule_is_changed_without_touching_the_others(queue: BlockingVerbs) -> None:
    """(13.26)"""
    defaults = queue.effective_policy("work")
    first = queue.set_policy("work", QueuePolicy(max_consumers=3, backoff=partial_backoff(base=0.5)), if_match=0)
    assert first is not None
    changed = replace(first, lease=timedelta(seconds=9))
    stored = queue.set_policy("work", changed, if_match=first.etag)
    assert rules(stored) == rules(replace(changed, lease=9))
    with pytest.raises(PolicyChanged):
        queue.set_policy("work", replace(first, max_attempts=1), if_match=first.etag)
    with pytest.raises(PolicyChanged):
        queue.set_policy("work", None, if_match=first.version)
    queue.pause("work")
    found = queue.policy("work")
    assert found is not None
    assert (rules(found), found.version) == (replace(rules(stored), paused=True), 3)
    effective = queue.effective_policy("work")
    assert (effective.backoff.base, effective.backoff.most) == (0.5, defaults.backoff.most)
    assert effective == replace(defaults, max_consumers=3, lease=9, backoff=effective.backoff, paused=True)
    assert queue.set_policy("work", None, if_match=found.etag) is None
    assert queue.effective_policy("work") == defaults


def test_a_paused_queue_takes_tasks_and_hands_out_none(queue: BlockingVerbs) -> None:
    queue.set_policy("work", POLICY)
    queue.pause("work")
    task = queue.enqueue("work", 1)
    assert queue.claim("work", worker=WORKER) == []
    assert queue.queues()["work"].paused
    paused = queue.policy("work")
    assert paused is not None
    assert (rules(paused), paused.version) == (replace(POLICY, paused=True), 2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.claim, "work", worker=WORKER, wait=30)
        queue.resume("work")
        assert [job.id for job in waiting.result(30)] == [task.id]
    assert not queue.queues()["work"].paused


def test_the_events_tell_all_that_happened(queue: BlockingVerbs) -> None:
    start = queue.events(limit=1).end_offset
    task = queue.enqueue("work", 1)
    queue.cancel(task.id)
    page = queue.events(offset=start)
    assert [(event.move, event.task_id, event.status_after) for event in page.events] == [
        ("enqueue", task.id, "PENDING"),
        ("cancel", task.id, "CANCELLED"),
    ]
    assert page.events == queue.history(task.id)
    assert (page.shard, page.shards, page.next_offset) == (0, 1, page.end_offset)
    first, last = page.events
    assert start <= first.seq < last.seq < page.next_offset
    one = queue.events(offset=first.seq, limit=1)
    assert (one.events, one.next_offset) == ([first], first.seq + 1)


def test_whoever_waits_for_events_hears_of_the_next(queue: BlockingVerbs) -> None:
    start = queue.events(limit=1).end_offset
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: eventually(lambda: queue.events(offset=start, wait=0.5).events, 30))
        task = queue.enqueue("work", 1)
        assert [event.task_id for event in waiting.result(30)] == [task.id]


BAD_CALLS: dict[str, Callable[[BlockingVerbs], Any]] = {
    "ids and a command": lambda q: q.replay_dead("work", ids=[UNKNOWN]),
    "ids and an error": lambda q: q.purge_dead(ids=[UNKNOWN], error="x"),
    "no limit": lambda q: q.purge_dead(limit=0),
    "a high limit": lambda q: q.replay_dead(limit=1_000_000),
    "nothing to clean": lambda q: q.cleanup(limit=0),
    "too much to clean": lambda q: q.cleanup(limit=1_000_000),
    "a moment without zone": lambda q: q.cleanup(before=datetime(2030, 1, 1)),  # noqa: DTZ001
    "a policy past its limits": lambda q: q.set_policy("work", QueuePolicy(max_attempts=101)),
    "a policy for no command": lambda q: q.set_policy("no spaces!", QueuePolicy()),
    "tiers that are none": lambda q: q.set_policy("work", QueuePolicy(priority_tiers=(1, 1))),
    "a reference to itself": lambda q: q.set_policy("work", QueuePolicy(dead_letter_ref="work")),
    "a backoff as text": lambda q: q.set_policy("work", QueuePolicy(backoff=cast("PartialBackoff", "fixed"))),
    "an etag that is none": lambda q: q.set_policy("work", None, if_match='x"\r\n\u20ac'),
    "the rules of no command": lambda q: q.effective_policy("no spaces!"),
    "the policy of no command": lambda q: q.policy("no spaces!"),
    "a pause of no command": lambda q: q.pause("no spaces!"),
    "a resume of no command": lambda q: q.resume("no spaces!"),
    "a shard that is not there": lambda q: q.events(shard=7),
    "no events": lambda q: q.events(limit=0),
    "a wait before now": lambda q: q.events(wait=-1),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_call_that_makes_no_sense_is_refused(queue: BlockingVerbs, case: str) -> None:
    buried = dead(queue)
    with pytest.raises(InvalidRequest):
        BAD_CALLS[case](queue)
    assert queue.get(buried.id).task.status is Status.FAILED
