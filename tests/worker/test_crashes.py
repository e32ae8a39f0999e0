"""A handler that takes its process with it costs its task one try, and nobody else anything."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.server_process import environment, eventually
from tests.worker.handlers import lines, may_go_on
from tests.worker.workers import AT_ONCE, NEVER, at_work, make_worker, moves

import codeq
from codeq.sdk.worker import processes

DEATHS = {
    "exit": "Crash: the handler's process ended with exit code 3",
    "segfault": "Crash: the handler's process was ended by SIGSEGV",
    "kill": "Crash: the handler's process was ended by SIGKILL; out of memory?",
    "hides": "Crash: the handler's process closed its pipe and was ended",
    "memory": "MemoryError",
}


def test_every_kind_of_death_costs_its_task_one_try_and_others_nothing(either: codeq.Client) -> None:
    queue = either
    dying = {how: queue.enqueue("crash", how, backoff=NEVER) for how in DEATHS}
    others = [queue.enqueue("crash", "not at all") for _ in range(20)]
    make_worker({"crash": {}}, processes=True, concurrency=2).run(queue, until_idle=True)
    for how, task in dying.items():
        kept = queue.get(task.id).task
        assert (kept.attempts, kept.deliveries, kept.status) == (1, 1, codeq.Status.PENDING), how
        assert (kept.last_error or "").startswith(DEATHS[how])
        assert moves(queue, task) == ["enqueue", "claim", "nack"]
    pids = {queue.wait(task.id, 5) for task in others}
    assert os.getpid() not in pids
    assert {queue.get(task.id).task.attempts for task in others} == {0}


def test_a_process_that_is_killed_from_outside_is_replaced(embedded: codeq.Queue, tmp_path: Path) -> None:
    queue = embedded.for_tenant("outside")
    worker = make_worker({"hold_up": {}, "echo": {}}, processes=True, concurrency=1)
    task = queue.enqueue("hold_up", str(tmp_path / "file"), backoff=NEVER)
    with at_work(worker, queue):
        [began] = eventually(lambda: lines(tmp_path / "file"), 20)
        os.kill(int(began.partition(":")[2]), signal.SIGKILL)
        eventually(lambda: queue.get(task.id).task.attempts == 1)
        assert queue.wait(queue.enqueue("echo", "next").id, 20) == "next"
        may_go_on(tmp_path / "file")


def test_a_process_that_dies_idle_costs_nobody_anything(embedded: codeq.Queue) -> None:
    queue = embedded.for_tenant("idle")
    with at_work(make_worker({"crash": {}}, processes=True, concurrency=1), queue):
        first = queue.wait(queue.enqueue("crash", "not at all").id, 20)
        os.kill(first, signal.SIGKILL)
        task = queue.enqueue("crash", "not at all", backoff=AT_ONCE)
        assert queue.wait(task.id, 20) != first
        assert queue.get(task.id).task.attempts <= 1  # it may have been handed over while the process died


def test_the_last_try_of_a_crashing_task_ends_it_in_the_dead_letter_queue(embedded: codeq.Queue) -> None:
    queue = embedded.for_tenant("last")
    task = queue.enqueue("crash", "exit", max_attempts=1)
    make_worker({"crash": {}}, processes=True, concurrency=1).run(queue, until_idle=True)
    assert queue.get(task.id).task.is_dead


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize(("how", "code"), [("exits", 3), ("fails", 1), ("returns", 0)])
@pytest.mark.parametrize(("command", "process"), [("fork", False), ("fork", True), ("fork_async", None)])
def test_a_process_that_a_handler_forks_ends_with_its_copy_of_the_handler(
    embedded: codeq.Queue, command: str, process: bool | None, how: str, code: int
) -> None:
    """It would report its parent's job, and go on as a second worker."""
    queue = embedded.for_tenant(f"{command}-{process}-{how}")
    tasks = [queue.enqueue(command, how, max_attempts=1) for _ in range(3)]
    make_worker({command: {"process": process}}, concurrency=1).run(queue, until_idle=True)
    assert [queue.wait(task, 0) for task in tasks] == [code] * 3


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize(("command", "process"), [("end_fork", False), ("end_fork", True), ("end_fork_async", None)])
def test_a_signal_to_a_process_of_a_handler_ends_that_and_not_the_worker(
    embedded: codeq.Queue, command: str, process: bool | None
) -> None:
    queue = embedded.for_tenant(f"{command}-{process}")
    tasks = [queue.enqueue(command, 20, max_attempts=1) for _ in range(20)]
    make_worker({command: {"process": process}}, concurrency=1).run(queue, until_idle=True)
    assert [queue.wait(task, 0) for task in tasks] == [-signal.SIGTERM] * 20


IN_ANOTHER_THREAD = """
import sys, threading
import codeq

worker = codeq.Worker(processes=True, concurrency=1)

@worker.task("work")
def work(payload: int) -> int:
    return payload

if __name__ == "__main__":
    queue = codeq.open(sys.argv[1])
    threading.Thread(target=worker.run, args=(queue,), daemon=True).start()
    print(queue.wait(queue.enqueue("work", 7), 60))
"""


def test_a_program_with_a_worker_in_another_thread_ends_when_it_wants_to(tmp_path: Path) -> None:
    """Its child processes ignore the signal with which Python ends them, and then waits for them."""
    (tmp_path / "program.py").write_text(IN_ANOTHER_THREAD)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py", tmp_path / "data"], timeout=80, check=True, stdout=subprocess.PIPE,
        env=environment({"PYTHONPATH": os.pathsep.join(sys.path)}),
    )  # fmt: skip
    assert done.stdout == b"7\n"


class Unreadable:
    """Can be pickled, and nobody can read it again."""

    def __init__(self) -> None:
        self.__qualname__ = "Unreadable"

    def __call__(self, payload: object) -> None: ...

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return int, ("not a number",)


@pytest.mark.slow
def test_processes_that_cannot_start_end_the_worker_and_harm_no_task(
    embedded: codeq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STARTS_MAX", 2)
    queue = embedded.for_tenant("broken")
    worker = codeq.Worker(processes=True, concurrency=1)
    worker.task("work")(Unreadable())
    task = queue.enqueue("work", 1)
    with pytest.raises(codeq.CodeqError, match="end before they are ready"):
        worker.run(queue)
    kept = queue.get(task.id).task
    assert (kept.status, kept.attempts) == (codeq.Status.PENDING, 0)
    assert moves(queue, task) == ["enqueue", "claim", "abandon"]
