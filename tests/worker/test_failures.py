"""Failures are seen: in the log, with the task, by hooks, and by the rules for each kind of error."""

import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.server.server_process import environment, eventually
from tests.worker import handlers
from tests.worker.workers import Tenant, at_work, make_worker, moves

import codeq
from codeq.domain.limits import ERROR_CHARS_MAX, TRACEBACK_CHARS_MAX
from codeq.sdk.tasks import record_of
from codeq.testing import QueueForTests


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise KeyError("the bottom")


def fails_deep(payload: int) -> None:
    try:
        deep(payload)
    except KeyError as fault:
        raise ValueError("above") from fault


def raises(payload: str) -> Any:
    """Raises the error of this name."""
    kinds: dict[str, BaseException] = {
        "timeout": TimeoutError("slow"),
        "connection": ConnectionResetError("reset"),
        "missing": FileNotFoundError("no file"),
        "value": ValueError("bad"),
        "bury": codeq.Bury("not for us"),
        "snooze": codeq.Snooze(30),
    }
    raise kinds[payload]


@pytest.mark.parametrize("process", [False, True])
def test_the_end_of_the_traceback_is_kept_with_the_task(codeq_queue: QueueForTests, process: bool) -> None:
    worker = codeq.Worker(codeq_queue)
    worker.task("work", process=process)(fails_deep)
    short, long = codeq_queue.enqueue("work", 1), codeq_queue.enqueue("work", 200)
    codeq_queue.work(worker)
    kept = codeq_queue.get(short).task.last_error or ""
    assert kept.startswith("ValueError: above (at test_failures.py:")
    assert "Traceback (most recent call last):" in kept
    assert "in fails_deep\n    raise ValueError" in kept
    assert "execution.py" not in kept
    kept = codeq_queue.get(long).task.last_error or ""
    assert kept.endswith("ValueError: above")
    assert TRACEBACK_CHARS_MAX / 2 < len(kept) <= ERROR_CHARS_MAX


def test_a_failed_try_is_a_warning_and_a_death_an_error_with_the_task(
    codeq_queue: QueueForTests, caplog: pytest.LogCaptureFixture
) -> None:
    worker = codeq.Worker(codeq_queue)
    worker.task("work", backoff=codeq.fixed(0))(fails_deep)
    task = codeq_queue.enqueue("work", 1, max_attempts=2)
    codeq_queue.work(worker)
    records = [record for record in caplog.records if record.name == "codeq.worker"]
    assert [record.levelno for record in records] == [logging.WARNING, logging.WARNING, logging.ERROR]
    first, second, dead = [record.getMessage() for record in records]
    assert f"attempt 1 of 2 of work {task.id} failed: ValueError: above" in first
    assert "raise ValueError" in first
    assert "attempt 2 of 2" in second
    assert dead.startswith(f"work {task.id} is in the dead-letter queue after attempt 2: ValueError: above")
    assert {record.codeq_task_id for record in records} == {task.id}  # type: ignore[attr-defined]


PROGRAM = """
    import logging, sys
    import codeq

    worker = codeq.Worker(processes=True, concurrency=1)

    @worker.task("work")
    def work(payload: str) -> None:
        logging.getLogger("shop").warning("working on %s", payload)
        logging.getLogger("shop").info("not asked for")
        raise ValueError("broken")

    if __name__ == "__main__":
        {setup}
        with codeq.open(sys.argv[1]) as queue:
            queue.enqueue("work", "cat", max_attempts=1)
            worker.run(queue, until_idle=True)
"""


@pytest.mark.parametrize(
    ("setup", "line"),
    [
        ("pass", " WARNING shop [work {id}]: working on cat"),
        (
            "logging.basicConfig(level='INFO', format='mine %(levelname)s %(codeq_task_id)s %(message)s')",
            "mine WARNING {id} working on cat",
        ),
    ],
)
def test_a_program_shows_failures_and_the_logs_of_its_children_with_and_without_a_setup(
    tmp_path: Path, setup: str, line: str
) -> None:
    program = tmp_path / "app.py"
    program.write_text(textwrap.dedent(PROGRAM).format(setup=setup))
    done = subprocess.run(
        [sys.executable, program, tmp_path / "data"], capture_output=True, text=True, timeout=60, check=True,
        env=environment({"PYTHONPATH": os.pathsep.join(sys.path)}),
    )  # fmt: skip
    with codeq.open(tmp_path / "data") as queue:
        [task] = queue.list().tasks
    assert line.format(id=task.id) in done.stderr
    assert 'raise ValueError("broken")' in done.stderr
    if setup == "pass":  # what names its task is not said to be of that task
        assert f" WARNING codeq.worker: attempt 1 of 1 of work {task.id} failed: ValueError: broken" in done.stderr
    assert "is in the dead-letter queue" in done.stderr
    assert ("not asked for" in done.stderr) == ("INFO" in setup)
    assert done.stderr.count("working on cat") == 1


@pytest.mark.parametrize(
    ("how", "ends"),
    [
        ("timeout", ("PENDING", 1, 1_000)),
        ("connection", ("PENDING", 1, 7_000)),
        ("missing", ("FAILED", 0, 0)),
        ("value", ("dead", 1, 0)),
        ("bury", ("dead", 1, 0)),
        ("snooze", ("PENDING", 0, 30_000)),
    ],
)
def test_each_kind_of_error_ends_as_its_rule_says(
    codeq_queue: QueueForTests, how: str, ends: tuple[str, int, int]
) -> None:
    worker = codeq.Worker(codeq_queue)
    worker.task(
        "work",
        retry_on={TimeoutError: codeq.fixed(1), OSError: codeq.fixed(7)},
        fail_on=FileNotFoundError,
        backoff=codeq.fixed(99),
    )(raises)
    task = codeq_queue.enqueue("work", how)
    codeq_queue.work(worker)
    found = codeq_queue.get(task).task
    status = "dead" if found.is_dead else str(found.status)
    assert (
        status,
        found.attempts,
        record_of(found).visible_ms and record_of(found).visible_ms - record_of(found).updated_ms,
    ) == ends


def test_rules_that_make_no_sense_are_refused() -> None:
    for options in (
        {"retry_on": "often"},
        {"fail_on": 5},
        {"retry_on": {ValueError: "soon"}},
        {"retry_on": ValueError()},
        {"fail_on": [ValueError()]},
    ):
        with pytest.raises(codeq.errors.InvalidRequest):
            codeq.Worker().task("work", **options)(raises)


def test_a_snoozed_task_counts_no_attempt_on_a_server(tenant: Tenant) -> None:
    worker = codeq.Worker(tenant.client)
    worker.task("work")(raises)
    task = tenant.client.enqueue("work", "snooze")
    worker.run(until_idle=True)
    found = tenant.client.get(task).task
    assert (found.attempts, found.deliveries, record_of(found).visible_ms - record_of(found).updated_ms) == (
        0,
        1,
        30_000,
    )
    assert moves(tenant.client, task) == ["enqueue", "claim", "abandon"]


def test_hooks_are_called_with_what_failed(codeq_queue: QueueForTests, caplog: pytest.LogCaptureFixture) -> None:
    worker = codeq.Worker(codeq_queue)
    worker.task("work", backoff=codeq.fixed(0))(fails_deep)
    told: list[tuple[str, int, bool, str]] = []

    def note(kind: str) -> Callable[[codeq.Failure], None]:
        return lambda failure: told.append((kind, failure.attempt, failure.is_final, failure.error.split(" (")[0]))

    worker.on_failure(note("failure"))
    worker.on_death(note("death"))

    @worker.on_death
    async def broken(failure: codeq.Failure) -> None:
        assert "raise ValueError" in failure.traceback
        raise RuntimeError(f"hook of {failure.command}")

    codeq_queue.enqueue("work", 1, max_attempts=2)
    codeq_queue.work(worker)
    said = "ValueError: above"
    assert sorted(told) == [("death", 2, True, said), ("failure", 1, False, said), ("failure", 2, False, said)]
    assert "RuntimeError: hook of work" in caplog.text


@pytest.mark.parametrize("fault", [SystemExit(3), KeyboardInterrupt()])
def test_a_hook_that_wants_to_exit_does_not_end_the_worker(
    codeq_queue: QueueForTests, caplog: pytest.LogCaptureFixture, fault: BaseException
) -> None:
    worker = codeq.Worker(codeq_queue)
    worker.task("work", backoff=codeq.fixed(0))(fails_deep)

    @worker.on_failure
    def leaves(_: codeq.Failure) -> None:
        raise fault

    @worker.on_failure
    async def leaves_async(_: codeq.Failure) -> None:
        raise fault

    task = codeq_queue.enqueue("work", 1, max_attempts=3)
    codeq_queue.work(worker)
    assert codeq_queue.get(task).task.is_dead
    assert caplog.text.count("a hook for failures of work has failed itself") == 6


HANGING_HOOK = """
    import sys, time
    import codeq
    from codeq.sdk.worker import hooks

    hooks.HOOKS_S_MAX = 0.1
    worker = codeq.Worker()

    @worker.task("work")
    def work(payload: int) -> None:
        raise ValueError("broken")

    @worker.on_failure
    def hangs(failure: codeq.Failure) -> None:
        time.sleep(3600)

    with codeq.open(sys.argv[1]) as queue:
        queue.enqueue("work", 1, max_attempts=1)
        worker.run(queue, until_idle=True)
"""


def test_a_hook_that_hangs_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(textwrap.dedent(HANGING_HOOK))
    variables = environment({"PYTHONPATH": os.pathsep.join(sys.path)})
    subprocess.run([sys.executable, program, tmp_path / "data"], timeout=30, check=True, env=variables)


def test_a_handler_that_allows_more_attempts_than_the_task_says_so_once(
    codeq_queue: QueueForTests, caplog: pytest.LogCaptureFixture
) -> None:
    worker = codeq.Worker(codeq_queue)
    declared = worker.task("echo", max_attempts=10)(handlers.echo)
    for _ in range(3):
        codeq_queue.enqueue("echo", 1)
    declared.enqueue(1)
    codeq_queue.work(worker)
    said = [record.getMessage() for record in caplog.records if "max_attempts=10" in record.getMessage()]
    assert len(said) == 1
    assert "was enqueued with 5" in said[0]


@pytest.mark.slow
def test_a_held_interpreter_lock_costs_no_lease_in_a_run_until_idle(tenant: Tenant) -> None:
    worker = make_worker({"hold_the_lock": {"lease": 1}}, concurrency=2)
    task = tenant.client.enqueue("hold_the_lock", 3.0)
    worker.run(tenant.client, until_idle=True)
    assert moves(tenant.client, task) == ["enqueue", "claim", "complete"]


def test_a_full_pool_keeps_no_task_of_another_kind_waiting(queue: codeq.Client, tmp_path: Path) -> None:
    worker = make_worker({"hold_up": {}, "echo": {"function": "echo_async"}}, threads=2, coroutines=1)
    for number in range(8):
        queue.enqueue("hold_up", str(tmp_path / str(number)))
    with at_work(worker, queue):
        eventually(lambda: queue.queues()["hold_up"].in_progress == 2)
        tasks = [queue.enqueue("echo", number) for number in range(5)]
        assert [queue.wait(task, 20) for task in tasks] == list(range(5))
        assert queue.queues()["hold_up"].in_progress == 2
        for number in range(8):
            handlers.may_go_on(tmp_path / str(number))


def test_an_optional_job_is_passed(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue)

    @worker.task("untyped")
    def untyped(p, job=None):  # type: ignore[no-untyped-def]
        return [p, job.id]

    task = codeq_queue.enqueue("untyped", {"a": 1})
    codeq_queue.work(worker)
    assert codeq_queue.wait(task, 0) == [{"a": 1}, task.id]


def test_a_child_that_cannot_import_its_module_says_so(
    codeq_queue: QueueForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone_later.py").write_text("def work(payload): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import gone_later  # type: ignore[import-not-found]  # noqa: PLC0415

    monkeypatch.setattr("codeq.sdk.worker.processes.STARTS_MAX", 1)
    (tmp_path / "gone_later.py").write_text("import not_installed_anywhere\n")
    worker = codeq.Worker(codeq_queue, processes=True, concurrency=1)
    worker.task("work")(gone_later.work)
    codeq_queue.enqueue("work", 1)
    with pytest.raises(codeq.CodeqError, match="No module named 'not_installed_anywhere'"):
        codeq_queue.work(worker)


def grow(megabytes: int) -> int:
    kept = bytearray(megabytes << 20)
    if megabytes > 100:
        threading.Event().wait(20)
    return os.getpid() + 0 * len(kept)


def test_a_child_is_replaced_after_its_share_of_tasks(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue, processes=True, concurrency=1, max_tasks_per_child=2)
    worker.task("grow")(grow)
    tasks = [codeq_queue.enqueue("grow", 1) for _ in range(4)]
    codeq_queue.work(worker)
    pids = [codeq_queue.wait(task, 0) for task in tasks]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_a_child_that_uses_too_much_memory_costs_its_task_an_attempt(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue, processes=True, concurrency=1, max_mb_per_child=200)
    worker.task("grow")(grow)
    large, small = codeq_queue.enqueue("grow", 400), codeq_queue.enqueue("grow", 1)
    codeq_queue.work(worker)
    assert "MB of memory, more than 200" in (codeq_queue.get(large).task.last_error or "")
    assert codeq_queue.wait(small, 0)


def test_a_handler_of_batches_gets_many_tasks_at_once(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue)
    sizes: list[int] = []

    @worker.batch("index", size=10, wait=0.2)
    def index(numbers: list[int]) -> list[Any]:
        sizes.append(len(numbers))
        if 13 in numbers:
            return [codeq.Fail("unlucky") if number == 13 else number * 2 for number in numbers]
        return [number * 2 for number in numbers]

    tasks = [index.enqueue(number) for number in range(25)]
    poison = codeq_queue.enqueue("index", "no number")
    codeq_queue.work(worker)
    assert sorted(sizes, reverse=True) == [10, 10, 5]
    assert [codeq_queue.wait(task, 0) for task in tasks[:13]] == [number * 2 for number in range(13)]
    assert codeq_queue.get(tasks[13]).task.error == "unlucky"
    assert "PayloadInvalid" in (codeq_queue.get(poison).task.last_error or "")


def test_an_error_of_a_batch_is_a_failed_try_of_each_of_its_tasks(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue)

    @worker.batch("index", size=3, wait=0.1)
    async def index(numbers: list[int]) -> list[int]:
        raise ValueError(f"{len(numbers)} at once")

    tasks = [index.enqueue(number) for number in range(3)]
    codeq_queue.work(worker)
    assert {(codeq_queue.get(task).task.attempts) for task in tasks} == {1}
    assert "3 at once" in (codeq_queue.get(tasks[0]).task.last_error or "")
