"""What workers call means the same for all four kinds of clients."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.sdk.clients import WORKER

from codeq import Backoff, BackoffKind, Job, ReleaseResult, Status
from codeq.domain.task import Holder
from codeq.errors import Cancelled, InvalidRequest, NotFound, NotInProgress, NotOwner
from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.durations import unix_ms
from codeq.sdk.tasks import record_of

UNKNOWN = "019b0000-0000-7000-8000-000000000000"


def held(queue: BlockingVerbs, command: str = "work", **options: Any) -> Job:
    """A new task, claimed."""
    task = queue.enqueue(command, {"n": 1}, **options)
    [job] = queue.claim(command, worker=WORKER)
    assert job.id == task.id
    return job


def test_a_job_has_all_that_is_needed_to_do_it(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work", {"n": 1}, priority=4, max_attempts=3)
    [job] = queue.claim("work", worker=WORKER, lease=90)
    assert (job.id, job.command, job.payload, job.priority) == (task.id, "work", {"n": 1}, 4)
    assert (job.attempt, job.attempts, job.max_attempts, job.deliveries) == (1, 0, 3, 1)
    assert (job.holder, job.trace_parent, job.trace_state) == (Holder(WORKER, 1), None, None)
    assert type(job.raw) is bytes
    now = queue.get(task.id).task
    assert (now.status, now.worker, now.lease_token) == (Status.IN_PROGRESS, WORKER, 1)
    assert job.lease_until == now.lease_until == now.updated_at + timedelta(seconds=90)


def test_a_claim_gets_the_highest_priority_first_and_no_more_than_it_asked_for(queue: BlockingVerbs) -> None:
    for n, priority in enumerate([0, 9, 5, 9]):
        queue.enqueue("work", n, priority=priority)
    assert [job.payload for job in queue.claim("work", worker=WORKER, limit=3)] == [1, 3, 2]
    assert [job.payload for job in queue.claim("work", worker=WORKER, limit=3)] == [0]
    assert queue.claim("work", worker=WORKER, limit=3) == []


def test_a_claim_takes_the_commands_it_names_or_all(queue: BlockingVerbs) -> None:
    for command in ("a", "b", "c"):
        queue.enqueue(command, command)
    assert {job.command for job in queue.claim("a", "b", "a", worker=WORKER, limit=9)} == {"a", "b"}
    assert [job.command for job in queue.claim(worker=WORKER, limit=9)] == ["c"]


def test_a_claim_waits_for_a_task(queue: BlockingVerbs) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.claim, "work", worker=WORKER, wait=30)
        task = queue.enqueue("work", 1)
        assert [job.id for job in waiting.result(30)] == [task.id]
    assert queue.claim("work", worker=WORKER, wait=0.05) == []


def test_a_lease_that_ends_gives_the_task_to_another(queue: BlockingVerbs) -> None:
    queue.enqueue("work", 1, backoff=Backoff(BackoffKind.FIXED, 0, 0))
    [first] = queue.claim("work", worker=WORKER, lease=0.1)
    [second] = queue.claim("work", worker=WORKER, wait=20)
    assert (second.id, second.attempts, second.holder.token) == (first.id, 1, 2)
    with pytest.raises(NotOwner, match=first.id):
        queue.complete(first)
    queue.complete(second)


def test_a_heartbeat_says_until_when(queue: BlockingVerbs) -> None:
    job = held(queue)
    until = queue.heartbeat(job, timedelta(hours=2), progress="half")
    assert until.tzinfo is UTC
    task = queue.get(job.id).task
    assert until == task.lease_until
    assert task.progress == "half"
    claimed_s = unix_ms(job.lease_until) / 1000 - 300
    assert timedelta(hours=2) <= until - datetime.fromtimestamp(claimed_s, UTC) < timedelta(hours=2, minutes=1)
    assert queue.heartbeat(job, 60.5) == until


def test_a_heartbeat_that_says_nothing_extends_by_the_lease_of_the_queue(queue: BlockingVerbs) -> None:
    queue.enqueue("work", 1)
    [job] = queue.claim("work", worker=WORKER, lease=20)
    until = queue.heartbeat(job).timestamp() * 1000
    assert 300_000 <= until - (unix_ms(job.lease_until) - 20_000) < 330_000


def test_heartbeats_of_many_say_until_when_each_lease_lasts_or_why_it_is_lost(queue: BlockingVerbs) -> None:
    assert queue.heartbeat_many([]) == []
    for number in range(3):
        queue.enqueue("work", number)
    jobs = queue.claim("work", worker=WORKER, limit=3, lease=20)
    queue.cancel(jobs[1].id)
    unknown = Job("x", "work", b"", jobs[0].holder)
    first, cancelled, second, missing = queue.heartbeat_many([*jobs, unknown], timedelta(hours=2))
    assert isinstance(cancelled, Cancelled)
    assert isinstance(missing, NotFound)
    for job, until in ((jobs[0], first), (jobs[2], second)):
        assert until == queue.get(job.id).task.lease_until
        assert (
            7_200_000
            <= record_of(queue.get(job.id).task).lease_until_ms - (unix_ms(job.lease_until) - 20_000)
            < 7_230_000
        )


def test_a_job_is_completed_once_and_the_same_again_is_no_fault(queue: BlockingVerbs) -> None:
    job = held(queue)
    queue.complete(job, {"ok": [True]})
    queue.complete(job, {"ok": "another"})
    assert queue.wait(job.id) == {"ok": [True]}
    with pytest.raises(NotInProgress, match=job.id):
        queue.fail(job, "too late")


def test_a_job_that_failed_for_good_is_not_tried_again(queue: BlockingVerbs) -> None:
    job = held(queue)
    queue.fail(job, "no such account")
    kept = queue.get(job.id)
    assert (kept.task.status, kept.task.error, kept.task.is_dead, kept.result) == (
        Status.FAILED,
        "no such account",
        False,
        None,
    )
    assert queue.list(dead=True).tasks == []


@pytest.mark.parametrize("error", ["", None])
def test_a_failure_needs_a_reason(queue: BlockingVerbs, error: Any) -> None:
    job = held(queue)
    with pytest.raises(InvalidRequest):
        queue.fail(job, error)
    queue.complete(job)


def test_of_many_results_each_is_answered_by_itself(queue: BlockingVerbs) -> None:
    for n in range(4):
        queue.enqueue("work", n)
    jobs = queue.claim("work", worker=WORKER, limit=4)
    queue.cancel(jobs[1].id)
    late = Job(jobs[2].id, "work", b"", Holder(WORKER, 99))
    gone = Job(UNKNOWN, "work", b"", Holder(WORKER, 1))
    answers = queue.complete_many([jobs[0], jobs[1], late, gone, jobs[3]], [0, 1, 2, 3, {"n": 4}])
    assert [type(answer) for answer in answers] == [type(None), Cancelled, NotOwner, NotFound, type(None)]
    assert all(job.id in str(answer) for job, answer in zip(jobs[1:3], answers[1:3], strict=True))
    assert (queue.wait(jobs[0].id), queue.wait(jobs[3].id)) == (0, {"n": 4})
    assert queue.complete_many([jobs[2]]) == [None]
    assert queue.wait(jobs[2].id) is None


def test_no_results_are_no_answers(queue: BlockingVerbs) -> None:
    assert queue.complete_many([]) == []


def test_results_that_do_not_match_the_jobs_are_refused(queue: BlockingVerbs) -> None:
    job = held(queue)
    with pytest.raises(InvalidRequest, match="1 job"):
        queue.complete_many([job], [1, 2])
    queue.complete(job)


def test_a_result_that_is_too_large_is_refused_and_a_small_one_taken(queue: BlockingVerbs) -> None:
    job = held(queue)
    with pytest.raises(InvalidRequest, match="bytes"):
        queue.complete(job, "x" * (1 << 20))
    with pytest.raises(InvalidRequest, match="bytes"):
        queue.complete_many([job] * 70, ["x" * (1 << 20)] * 70)
    queue.complete(job, "x" * 1000)


def test_a_nack_waits_as_long_as_it_says(queue: BlockingVerbs) -> None:
    job = held(queue)
    assert queue.nack(job, "busy", delay=1.5) == ReleaseResult(False, 1.5)
    task = queue.get(job.id).task
    assert (task.status, task.attempts, task.last_error) == (Status.PENDING, 1, "busy")
    assert task.visible_at == task.updated_at + timedelta(seconds=1.5)


def test_a_nack_without_delay_follows_the_backoff(queue: BlockingVerbs) -> None:
    job = held(queue)
    given = queue.nack(job)
    assert not given.is_dead
    assert 0 <= given.delay_seconds <= 5


def test_a_nack_with_no_delay_at_all_goes_to_the_back_of_the_queue(queue: BlockingVerbs) -> None:
    job = held(queue)
    queue.enqueue("work", "next")
    assert queue.nack(job, delay=0) == ReleaseResult(False, 0.0)
    assert [found.payload for found in queue.claim("work", worker=WORKER, limit=2)] == ["next", {"n": 1}]


def test_the_last_nack_buries_the_task(queue: BlockingVerbs) -> None:
    job = held(queue, max_attempts=1)
    given = queue.nack(job, "hopeless", delay=5)
    assert given == ReleaseResult(True, 0.0)
    assert (type(given.is_dead), type(given.delay_seconds)) == (bool, float)
    assert [task.id for task in queue.list(dead=True).tasks] == [job.id]


def test_a_job_that_is_beyond_hope_is_buried_at_once(queue: BlockingVerbs) -> None:
    job = held(queue, max_attempts=9)
    assert queue.nack(job, "no use", dead=True) == ReleaseResult(True, 0.0)
    assert [task.id for task in queue.list(dead=True).tasks] == [job.id]


@pytest.mark.parametrize("reason", ["e" * 200_000, "a file named \udcff", "two\nlines\ttabbed", "ünï"])
def test_no_reason_is_too_odd_to_be_reported(queue: BlockingVerbs, reason: str) -> None:
    job = held(queue)
    queue.nack(job, reason, delay=0)
    [job] = queue.claim("work", worker=WORKER)
    first = queue.get(job.id).task.last_error
    queue.fail(job, reason)
    kept = queue.get(job.id).task
    assert kept.error == first
    assert kept.error
    assert kept.error[:14] == reason.encode("utf-8", "backslashreplace").decode()[:14]


def test_an_abandoned_job_goes_to_another_at_once_and_counts_no_attempt(queue: BlockingVerbs) -> None:
    job = held(queue)
    assert queue.abandon(job) == ReleaseResult(False, 0.0)
    [again] = queue.claim("work", worker=WORKER)
    assert (again.id, again.attempts, again.deliveries, again.holder.token) == (job.id, 0, 2, 2)


def test_a_job_that_was_cancelled_says_so_to_its_worker(queue: BlockingVerbs) -> None:
    job = held(queue)
    assert queue.cancel(job.id).status is Status.CANCELLED
    for call in (queue.heartbeat, queue.complete, queue.nack, queue.abandon):
        with pytest.raises(Cancelled, match=job.id):
            call(job)


def test_an_older_lease_is_not_the_owner(queue: BlockingVerbs) -> None:
    job = held(queue)
    assert queue.abandon(job) == queue.abandon(job)  # the same again is no fault
    for refused in (queue.heartbeat, queue.complete, queue.nack):
        with pytest.raises(NotInProgress, match=job.id):
            refused(job)
    [newer] = queue.claim("work", worker=WORKER)
    for call in (queue.heartbeat, queue.complete, queue.nack, queue.abandon):
        with pytest.raises(NotOwner, match=job.id):
            call(job)
    queue.complete(newer)


BAD_CALLS: dict[str, Callable[[BlockingVerbs, Job], Any]] = {
    "no limit": lambda q, _: q.claim("work", limit=0),
    "a high limit": lambda q, _: q.claim("work", limit=1001),
    "a short lease": lambda q, _: q.claim("work", lease=0.01),
    "no lease": lambda q, _: q.claim("work", lease=0),
    "a lease before now": lambda q, _: q.claim("work", lease=-1),
    "a long lease": lambda q, _: q.claim("work", lease=timedelta(hours=13)),
    "a wait before now": lambda q, _: q.claim("work", wait=-1),
    "a bad command": lambda q, _: q.claim("no spaces!"),
    "many commands": lambda q, _: q.claim(*[f"c{n}" for n in range(65)]),
    "half a character": lambda q, _: q.claim("\ud800"),
    "a limit that is no number": lambda q, _: q.claim("work", limit="5"),  # type: ignore[arg-type]
    "a long progress": lambda q, job: q.heartbeat(job, progress="p" * 201),
    "a progress of half a character": lambda q, job: q.heartbeat(job, progress="\ud800"),
    "a short heartbeat": lambda q, job: q.heartbeat(job, 0.01),
    "no heartbeat": lambda q, job: q.heartbeat(job, 0),
    "a long heartbeat": lambda q, job: q.heartbeat(job, timedelta(hours=13)),
    "a delay before now": lambda q, job: q.nack(job, delay=-1),
    "a delay past a day": lambda q, job: q.nack(job, delay=timedelta(hours=25)),
    "a reason that is no text": lambda q, job: q.nack(job, 5),  # type: ignore[arg-type]
    "a result that is no JSON": lambda q, job: q.complete(job, object()),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_call_past_a_limit_is_refused_and_changes_nothing(queue: BlockingVerbs, case: str) -> None:
    job = held(queue)
    with pytest.raises(InvalidRequest):
        BAD_CALLS[case](queue, job)
    queue.complete(job)
