"""Work that is not wanted any more: too slow, cancelled, or given to another; in threads, processes, on the loop."""

from pathlib import Path
from typing import Any

import pytest
from tests.server.server_process import eventually
from tests.worker.handlers import lines, may_go_on
from tests.worker.workers import AT_ONCE, NEVER, at_work, is_gone, make_worker, moves

import codeq
from codeq.domain.task import Holder
from codeq.sdk.tasks import record_of
from codeq.sdk.worker import runner
from codeq.testing import QueueForTests

PLACES: dict[str, dict[str, Any]] = {
    "thread": {"function": "hold_up"},
    "process": {"function": "hold_up", "process": True},
    "loop": {"function": "hold_up_async"},
}


def test_what_takes_too_long_is_a_failed_try_in_every_place(either: codeq.Client, tmp_path: Path) -> None:
    queue = either
    care = {"timeout": 0.3, "backoff": NEVER, "max_attempts": 3}
    worker = make_worker({place: {**given, **care} for place, given in PLACES.items()}, concurrency=1)
    tasks = {place: queue.enqueue(place, str(tmp_path / place)) for place in PLACES}
    with at_work(worker, queue):
        for place, task in tasks.items():
            eventually(lambda task=task: queue.get(task.id).task.attempts == 1, 20)  # type: ignore[misc]
            kept = queue.get(task.id).task
            assert kept.last_error == "TimedOut: it took longer than 0.3 s"
            assert record_of(kept).visible_ms - record_of(kept).updated_ms == NEVER.base_ms
            if place != "process":
                eventually(lambda place=place: lines(tmp_path / place)[1:] == ["interrupted"])  # type: ignore[misc]
            assert moves(queue, task) == ["enqueue", "claim", "nack"]


def test_the_time_a_process_takes_to_start_is_not_its_handlers(embedded: codeq.Queue) -> None:
    queue = embedded.for_tenant("start")
    task = queue.enqueue("echo", 1)
    make_worker({"echo": {"process": True, "timeout": 0.05}}, concurrency=1).run(queue, until_idle=True)
    assert queue.wait(task.id, 0) == 1
    assert moves(queue, task) == ["enqueue", "claim", "complete"]


def test_cancelling_a_task_interrupts_its_handler_and_frees_its_place(
    either: codeq.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = either
    worker = make_worker({place: {**given, "lease": 1} for place, given in PLACES.items()}, concurrency=1, prefetch=6)
    first = {place: queue.enqueue(place, str(tmp_path / f"{place}-1")) for place in PLACES}
    second = {place: queue.enqueue(place, str(tmp_path / f"{place}-2")) for place in PLACES}
    with at_work(worker, queue):
        for place in PLACES:
            eventually(lambda place=place: lines(tmp_path / f"{place}-1"), 20)  # type: ignore[misc]
        for task in first.values():
            queue.cancel(task.id)
        for place in PLACES:
            eventually(lambda place=place: lines(tmp_path / f"{place}-2"), 20)  # type: ignore[misc]
            assert _is_interrupted(place, tmp_path / f"{place}-1")
            may_go_on(tmp_path / f"{place}-1")
            may_go_on(tmp_path / f"{place}-2")
            assert queue.wait(second[place].id, 20) == "done"
            assert moves(queue, first[place]) == ["enqueue", "claim", "cancel"]
    assert "was ended by SIGKILL" not in caplog.text  # as if it had crashed


def _is_interrupted(place: str, path: Path) -> bool:
    began, *after = lines(path)
    if place != "process":
        return after == ["interrupted"]
    return is_gone(int(began.partition(":")[2]))


def test_a_task_that_is_cancelled_before_it_begins_never_does(either: codeq.Client, tmp_path: Path) -> None:
    queue = either
    worker = make_worker({place: {**given, "lease": 1} for place, given in PLACES.items()}, concurrency=1, prefetch=9)
    tasks = {(place, n): queue.enqueue(place, str(tmp_path / f"{place}-{n}")) for n in range(3) for place in PLACES}
    with at_work(worker, queue):
        for place in PLACES:
            eventually(lambda place=place: lines(tmp_path / f"{place}-0"), 20)  # type: ignore[misc]
        for place in PLACES:
            eventually(lambda place=place: _is_held(queue, tasks[place, 2]))  # type: ignore[misc]
            queue.cancel(tasks[place, 1].id)
        # Heartbeats for all of them are due at the same time: twice renewed, and the others are known to be gone.
        until_ms = record_of(queue.get(tasks["loop", 2].id).task).lease_until_ms
        eventually(lambda: record_of(queue.get(tasks["loop", 2].id).task).lease_until_ms > until_ms + 600)
        for place, n in tasks:
            may_go_on(tmp_path / f"{place}-{n}")
        for place in PLACES:
            assert queue.wait(tasks[place, 2].id, 20) == "done"
            assert lines(tmp_path / f"{place}-1") == []


def _is_held(queue: Any, task: codeq.Task) -> bool:
    return queue.get(task.id).task.status is codeq.Status.IN_PROGRESS


def test_a_lost_lease_interrupts_the_handler_and_its_result_is_not_taken(
    codeq_queue: QueueForTests, tmp_path: Path
) -> None:
    queue = codeq_queue
    worker = make_worker({place: {**given, "lease": 1} for place, given in PLACES.items()}, concurrency=1, prefetch=1)
    tasks = {place: queue.enqueue(place, str(tmp_path / place)) for place in PLACES}
    with at_work(worker, queue):
        for place in PLACES:
            eventually(lambda place=place: lines(tmp_path / place), 20)  # type: ignore[misc]
        jobs = {}
        for place in PLACES:  # the worker is full, so that it does not want them back
            queue.nack(codeq.Job(tasks[place].id, place, b"", Holder("worker", 1)), "taken away", delay=0)
            [jobs[place]] = queue.claim(place, worker="thief", lease=3600)
        for place in PLACES:
            eventually(lambda place=place: _is_interrupted(place, tmp_path / place))  # type: ignore[misc]
            may_go_on(tmp_path / place)
            queue.complete(jobs[place], "by the thief")
    for task in tasks.values():
        assert queue.wait(task.id, 0) == "by the thief"
        assert moves(queue, task)[-1] == "complete"


@pytest.mark.parametrize("function", ["ignore", "ignore_async"])
def test_a_handler_that_ignores_its_interruption_does_not_keep_others_waiting(
    function: str, embedded: codeq.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "INTERRUPT_S", 0.3)
    queue = embedded.for_tenant(function)
    worker = make_worker({"work": {"function": function, "timeout": 0.2}, "echo": {}}, concurrency=1)
    task = queue.enqueue("work", str(tmp_path / "file"), backoff=NEVER)
    with at_work(worker, queue):
        eventually(lambda: lines(tmp_path / "file")[:2] == ["began", "ignored"])
        others = [queue.enqueue("echo", number) for number in range(3)]
        assert [queue.wait(other.id, 10) for other in others] == [0, 1, 2]
        may_go_on(tmp_path / "file")
    kept = queue.get(task.id)
    assert (kept.task.attempts, kept.result) == (1, None)


@pytest.mark.parametrize("function", ["ignore", "ignore_async"])
def test_a_worker_with_nothing_left_to_work_with_says_so_and_ends(
    function: str, embedded: codeq.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "INTERRUPT_S", 0.2)
    queue = embedded.for_tenant(f"{function}-all")
    worker = make_worker({"work": {"function": function, "timeout": 0.1}}, concurrency=1, grace=0)
    for number in range(3):
        queue.enqueue("work", str(tmp_path / str(number)), backoff=NEVER)
    with pytest.raises(codeq.CodeqError, match="ignore"):
        worker.run(queue)
    assert [number for number in range(3) if lines(tmp_path / str(number))] == [0, 1]
    for number in range(3):
        may_go_on(tmp_path / str(number))
    assert queue.queues()["work"].in_progress == 0


@pytest.mark.parametrize(("function", "process"), [("progress", False), ("progress", True), ("progress_async", False)])
def test_progress_is_seen_while_the_handler_runs(
    function: str, process: bool, either: codeq.Client, tmp_path: Path
) -> None:
    queue = either
    worker = make_worker({"work": {"function": function, "process": process}}, concurrency=1)
    task = queue.enqueue("work", str(tmp_path / "file"))
    with at_work(worker, queue):
        eventually(lambda: queue.get(task.id).task.progress == "50% half way ?", 20)
        may_go_on(tmp_path / "file")
        assert queue.wait(task.id, 10) == "done"


def test_a_thread_knows_that_its_work_is_not_wanted_any_more(embedded: codeq.Queue) -> None:
    queue = embedded.for_tenant("flag")
    worker = codeq.Worker(concurrency=1)
    seen: list[Any] = []

    @worker.task("work", timeout=0.2)
    def work(_: object, job: codeq.RunningJob) -> None:
        try:
            while True:
                pass
        except codeq.Interrupted:
            seen.append(job.is_cancelled)
            raise

    # On a busy machine the time may be over before the handler is inside its `try`: then the next attempt shows it.
    queue.enqueue("work", 1, backoff=AT_ONCE, max_attempts=100)
    with at_work(worker, queue):
        eventually(lambda: seen)
    assert set(seen) == {True}


def test_interruptions_hit_neither_the_neighbours_nor_the_next_job_of_the_thread(
    embedded: codeq.Queue, tmp_path: Path
) -> None:
    """Handlers that end just when they would be timed out: near misses, and nobody else is harmed."""
    queue = embedded.for_tenant("near")
    late_care = {"timeout": 0.05, "backoff": AT_ONCE}
    worker = make_worker({"work_for": late_care, "echo": {}, "hold_up": {}}, concurrency=4, prefetch=50)
    neighbour = queue.enqueue("hold_up", str(tmp_path / "file"))
    with at_work(worker, queue):
        eventually(lambda: lines(tmp_path / "file"))
        late = [queue.enqueue("work_for", 0.1, max_attempts=3) for _ in range(8)]
        others = [queue.enqueue("echo", number) for number in range(300)]
        for task in late:
            eventually(lambda task=task: queue.get(task.id).task.status.is_final, 20)  # type: ignore[misc]
        assert [queue.wait(task.id, 20) for task in others] == list(range(300))
        may_go_on(tmp_path / "file")
        assert queue.wait(neighbour.id, 20) == "done"
    assert {queue.get(task.id).task.attempts for task in (neighbour, *others)} == {0}


def test_a_cancelled_task_is_interrupted_long_before_its_next_heartbeat(queue: codeq.Client, tmp_path: Path) -> None:
    """A lease of a minute is renewed every twenty seconds, and the whole test takes less."""
    worker = make_worker({place: {**given, "lease": 60} for place, given in PLACES.items()}, concurrency=2)
    tasks = {place: queue.enqueue(place, str(tmp_path / place)) for place in PLACES}
    kept = queue.enqueue("thread", str(tmp_path / "kept"))
    with at_work(worker, queue):
        for place in [*PLACES, "kept"]:
            eventually(lambda place=place: lines(tmp_path / place), 20)  # type: ignore[misc]
        for task in tasks.values():
            queue.cancel(task)
        for place in PLACES:
            eventually(lambda place=place: _is_interrupted(place, tmp_path / place), 10)  # type: ignore[misc]
        may_go_on(tmp_path / "kept")
        assert queue.wait(kept, 20) == "done"
