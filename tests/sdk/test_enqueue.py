"""What producers call means the same for all four kinds of clients."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.clients import WORKER
from tests.server.server_process import eventually

import codeq
from codeq import (
    Backoff,
    BackoffKind,
    NewTask,
    ReleaseResult,
    ReplayedTask,
    Status,
    Task,
    TaskDetails,
    TaskFailed,
    WaitTimeout,
    new_tasks,
)
from codeq.errors import AlreadyFinal, IdempotencyMismatch, InvalidRequest, NotFound
from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.durations import unix_ms
from codeq.sdk.tasks import record_of
from codeq.wire import times


def test_a_task_is_enqueued_with_nothing_but_a_command(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work")
    assert isinstance(task, Task)
    assert (task.command, task.status, task.priority, task.attempts) == ("work", Status.PENDING, 0, 0)
    assert (task.max_attempts, task.worker, task.visible_at, task.has_webhook) == (5, None, None, False)
    [job] = queue.claim("work", worker=WORKER)
    assert (job.id, job.payload, job.raw) == (task.id, None, b"null")


def test_a_task_keeps_every_option_it_was_enqueued_with(queue: BlockingVerbs) -> None:
    task = queue.enqueue(
        "work",
        {"n": [1, 2.5, "ü", None, True]},
        priority=7,
        delay=timedelta(hours=1),
        max_attempts=3,
        idempotency_key="a key",
        webhook="https://example.org/hook",
        backoff=Backoff(BackoffKind.FIXED, 250, 1_500),
    )
    assert (task.priority, task.max_attempts, task.has_webhook) == (7, 3, True)
    assert task.visible_at == task.created_at + timedelta(hours=1)
    assert task.payload_bytes == len('{"n":[1,2.5,"ü",null,true]}'.encode())
    assert queue.get(task.id) == TaskDetails(task, {"n": [1, 2.5, "ü", None, True]}, None)
    assert queue.enqueue("work", {"n": [1, 2.5, "ü", None, True]}, idempotency_key="a key").id == task.id
    assert queue.queues()["work"].delayed == 1


def test_a_task_runs_at_the_moment_it_was_given(queue: BlockingVerbs) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2, milliseconds=123)
    task = queue.enqueue("work", 1, run_at=moment)
    assert task.visible_at == moment


def test_a_delay_is_counted_in_seconds_and_ends(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work", 1, delay=0.25)
    assert task.visible_at == task.created_at + timedelta(seconds=0.25)
    [job] = queue.claim("work", worker=WORKER, wait=10)
    assert job.id == task.id


def test_a_tasks_own_backoff_is_followed(queue: BlockingVerbs) -> None:
    queue.enqueue("work", 1, backoff=Backoff(BackoffKind.FIXED, 90_000, 900_000))
    [job] = queue.claim("work", worker=WORKER)
    assert queue.nack(job, "again") == ReleaseResult(False, 90.0)


def test_one_bad_task_among_good_ones_is_refused_alone(queue: BlockingVerbs) -> None:
    tasks = new_tasks("work", [{"n": 0}, {"n": 1}])
    good, bad, last = queue.enqueue_many(
        [tasks[0], NewTask(command="no spaces!", payload=b"1"), tasks[1]], refusals="return"
    )
    assert isinstance(good, Task)
    assert isinstance(last, Task)
    assert type(bad) is InvalidRequest
    assert "no spaces!" in str(bad) or "command" in str(bad)
    assert [job.payload for job in queue.claim("work", worker=WORKER, limit=9)] == [{"n": 0}, {"n": 1}]


BAD_TASKS = {
    "priority too high": NewTask(command="work", priority=10),
    "priority below": NewTask(command="work", priority=-1),
    "priority far too high": NewTask(command="work", priority=1 << 70),
    "no attempts": NewTask(command="work", max_attempts=0),
    "too many attempts": NewTask(command="work", max_attempts=101),
    "an empty key": NewTask(command="work", idempotency_key=""),
    "a key of two lines": NewTask(command="work", idempotency_key="a\nb"),
    "a long key": NewTask(command="work", idempotency_key="k" * 256),
    "a delay before now": NewTask(command="work", delay_ms=-1),
    "a delay of years": NewTask(command="work", delay_ms=10 * 366 * 86_400_000),
    "a moment before the epoch": NewTask(command="work", run_at_ms=-5),
    "a moment past all calendars": NewTask(command="work", run_at_ms=1 << 60),
    "an empty webhook": NewTask(command="work", webhook=""),
    "a webhook that is none": NewTask(command="work", webhook="ftp://example.org"),
    "half a character": NewTask(command="\ud800"),
    "too much payload": NewTask(command="work", payload=b'"' + b"x" * (3 << 20) + b'"'),
    "a payload that is text": NewTask(command="work", payload="1"),  # type: ignore[arg-type]
    "a backoff past a day": NewTask(command="work", backoff=Backoff(BackoffKind.FIXED, 86_400_001, 1)),
}


@pytest.mark.parametrize("case", BAD_TASKS)
def test_a_task_past_a_limit_is_refused_and_its_neighbours_are_taken(queue: BlockingVerbs, case: str) -> None:
    good = NewTask(command="work", payload=b"1")
    answers = queue.enqueue_many([good, BAD_TASKS[case], good], refusals="return")
    assert [type(answer) for answer in answers] == [Task, InvalidRequest, Task]
    [alone] = queue.enqueue_many([BAD_TASKS[case]], refusals="return")
    assert type(alone) is InvalidRequest
    assert queue.queues()["work"].pending == 2


def test_a_backoff_named_by_its_text_is_taken_and_harms_no_neighbour(queue: BlockingVerbs) -> None:
    by_text: Any = "fixed"
    new_tasks = [NewTask(command="work", backoff=backoff) for backoff in (None, Backoff(by_text, 1_000, 2_000), None)]
    assert [isinstance(answer, Task) for answer in queue.enqueue_many(new_tasks)] == [True] * 3


def test_an_empty_batch_enqueues_nothing(queue: BlockingVerbs) -> None:
    assert queue.enqueue_many([]) == []


def test_a_batch_may_be_a_generator(queue: BlockingVerbs) -> None:
    tasks = queue.enqueue_many(codeq.new_task("work", number) for number in range(3))
    assert [queue.get(task).payload for task in tasks] == [0, 1, 2]


def test_a_thousand_tasks_go_in_and_not_one_more(queue: BlockingVerbs) -> None:
    tasks = new_tasks("work", range(1001))
    with pytest.raises(InvalidRequest, match="1000"):
        queue.enqueue_many(tasks)
    assert len(queue.enqueue_many(tasks[:1000])) == 1000
    assert queue.queues()["work"].pending == 1000


def test_a_batch_of_too_many_bytes_is_refused_as_a_whole(queue: BlockingVerbs) -> None:
    tasks = [NewTask(command="work", payload=b'"' + b"x" * ((1 << 20) - 2) + b'"')] * 66
    with pytest.raises(InvalidRequest, match="bytes"):
        queue.enqueue_many(tasks)
    assert queue.queues() == {}


def test_a_key_that_was_used_for_another_task_returns_that_one_and_says_so(queue: BlockingVerbs) -> None:
    """(13.24)"""
    first = queue.enqueue("work", {"a": 1, "b": [1, 2]}, idempotency_key="k")
    assert type(first) is Task
    same = NewTask(command="work", payload=b'{ "b": [1.0, 2], "a": 1 }', idempotency_key="k")
    other = NewTask(command="work", payload=b"2", idempotency_key="k")
    alone = [queue.enqueue_many([task], refusals="return")[0] for task in (same, other)]
    together = queue.enqueue_many([same, NewTask(command="work"), other], refusals="return")
    for answers in (alone, [together[0], together[2]]):
        replays = [answer for answer in answers if isinstance(answer, ReplayedTask)]
        assert [(replay.id, replay.is_mismatch) for replay in replays] == [(first.id, False), (first.id, True)]
    assert type(together[1]) is Task
    assert queue.queues()["work"].pending == 2


def test_a_strict_queue_refuses_a_key_that_was_used_for_another_task(tmp_path: Path) -> None:
    """(13.24)"""
    with codeq.open(tmp_path / "strict", durability="process", strict_idempotency=True) as queue:
        queue.enqueue("work", 1, idempotency_key="k")
        assert isinstance(queue.enqueue("work", 1.0, idempotency_key="k"), ReplayedTask)
        with pytest.raises(IdempotencyMismatch, match="'k'"):
            queue.enqueue("work", 2, idempotency_key="k")


BAD_CALLS: dict[str, Callable[[BlockingVerbs], Any]] = {
    "payload no JSON": lambda q: q.enqueue("work", object()),
    "payload half a character": lambda q: q.enqueue("work", "\ud800"),
    "moment without zone": lambda q: q.enqueue("work", 1, run_at=datetime(2030, 1, 1)),  # noqa: DTZ001
    "delay no number": lambda q: q.enqueue("work", 1, delay="soon"),  # type: ignore[call-overload]
    "delay not a number": lambda q: q.enqueue("work", 1, delay=float("nan")),
    "command": lambda q: q.enqueue("no spaces!"),
    "priority": lambda q: q.enqueue("work", 1, priority=11),
    "attempts": lambda q: q.enqueue("work", 1, max_attempts=0),
    "status": lambda q: q.list(status="LOST"),
    "cursor": lambda q: q.list(cursor="here"),
    "limit": lambda q: q.list(limit=0),
    "limit too high": lambda q: q.list(limit=1001),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_call_that_makes_no_sense_is_refused(queue: BlockingVerbs, case: str) -> None:
    with pytest.raises(InvalidRequest):
        BAD_CALLS[case](queue)
    assert queue.queues() == {}


def test_a_pending_task_is_cancelled_at_once(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work", 1)
    cancelled = queue.cancel(task.id)
    assert (cancelled.id, cancelled.status, cancelled.ended_at) == (task.id, Status.CANCELLED, cancelled.updated_at)
    assert queue.claim("work", worker=WORKER) == []
    with pytest.raises(AlreadyFinal, match=task.id):
        queue.cancel(task.id)


UNKNOWN = "019b0000-0000-7000-8000-000000000000"


@pytest.mark.parametrize("task_id", [UNKNOWN, "x", "../admin/queues", "a/b", "..", "", "\ud800", "%2e%2e", "?", "a b"])
def test_an_unknown_task_is_not_found(queue: BlockingVerbs, task_id: str) -> None:
    for verb in (queue.get, queue.history, queue.cancel, queue.wait):
        with pytest.raises(NotFound, match="no task"):
            verb(task_id)
    with pytest.raises(NotFound):
        queue.get(task_id, wait=1)


def test_the_result_of_an_ended_task_is_there_at_once(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work", 1)
    [job] = queue.claim("work", worker=WORKER)
    queue.complete(job, {"pages": [1, None, "é"]})
    assert queue.wait(task.id) == {"pages": [1, None, "é"]}
    assert queue.wait(task.id, timeout=0) == {"pages": [1, None, "é"]}
    kept = queue.get(task.id, wait=5)
    assert (kept.task.status, kept.payload, kept.result) == (Status.COMPLETED, 1, {"pages": [1, None, "é"]})


def test_whoever_waits_hears_of_the_end(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work", 1)
    with ThreadPoolExecutor(2) as pool:
        result = pool.submit(queue.wait, task.id, 30)
        kept = pool.submit(queue.get, task.id, wait=timedelta(seconds=30))
        [job] = queue.claim("work", worker=WORKER, wait=10)
        queue.complete(job, "done")
        assert result.result(30) == "done"
        assert kept.result(30).result == "done"


@pytest.mark.parametrize("end", ["fail", "cancel", "nack"])
def test_waiting_for_a_task_that_fails_says_so(queue: BlockingVerbs, end: str) -> None:
    task = queue.enqueue("work", {"n": 1}, max_attempts=1)
    if end == "cancel":
        queue.cancel(task.id)
    else:
        [job] = queue.claim("work", worker=WORKER)
        queue.fail(job, "it broke", {"at": 3}) if end == "fail" else queue.nack(job, "it broke")
    with pytest.raises(TaskFailed, match=task.id) as caught:
        queue.wait(task.id, timeout=5)
    kept = caught.value.details
    assert (kept.task.id, kept.payload) == (task.id, {"n": 1})
    assert kept.result == ({"at": 3} if end == "fail" else None)
    assert (kept.task.error, kept.task.last_error) == {
        "fail": ("it broke", "it broke"),
        "cancel": (None, None),
        "nack": ("MAX_ATTEMPTS", "it broke"),
    }[end]


def test_a_wait_that_is_over_leaves_the_task_as_it_is(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work", 1)
    with pytest.raises(WaitTimeout, match="PENDING"):
        queue.wait(task.id, timeout=timedelta(milliseconds=50))
    with pytest.raises(TimeoutError):
        queue.wait(task.id, timeout=0)
    assert queue.get(task.id, wait=0.05) == TaskDetails(task, 1, None)


def test_a_wait_of_more_than_a_minute_is_a_wait(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work", 1)
    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(queue.get, task.id, wait=120)
        [job] = queue.claim("work", worker=WORKER, wait=120)
        queue.complete(job)
        assert kept.result(30).task.status is Status.COMPLETED


def test_the_history_tells_every_move(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work", 1, priority=3)
    [job] = queue.claim("work", worker=WORKER)
    queue.nack(job, "first try", delay=0)
    [job] = queue.claim("work", worker=WORKER)
    queue.complete(job)
    moves = queue.history(task.id)
    assert [move.move for move in moves] == ["enqueue", "claim", "nack", "claim", "complete"]
    assert [move.worker_id for move in moves] == [None, WORKER, None, WORKER, WORKER]
    assert [move.lease_token for move in moves] == [0, 1, 1, 2, 2]
    assert {move.task_id for move in moves} == {task.id}
    assert (moves[2].error, moves[2].attempts, moves[4].status_after) == ("first try", 1, "COMPLETED")


def test_the_times_of_a_task_are_those_of_its_moves(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work", 1, delay=0.02)
    [job] = queue.claim("work", worker=WORKER, wait=10)
    eventually(lambda: time.time_ns() // 1_000_000 > unix_ms(job.lease_until) - 300_000)
    queue.complete(job)
    ended = queue.get(task.id).task
    moves = queue.history(task.id)
    assert [
        times.text(ms) for ms in (record_of(ended).created_ms, record_of(ended).updated_ms, record_of(ended).ended_ms)
    ] == [
        moves[0].at,
        moves[-1].at,
        moves[-1].at,
    ]
    assert ended.created_at < ended.updated_at
    assert moves[0].visible_at == times.text(record_of(task).visible_ms)


def test_a_list_is_filtered_and_goes_on_from_its_cursor(queue: BlockingVerbs) -> None:
    tasks = [queue.enqueue("odd" if n % 2 else "even", n) for n in range(6)]
    queue.cancel(tasks[0].id)
    assert [task.id for task in queue.list().tasks] == [task.id for task in tasks[::-1]]
    assert [task.id for task in queue.list(command="odd").tasks] == [tasks[n].id for n in (5, 3, 1)]
    assert [task.id for task in queue.list(status="CANCELLED").tasks] == [tasks[0].id]
    assert [task.id for task in queue.list(command="even", status=Status.PENDING).tasks] == [tasks[4].id, tasks[2].id]
    first = queue.list(limit=4)
    assert [task.id for task in first.tasks] == [task.id for task in tasks[:1:-1]]
    assert first.cursor
    rest = queue.list(limit=4, cursor=first.cursor)
    assert [task.id for task in rest.tasks] == [tasks[1].id, tasks[0].id]
    assert rest.cursor is None
    assert queue.list(command="none").tasks == []


def test_the_queues_say_where_their_tasks_stand(queue: BlockingVerbs) -> None:
    assert queue.queues() == {}
    for n in range(4):
        queue.enqueue("b", n)
    queue.enqueue("a", 1, delay=3600)
    queue.claim("b", worker=WORKER, limit=1)
    [job] = queue.claim("b", worker=WORKER)
    queue.complete(job)
    found = queue.queues()
    assert list(found) == ["a", "b"]
    assert (found["a"].pending, found["a"].delayed, found["a"].oldest_seconds) == (0, 1, 0)
    assert (found["b"].pending, found["b"].in_progress, found["b"].dead, found["b"].paused) == (2, 1, 0, False)
    assert eventually(lambda: queue.queues()["b"].oldest_seconds) > 0
