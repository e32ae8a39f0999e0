"""Stopping: what runs may finish, what has not begun is handed back unharmed, and it ends within its bounds."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.server.server_process import Server, eventually
from tests.worker.blackhole_proxy import BlackholeProxy
from tests.worker.handlers import lines, may_go_on
from tests.worker.workers import Program, Tenant, at_work, make_worker, moves

import codeq
from codeq.sdk.worker import runner

PLACES: dict[str, dict[str, Any]] = {
    "thread": {"function": "hold_up"},
    "process": {"function": "hold_up", "process": True},
    "loop": {"function": "hold_up_async"},
}
HANDED_BACK = ["enqueue", "claim", "abandon"]


def _begun(tenant: Tenant, folder: Path, tasks: dict[Any, codeq.Task]) -> None:
    """Wait until the first task of every command runs and the second is held."""
    for place in PLACES:
        eventually(lambda place=place: lines(folder / f"{place}-0"), 20)  # type: ignore[misc]
        second = tasks[place, 1]
        eventually(
            lambda second=second: tenant.client.get(second.id).task.status is codeq.Status.IN_PROGRESS  # type: ignore[misc]
        )


def _enqueued(tenant: Tenant, folder: Path) -> dict[Any, codeq.Task]:
    return {
        (place, n): tenant.client.enqueue(place, str(folder / f"{place}-{n}")) for n in range(2) for place in PLACES
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_lets_running_handlers_finish_and_hands_the_rest_back(
    number: signal.Signals, tenant: Tenant, tmp_path: Path
) -> None:
    tasks = _enqueued(tenant, tmp_path)
    with Program(tenant, PLACES, log=tmp_path / "log", concurrency=1, prefetch=6) as program:
        _begun(tenant, tmp_path, tasks)
        os.killpg(program.process.pid, number)  # as a terminal or a supervisor does: to everyone
        for place in PLACES:
            eventually(lambda place=place: moves(tenant.client, tasks[place, 1]) == HANDED_BACK)  # type: ignore[misc]
            may_go_on(tmp_path / f"{place}-0")
        assert program.wait() == 0
    for place in PLACES:
        assert tenant.client.wait(tasks[place, 0].id, 0) == "done"
        assert moves(tenant.client, tasks[place, 0]) == ["enqueue", "claim", "complete"]
        kept = tenant.client.get(tasks[place, 1].id).task
        assert (kept.status, kept.attempts, kept.deliveries) == (codeq.Status.PENDING, 0, 1)


def test_what_is_handed_back_is_not_claimed_again_by_the_claim_that_still_waits(tenant: Tenant, tmp_path: Path) -> None:
    """A worker that stops waits a moment for the answer to a claim that it has just sent."""
    tasks = [tenant.client.enqueue("thread", str(tmp_path / str(number))) for number in range(2)]
    with Program(tenant, {"thread": PLACES["thread"]}, log=tmp_path / "log", concurrency=1, prefetch=6) as program:
        eventually(lambda: lines(tmp_path / "0"), 20, every_s=0.001)
        program.process.terminate()
        eventually(lambda: len(moves(tenant.client, tasks[1])) >= len(HANDED_BACK))
        may_go_on(tmp_path / "0")
        assert program.wait() == 0
    assert moves(tenant.client, tasks[1]) == HANDED_BACK


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_what_does_not_finish_in_time_is_interrupted_and_handed_back(
    signals: int, tenant: Tenant, tmp_path: Path
) -> None:
    """In time is the grace; or at once, after a second signal."""
    tasks = _enqueued(tenant, tmp_path)
    grace = 0.2 if signals == 1 else 600
    with Program(tenant, PLACES, log=tmp_path / "log", concurrency=1, prefetch=6, grace=grace) as program:
        _begun(tenant, tmp_path, tasks)
        program.process.terminate()
        if signals == 2:
            eventually(lambda: moves(tenant.client, tasks["loop", 1]) == HANDED_BACK)
            program.process.terminate()
        assert program.wait() == 0
    for place in PLACES:
        assert [moves(tenant.client, tasks[place, n]) for n in range(2)] == [HANDED_BACK] * 2
        kept = tenant.client.get(tasks[place, 0].id).task
        assert (kept.status, kept.attempts, kept.deliveries) == (codeq.Status.PENDING, 0, 1)
        if place != "process":
            assert lines(tmp_path / f"{place}-0")[1:] == ["interrupted"]


@pytest.mark.slow
def test_a_handler_that_will_not_stop_does_not_keep_the_worker_from_stopping(tenant: Tenant, tmp_path: Path) -> None:
    given: dict[str, Any] = {"ignore": {}, "ignore_async": {}}
    tasks = [tenant.client.enqueue(command, str(tmp_path / command)) for command in given]
    with Program(tenant, given, log=tmp_path / "log", grace=0) as program:
        for command in given:
            eventually(lambda command=command: lines(tmp_path / command), 20)  # type: ignore[misc]
        program.process.terminate()
        assert program.wait() == 0
    assert [moves(tenant.client, task) for task in tasks] == [HANDED_BACK] * 2


def test_jobs_that_are_on_their_way_when_it_is_stopped_are_handed_back(
    server: Server, tenant: Tenant, tmp_path: Path
) -> None:
    tasks = [tenant.client.enqueue("echo", number) for number in range(3)]
    with BlackholeProxy(server.port) as proxy:
        proxy.delay_s = 0.3
        with Program(tenant, {"echo": {}}, log=tmp_path / "log", url=proxy.url) as program:
            eventually(lambda: proxy.answers, 20)
            program.process.terminate()
            assert program.wait() == 0
    assert [moves(tenant.client, task) for task in tasks] == [HANDED_BACK] * 3


@pytest.mark.slow
def test_an_idle_worker_stops_at_once_and_loses_no_task_that_comes_then(tenant: Tenant, tmp_path: Path) -> None:
    with Program(tenant, {"echo": {}}, log=tmp_path / "log") as program:
        assert tenant.client.wait(tenant.client.enqueue("echo", 1).id, 20) == 1
        program.process.terminate()
        assert program.wait() == 0
        assert not [each for each in _group(program.process.pid) if each]
    task = tenant.client.enqueue("echo", 2)
    [job] = tenant.client.claim("echo")
    assert (job.id, job.deliveries) == (task.id, 1)


def _group(pid: int) -> list[str]:
    found = subprocess.run(["ps", "-o", "pid=", "-g", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.split()


def test_cancelling_run_async_stops_as_a_signal_does(either: codeq.Client, tmp_path: Path) -> None:
    queue = either
    worker = make_worker({"hold_up": {}}, concurrency=1, prefetch=3)
    tasks = [queue.enqueue("hold_up", str(tmp_path / str(number))) for number in range(3)]
    with at_work(worker, queue) as working:
        eventually(lambda: lines(tmp_path / "0"))
        eventually(lambda: queue.get(tasks[2].id).task.status is codeq.Status.IN_PROGRESS)
        working.cancel()
        eventually(lambda: moves(queue, tasks[2]) == HANDED_BACK)
        may_go_on(tmp_path / "0")
        working.wait()
        assert isinstance(working.fault, asyncio.CancelledError)
    assert queue.wait(tasks[0].id, 0) == "done"
    assert [moves(queue, task) for task in tasks[1:]] == [HANDED_BACK] * 2


def test_the_programs_own_signal_handlers_are_back_when_the_worker_has_ended(embedded: codeq.Queue) -> None:
    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        make_worker({"echo": {}}).run(embedded.for_tenant("signals"), until_idle=True)
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_a_worker_whose_server_is_away_still_stops(
    server: Server, tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LAST_REPORTS_S", 1.0)
    tasks = [tenant.client.enqueue("hold_up", str(tmp_path / str(number))) for number in range(2)]
    worker = make_worker({"hold_up": {}}, grace=1)
    with BlackholeProxy(server.port) as proxy, tenant.at(proxy.url) as client, at_work(worker, client) as working:
        for number in range(2):
            eventually(lambda number=number: lines(tmp_path / str(number)), 20)  # type: ignore[misc]
        proxy.cut()
        may_go_on(tmp_path / "0")  # one ends and cannot be reported; the other must be interrupted
        working.cancel()
        working.wait()
    assert lines(tmp_path / "1")[1:] == ["interrupted"]
    assert {tenant.client.get(task.id).task.status for task in tasks} == {codeq.Status.IN_PROGRESS}
