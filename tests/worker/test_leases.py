"""A worker keeps what it works on, whatever its handlers do to their process, and nothing once it is dead."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from tests.server.server_process import eventually
from tests.worker.handlers import lines, may_go_on
from tests.worker.workers import AT_ONCE, Program, Tenant, at_work, is_gone, is_heartbeat_process, make_worker, moves

import codeq
from codeq.sdk.tasks import record_of

ONCE = ["enqueue", "claim", "complete"]


@pytest.mark.slow
def test_a_handler_that_works_for_several_leases_keeps_its_task(tenant: Tenant) -> None:
    queue = tenant.client
    tasks: dict[str, dict[str, Any]] = {
        "thread": {"function": "work_for"},
        "process": {"function": "work_for", "process": True},
        "loop": {"function": "work_for_async"},
    }
    worker = make_worker(tasks, lease=1, concurrency=3)
    made = [queue.enqueue(command, 4.0) for command in tasks]
    with at_work(worker, queue):
        assert [queue.wait(task.id, 30) for task in made] == ["done"] * 3
    assert [moves(queue, task) for task in made] == [ONCE] * 3


SLOW_HEARTBEAT_PROCESS = """
import sys, time
if "codeq.sdk.worker.heartbeat_process" in sys.orig_argv:
    time.sleep(1.5)
"""


@pytest.mark.slow
def test_handlers_that_hold_up_their_whole_process_keep_their_tasks(tenant: Tenant, tmp_path: Path) -> None:
    """The interpreter lock in one worker, the event loop in the other: no code of theirs could send a heartbeat. The
    heartbeat process takes its time to start; no handler begins before it is up."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_HEARTBEAT_PROCESS)
    commands = ("hold_the_lock", "block_the_loop")
    made = [tenant.client.enqueue(command, 3.0) for command in commands]
    with (
        Program(tenant, {commands[0]: {"lease": 1}}, log=tmp_path / "lock.log", path=tmp_path),
        Program(tenant, {commands[1]: {"lease": 1}}, log=tmp_path / "loop.log", path=tmp_path),
    ):
        assert [tenant.client.wait(task.id, 30) for task in made] == ["done"] * 2
    assert [moves(tenant.client, task) for task in made] == [ONCE] * 2


def test_a_short_lease_of_one_command_does_not_cost_the_other_its_tasks(queue: codeq.Client, tmp_path: Path) -> None:
    worker = make_worker({"hold_up": {"lease": 60}, "echo": {"lease": 1}})
    task = queue.enqueue("hold_up", str(tmp_path / "file"))
    with at_work(worker, queue):
        eventually(lambda: lines(tmp_path / "file"))
        now_ms = time.time_ns() // 1_000_000
        eventually(lambda: record_of(queue.get(task.id).task).lease_until_ms > now_ms + 30_000)
        may_go_on(tmp_path / "file")
        assert queue.wait(task.id, 10) == "done"
    assert moves(queue, task) == ONCE


@pytest.mark.slow
def test_a_heartbeat_process_that_is_killed_is_replaced_before_a_lease_is_lost(tenant: Tenant, tmp_path: Path) -> None:
    tasks = [tenant.client.enqueue("hold_up", str(tmp_path / f"file-{number}")) for number in range(4)]
    with Program(tenant, {"hold_up": {"lease": 2}}, log=tmp_path / "log") as program:
        for number in range(4):
            eventually(lambda number=number: lines(tmp_path / f"file-{number}"), 20)  # type: ignore[misc]
        for _ in range(3):
            beater = program.heartbeat_process()
            beater.kill()
            eventually(lambda beater=beater: program.heartbeat_process().pid != beater.pid, 20)  # type: ignore[misc]
        until_ms = record_of(tenant.client.get(tasks[0].id).task).lease_until_ms
        eventually(lambda: record_of(tenant.client.get(tasks[0].id).task).lease_until_ms > until_ms + 2000)
        for number in range(4):
            may_go_on(tmp_path / f"file-{number}")
        assert [tenant.client.wait(task.id, 20) for task in tasks] == ["done"] * 4
    assert [moves(tenant.client, task) for task in tasks] == [ONCE] * 4


@pytest.mark.slow
def test_nothing_is_left_of_a_worker_that_is_killed_and_another_does_its_tasks(tenant: Tenant, tmp_path: Path) -> None:
    """A handler may have forked: what it leaves behind must not keep the heartbeats of the dead worker alive."""
    given = {
        "inside": {"function": "fork_and_hold_up", "lease": 1},
        "child": {"function": "hold_up", "process": True, "lease": 1},
    }
    tasks = [tenant.client.enqueue(command, str(tmp_path / command), backoff=AT_ONCE) for command in given]
    with Program(tenant, given, log=tmp_path / "first.log") as first:
        for command in given:
            eventually(lambda command=command: lines(tmp_path / command), 20)  # type: ignore[misc]
        beater = first.heartbeat_process()
        [child] = [each for each in first.family if lines(tmp_path / "child") == [f"began:{each.pid}"]]
        first.kill()
        for orphan in (beater, child):
            eventually(lambda orphan=orphan: is_gone(orphan), 5)  # type: ignore[misc]
    for command in given:
        may_go_on(tmp_path / command)
    with at_work(make_worker({name: {"function": "hold_up"} for name in given}), tenant.client):
        assert [tenant.client.wait(task.id, 20) for task in tasks] == ["done"] * 2
    assert {tenant.client.get(task.id).task.status for task in tasks} == {codeq.Status.COMPLETED}


@pytest.mark.slow
def test_a_worker_of_processes_alone_needs_no_heartbeat_process(tenant: Tenant, tmp_path: Path) -> None:
    task = tenant.client.enqueue("hold_up", str(tmp_path / "file"))
    with Program(tenant, {"hold_up": {"process": True, "lease": 1}}, log=tmp_path / "log") as program:
        eventually(lambda: lines(tmp_path / "file"), 20)
        until_ms = record_of(tenant.client.get(task.id).task).lease_until_ms
        eventually(lambda: record_of(tenant.client.get(task.id).task).lease_until_ms > until_ms + 1000)
        assert not [each for each in program.family if is_heartbeat_process(each)]
        may_go_on(tmp_path / "file")
        assert tenant.client.wait(task.id, 10) == "done"


@pytest.mark.slow
def test_a_thousand_jobs_are_kept_at_once(tenant: Tenant, tmp_path: Path) -> None:
    """More than beats that can be under way: none may be passed over for the sake of others."""
    path = str(tmp_path / "file")
    new_tasks = codeq.new_tasks("hold_up_async", [path] * 1000)
    tasks = [task for task in tenant.client.enqueue_many(new_tasks) if isinstance(task, codeq.Task)]
    worker = make_worker({"hold_up_async": {"lease": 3}}, concurrency=1000)
    with at_work(worker, tenant.client):
        eventually(lambda: len(lines(path)) == 1000, 30)
        began_ms = time.time_ns() // 1_000_000
        eventually(lambda: time.time_ns() // 1_000_000 > began_ms + 5_000, 20, every_s=0.5)
        may_go_on(path)
        assert {tenant.client.wait(task.id, 30) for task in tasks} == {"done"}
    assert {tenant.client.get(task.id).task.deliveries for task in tasks} == {1}


@pytest.mark.slow
def test_a_token_that_has_run_out_is_asked_for_again_for_heartbeats_too(tenant: Tenant, tmp_path: Path) -> None:
    """The heartbeat process is given a stale one, and then another."""
    tokens = iter([tenant.token, tenant.token, "stale"])
    asked: list[str] = []

    def token() -> str:
        asked.append(next(tokens, tenant.token))
        return asked[-1]

    task = tenant.client.enqueue("hold_up", str(tmp_path / "file"))
    with codeq.Client(tenant.url, token) as client, at_work(make_worker({"hold_up": {"lease": 2}}), client):
        eventually(lambda: lines(tmp_path / "file"), 20)
        until_ms = record_of(tenant.client.get(task.id).task).lease_until_ms
        eventually(lambda: record_of(tenant.client.get(task.id).task).lease_until_ms > until_ms + 2000)
        may_go_on(tmp_path / "file")
        assert tenant.client.wait(task.id, 10) == "done"
    assert "stale" in asked
    assert moves(tenant.client, task) == ONCE


@pytest.mark.slow
def test_settings_of_a_client_reach_the_heartbeat_process_in_whatever_form_they_were_given(
    tenant: Tenant, tmp_path: Path
) -> None:
    client = codeq.Client(tenant.url, tenant.token, timeout=timedelta(seconds=5), retry_for=timedelta(seconds=20))
    with client:
        task = client.enqueue("hold_up", str(tmp_path / "file"))
        with at_work(make_worker({"hold_up": {"lease": 1}}), client):
            beater = eventually(lambda: [p for p in psutil.Process().children() if is_heartbeat_process(p)], 20)[0]
            until_ms = eventually(lambda: record_of(client.get(task.id).task).lease_until_ms)
            eventually(lambda: record_of(client.get(task.id).task).lease_until_ms > until_ms + 2000)
            assert [p.pid for p in psutil.Process().children() if is_heartbeat_process(p)] == [beater.pid]
            os.kill(beater.pid, signal.SIGTERM)  # as when the whole process group gets it: the worker decides
            until_ms = record_of(client.get(task.id).task).lease_until_ms
            eventually(lambda: record_of(client.get(task.id).task).lease_until_ms > until_ms + 1000)
            assert [p.pid for p in psutil.Process().children() if is_heartbeat_process(p)] == [beater.pid]
            may_go_on(tmp_path / "file")
            assert client.wait(task.id, 10) == "done"
