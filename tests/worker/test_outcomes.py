"""How a delivery ends: whatever a handler returns or raises, in a thread, in a process and on the event loop."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.server.server_process import Server
from tests.worker import handlers
from tests.worker.handlers import ENDS
from tests.worker.workers import NEVER, Tenant, make_worker, moves

import codeq
from codeq.domain.limits import ERROR_CHARS_MAX
from codeq.sdk.tasks import record_of

VALUES = [True, 0, -1.5, 2**63 - 1, "", "ä\u2028\0🙂", [], [1, [2, None]], {}, {"a": {"b": [True]}}]
PLACES: dict[str, dict[str, dict[str, Any]]] = {
    "thread": {"end": {}, "echo": {}, "fail": {}},
    "process": {"end": {"process": True}, "echo": {"process": True}, "fail": {"process": True}},
    "loop": {"end": {"function": "end_async"}, "echo": {"function": "echo_async"}, "fail": {}},
}


class FinishedRun:
    """Every task of the table, worked off by one worker."""

    def __init__(self, queue: Any, place: str) -> None:
        self.queue = queue
        self.place = place
        tasks = {how: queue.enqueue("end", how, backoff=NEVER) for how in ENDS}
        echoed = [queue.enqueue("echo", value) for value in VALUES]
        make_worker(PLACES[place], concurrency=2, prefetch=20).run(queue, until_idle=True)
        self.ends = {how: queue.get(task.id) for how, task in tasks.items()}
        self.echoed = [queue.get(task.id).result for task in echoed]

    def task(self, how: str) -> codeq.Task:
        task: codeq.Task = self.ends[how].task
        return task


@pytest.fixture(scope="module", params=["thread", "process", "loop"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["server", "embedded"])
def ended(request: pytest.FixtureRequest, place: str, server: Server, embedded: codeq.Queue) -> Iterator[FinishedRun]:
    with Tenant(server.base, server) as tenant:
        queue = tenant.client if request.param == "server" else embedded.for_tenant(f"results-{place}")
        yield FinishedRun(queue, place)


def test_what_is_returned_is_the_result_whatever_kind_of_json_it_is(ended: FinishedRun) -> None:
    assert ended.echoed == VALUES


def test_returning_nothing_completes_the_task(ended: FinishedRun) -> None:
    kept = ended.ends["nothing"]
    assert kept.task.status is codeq.Status.COMPLETED
    assert kept.result is None


def test_a_handler_that_takes_two_arguments_gets_the_job(ended: FinishedRun) -> None:
    kept = ended.ends["second argument"]
    assert kept.result == [kept.task.id, "end", 1, 5, "second argument"]


def test_a_handler_finds_its_job_without_being_given_it(ended: FinishedRun) -> None:
    kept = ended.ends["current job"]
    assert kept.result == kept.task.id


@pytest.mark.parametrize("how", ["retry raised", "retry returned"])
def test_a_retry_comes_back_after_its_delay(ended: FinishedRun, how: str) -> None:
    task = ended.task(how)
    assert (task.status, task.attempts, task.last_error) == (codeq.Status.PENDING, 1, "later")
    assert task.visible_at == task.updated_at + timedelta(seconds=1800)


def test_a_retry_without_a_delay_comes_back_after_the_backoff(ended: FinishedRun) -> None:
    task = ended.task("retry by backoff")
    assert (task.attempts, record_of(task).visible_ms - record_of(task).updated_ms) == (1, NEVER.base_ms)


def test_a_retry_with_no_delay_at_all_comes_back_at_once(ended: FinishedRun) -> None:
    kept = ended.ends["retry at once"]
    assert (kept.result, kept.task.attempts, kept.task.deliveries) == (3, 2, 3)


def test_retries_end_in_the_dead_letter_queue_at_the_tasks_own_limit(ended: FinishedRun) -> None:
    task = ended.task("retry for ever")
    assert task.is_dead
    assert (task.attempts, task.error, task.last_error) == (5, "MAX_ATTEMPTS", "again")


def test_a_retry_that_makes_no_sense_is_the_handlers_error(ended: FinishedRun) -> None:
    assert "0 s to 24 h later, not -1" in (ended.task("retry in the past").last_error or "")


@pytest.mark.parametrize("how", ["fail raised", "fail returned"])
def test_a_fail_ends_the_task_for_good_with_its_result(ended: FinishedRun, how: str) -> None:
    kept = ended.ends[how]
    assert (kept.task.status, kept.task.error, kept.result) == (codeq.Status.FAILED, "no such video", {"seen": 3})
    assert not kept.task.is_dead


def test_a_fail_whose_result_cannot_be_kept_is_kept_without(ended: FinishedRun) -> None:
    kept = ended.ends["fail with no words"]
    assert (kept.task.status, kept.task.error, kept.result) == (codeq.Status.FAILED, "failed", None)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("error", "ValueError: broken (at handlers.py:"),
        ("exit", "SystemExit: enough"),
        ("keyboard", "KeyboardInterrupt"),
        ("odd", "Odd: odd"),
        ("half a character", "FileNotFoundError: ?.txt"),
        ("mute", "Mute: (error text unavailable)"),
        ("long words", "ValueError: xxx"),
        ("cancels itself", "CancelledError"),
    ],
)
def test_any_other_error_is_a_failed_try_and_is_recorded(ended: FinishedRun, how: str, said: str) -> None:
    task = ended.task(how)
    assert (task.status, task.attempts, task.deliveries) == (codeq.Status.PENDING, 1, 1)
    assert (task.last_error or "").startswith(said)
    assert len(task.last_error or "") <= ERROR_CHARS_MAX


def test_a_handler_that_interrupts_itself_has_failed_a_try(ended: FinishedRun) -> None:
    task = ended.task("interrupts itself")
    assert (task.move, task.attempts) == (codeq.Move.NACK, 1)


@pytest.mark.parametrize(
    ("how", "said"),
    [("not JSON", "cannot be written as JSON"), ("coroutine", "written as JSON"), ("too large", "larger than 1048576")],
)
def test_a_result_that_cannot_be_kept_buries_the_task_and_says_why(ended: FinishedRun, how: str, said: str) -> None:
    kept = ended.ends[how]
    assert (kept.task.is_dead, kept.task.attempts, kept.result) == (True, 1, None)
    assert said in (kept.task.last_error or "")
    ended.queue.replay(kept.task)
    assert ended.queue.get(kept.task).task.status is codeq.Status.PENDING


def test_a_large_result_takes_no_other_with_it(ended: FinishedRun) -> None:
    assert len(ended.ends["large"].result) == 900_000


def test_what_is_not_interrupted_is_reported_once(ended: FinishedRun) -> None:
    assert moves(ended.queue, ended.task("nothing")) == ["enqueue", "claim", "complete"]


def test_the_decorator_can_bury_a_task_earlier_than_it_says_itself(queue: codeq.Client) -> None:
    task = queue.enqueue("fail", 1, max_attempts=50)
    make_worker({"fail": {"max_attempts": 2, "backoff": codeq.Backoff(codeq.BackoffKind.FIXED, 0, 0)}}).run(
        queue, until_idle=True
    )
    kept = queue.get(task.id).task
    assert kept.is_dead
    assert (kept.attempts, kept.deliveries) == (2, 2)


def test_the_decorator_can_replace_the_backoff_of_a_task(queue: codeq.Client) -> None:
    task = queue.enqueue("fail", 1, backoff=NEVER)
    backoff = codeq.Backoff(codeq.BackoffKind.LINEAR, 60_000, 900_000)
    make_worker({"fail": {"backoff": backoff}}).run(queue, until_idle=True)
    kept = queue.get(task.id).task
    assert kept.visible_at == kept.updated_at + timedelta(seconds=60)


def test_a_batch_that_the_queue_refuses_is_reported_one_by_one(
    queue: codeq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when several large results together are more than the server takes."""
    real = handlers_submit(queue)

    async def picky(self: Any, outcomes: Any) -> Any:
        if len(outcomes) > 1:
            raise codeq.errors.TooLarge("too much at once")
        return await real(self, outcomes)

    monkeypatch.setattr(type(queue.as_async().backend), "submit", picky, raising=False)
    tasks = [queue.enqueue("echo", number) for number in range(5)]
    make_worker({"echo": {}}).run(queue, until_idle=True)
    assert [queue.wait(task.id, 5) for task in tasks] == list(range(5))


def handlers_submit(queue: Any) -> Callable[..., Any]:
    """How the worker tells results to this queue."""
    backend = type(queue.as_async().backend)
    if hasattr(backend, "submit"):
        return backend.submit  # type: ignore[no-any-return]
    return lambda bridge, outcomes: bridge.__getattr__("submit")(outcomes)


def test_retry_takes_a_timedelta(queue: codeq.Client) -> None:
    worker = codeq.Worker(concurrency=1)

    @worker.task("later")
    def later(_: object) -> codeq.Retry:
        return codeq.Retry(timedelta(minutes=2))

    task = queue.enqueue("later", 1)
    worker.run(queue, until_idle=True)
    kept = queue.get(task.id).task
    assert kept.visible_at == kept.updated_at + timedelta(seconds=120)


def test_there_is_no_current_job_outside_of_a_handler() -> None:
    with pytest.raises(LookupError):
        codeq.current_job()
    assert handlers.echo(1) == 1
