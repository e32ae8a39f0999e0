"""The helpers for other people's test suites, used as those people would."""

import asyncio

import pytest

import codeq
from codeq import testing
from codeq.testing import QueueForTests

HOUR_S = 3600


def make_worker(done: list[object]) -> codeq.Worker:
    worker = codeq.Worker(concurrency=2)

    @worker.task("mail")
    def mail(payload: object) -> str:
        done.append(payload)
        return "sent"

    @worker.task("flaky")
    def flaky(payload: object, job: codeq.RunningJob) -> int:
        if job.attempt < 3:
            raise ValueError("not yet")
        done.append(payload)
        return job.attempt

    @worker.task("chain")
    async def chain(payload: int) -> None:
        done.append(payload)

    return worker


def test_a_worker_does_what_is_ready_and_stops(codeq_queue: QueueForTests) -> None:
    done: list[object] = []
    tasks = [codeq_queue.enqueue("mail", number) for number in range(50)]
    codeq_queue.enqueue("chain", 50)
    codeq_queue.work(make_worker(done))
    assert sorted(done, key=str) == sorted(range(51), key=str)
    assert codeq_queue.wait(tasks[0].id, 0) == "sent"


def test_a_delay_ends_when_the_clock_is_moved(codeq_queue: QueueForTests) -> None:
    done: list[object] = []
    codeq_queue.enqueue("mail", "later", delay=HOUR_S)
    codeq_queue.work(make_worker(done))
    assert done == []
    codeq_queue.advance(minutes=59)
    codeq_queue.work(make_worker(done))
    assert done == []
    codeq_queue.advance(minutes=1)
    codeq_queue.work(make_worker(done))
    assert done == ["later"]


def test_retries_are_worked_off_without_waiting(codeq_queue: QueueForTests) -> None:
    done: list[object] = []
    task = codeq_queue.enqueue("flaky", "third time lucky")
    codeq_queue.work_off(make_worker(done))
    assert codeq_queue.wait(task.id, 0) == 3


def test_a_lease_expires_when_the_clock_is_moved(codeq_queue: QueueForTests) -> None:
    codeq_queue.enqueue("mail", 1)
    [job] = codeq_queue.claim("mail", lease=30)
    codeq_queue.advance(seconds=31)
    codeq_queue.claim("mail")
    with pytest.raises(codeq.errors.NotInProgress):
        codeq_queue.complete(job)


def test_what_was_enqueued_can_be_asserted(codeq_queue: QueueForTests) -> None:
    codeq_queue.enqueue("mail", {"to": "ada"}, priority=9)
    codeq_queue.enqueue("mail", {"to": "bob"})
    codeq_queue.assert_enqueued("mail")
    codeq_queue.assert_enqueued("mail", {"to": "ada"}, priority=9, times=1)
    codeq_queue.assert_not_enqueued("mail", {"to": "eve"})
    codeq_queue.assert_not_enqueued("sms")
    assert codeq_queue.payloads("mail") == [{"to": "ada"}, {"to": "bob"}]


def test_a_failed_assertion_shows_what_there_is(codeq_queue: QueueForTests) -> None:
    codeq_queue.enqueue("mail", {"to": "ada"})
    with pytest.raises(AssertionError, match=r"(?s)expected a mail task with .*eve.*found 0.*ada"):
        codeq_queue.assert_enqueued("mail", {"to": "eve"})
    with pytest.raises(AssertionError, match="expected 2 mail task"):
        codeq_queue.assert_enqueued("mail", times=2)
    with pytest.raises(AssertionError):
        codeq_queue.assert_not_enqueued("mail")


def test_tasks_that_never_end_are_noticed(codeq_queue: QueueForTests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "ROUNDS_MAX", 3)
    worker = codeq.Worker(concurrency=1)

    @worker.task("again")
    def again(payload: object) -> codeq.Retry:
        return codeq.Retry(delay=1)

    codeq_queue.enqueue("again", 1, max_attempts=100)
    with pytest.raises(AssertionError, match="still wait"):
        codeq_queue.work_off(worker)


def test_two_queues_do_not_know_each_other() -> None:
    with testing.open() as one, testing.open(tenant="acme") as other:
        one.enqueue("mail", 1)
        other.assert_not_enqueued("mail")
        assert other.tenant == "acme"


def test_tasks_of_a_worker_without_a_queue_go_to_the_queue_of_each_test() -> None:
    """And not to that of the last run, which is closed."""
    worker = codeq.Worker()

    @worker.task("mail")
    def mail(to: str) -> str:
        return to

    for name in ("ada", "bob"):
        with testing.open() as queue:
            codeq.set_default_queue(queue)
            try:
                task = mail.enqueue(name)
                queue.work(worker)
                assert mail.wait(task, 0) == name
            finally:
                codeq.set_default_queue(None)


def test_a_test_with_an_event_loop_is_told_how_to_work(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker()

    @worker.task("mail")
    async def mail(to: str) -> str:
        return to

    async def main() -> str:
        task = codeq_queue.enqueue(mail, "ada")
        with pytest.raises(codeq.errors.InvalidRequest, match=r"await worker.run_async"):
            codeq_queue.work(worker)
        await worker.run_async(codeq_queue, until_idle=True)
        return codeq_queue.wait(task, 0)

    assert asyncio.run(main()) == "ada"
