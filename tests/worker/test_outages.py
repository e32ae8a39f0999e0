"""Workers die at any moment, the server is killed under load, the network is cut: every task is done, to one end."""

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.sdk.proxy import Proxy, lose_answer
from tests.server.server_process import Server, eventually, launch, start_server
from tests.worker.blackhole_proxy import BlackholeProxy
from tests.worker.handlers import lines, may_go_on
from tests.worker.workers import AT_ONCE, Program, Tenant, all_tasks, at_work, make_worker

import codeq

pytestmark = pytest.mark.slow

CONCURRENCY = 2
KILLS = 16
CUT_S = 10.0
TASKS = {
    "thread": {"function": "mark", "lease": 2},
    "process": {"function": "mark", "process": True, "lease": 2},
    "loop": {"function": "mark_async", "lease": 2},
}


def audit(client: codeq.Client, expected: dict[str, int]) -> Counter[str]:
    """Every task expected has one end, a good one, with the right result. Answers how often each move was made."""
    ends: Counter[str] = Counter()
    moves: Counter[str] = Counter()
    offset = 1
    while True:
        page = client.events(offset=offset, limit=10_000)
        for event in page.events:
            moves[str(event.move)] += 1
            ends[event.task_id] += event.move in ("complete", "fail") or event.status_after == "FAILED"
        offset = page.next_offset
        if offset >= page.end_offset:
            break
    assert {task_id: ends[task_id] for task_id in expected} == dict.fromkeys(expected, 1)
    for command in TASKS:
        for task in all_tasks(client, command):
            assert task.status is codeq.Status.COMPLETED, task
    sample = random.sample(sorted(expected), min(50, len(expected)))
    assert [client.get(task_id).result for task_id in sample] == [expected[task_id] * 2 for task_id in sample]
    return moves


def fill(client: codeq.Client, path: Path, count: int, *, seconds: float) -> dict[str, int]:
    """So many tasks, of every kind in turn, by id with the number that each is given."""
    made = {}
    commands = list(TASKS)
    for number in range(count):
        payload = [str(path), number, seconds]
        task = client.enqueue(commands[number % 3], payload, backoff=AT_ONCE, max_attempts=100)
        made[task.id] = number
    return made


def are_over(client: codeq.Client) -> bool:
    return not any(info.pending or info.delayed or info.in_progress for info in client.queues().values())


def test_workers_that_are_killed_at_any_moment_lose_nothing_and_do_nothing_twice(
    tenant: Tenant, tmp_path: Path
) -> None:
    seed = int(os.environ.get("CODEQ_SEED", time.time_ns() % 1_000_000))
    print(f"CODEQ_SEED={seed}")  # noqa: T201 - to run it again
    dice = random.Random(seed)
    made = fill(tenant.client, tmp_path / "done", 240, seconds=0.1)
    programs = [_program(tenant, tmp_path) for _ in range(3)]
    try:
        eventually(lambda: _running(tenant) >= 3 * CONCURRENCY, 60)  # so that the first kill hits a worker at work
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.0, 0.7))
            index = dice.randrange(3)
            programs[index].kill()
            programs[index] = _program(tenant, tmp_path)
        eventually(lambda: are_over(tenant.client), 60, every_s=0.2)
    finally:
        for program in programs:
            program.kill()
    moves = audit(tenant.client, made)
    assert moves["complete"] == 240
    assert moves["expire"] > 0  # or no kill has hit a worker at work
    assert set(lines(tmp_path / "done")) == {str(number) for number in range(240)}


def _running(tenant: Tenant) -> int:
    return sum(queue.in_progress for queue in tenant.client.queues().values())


def _program(tenant: Tenant, folder: Path) -> Program:
    return Program(tenant, TASKS, log=folder / "log", concurrency=CONCURRENCY)


def test_a_server_that_is_killed_under_load_is_found_again_by_everyone(tmp_path: Path) -> None:
    with start_server(tmp_path) as first:
        tenant = Tenant(first.base, first)
    made: dict[str, int] = {}
    is_over = threading.Event()
    servers: list[Server] = [launch(tmp_path, port=first.port)]

    def produce() -> None:
        while not is_over.is_set():
            made.update(fill(tenant.client, tmp_path / "done", 3, seconds=0.0))

    producing = threading.Thread(target=produce, daemon=True)
    with tenant, Program(tenant, TASKS, log=tmp_path / "log", concurrency=4) as program:
        try:
            producing.start()
            for _ in range(2):
                _wait_for_more(made)
                servers[-1].kill()
                servers.append(launch(tmp_path, port=first.port))
            _wait_for_more(made)
        finally:
            is_over.set()
            producing.join(40)
        assert not producing.is_alive()
        eventually(lambda: are_over(tenant.client), 40, every_s=0.2)
        audit(tenant.client, made)
        program.process.send_signal(signal.SIGTERM)
        assert program.wait() == 0
        servers[-1].stop()


def _wait_for_more(made: dict[str, int]) -> None:
    before = len(made)
    eventually(lambda: len(made) > before + 30, 30)


def test_a_network_that_is_cut_for_a_while_costs_no_result(server: Server, tenant: Tenant, tmp_path: Path) -> None:
    """Handlers continue while the server is unreachable, and their results are reported later: each handler has run
    once. The client gives up long before the cut is over; the worker does not."""
    done = tmp_path / "done"
    with BlackholeProxy(server.port) as proxy, codeq.Client(proxy.url, tenant.token, timeout=1, retry_for=2) as client:
        made = fill(client, done, 30, seconds=0.3)
        tasks = {command: {**given, "lease": 20} for command, given in TASKS.items()}
        with at_work(make_worker(tasks, concurrency=4), client):
            eventually(lambda: lines(done), 20)
            proxy.cut()
            began_s = time.monotonic()
            in_flight = tenant.client.queues()
            eventually(lambda: time.monotonic() - began_s > CUT_S, 2 * CUT_S, every_s=0.5)
            assert sum(info.in_progress for info in in_flight.values()) > 0
            proxy.restore()
            made |= fill(tenant.client, done, 30, seconds=0.0)
            eventually(lambda: are_over(tenant.client), 60, every_s=0.2)
    moves = audit(tenant.client, made)
    assert moves["complete"] == 60
    assert Counter(lines(done)) == {str(number): 2 for number in range(30)}  # those before, and those after


def test_a_worker_whose_client_gave_up_a_claim_gets_its_jobs_by_the_next(server: Server, tenant: Tenant) -> None:
    """Long before the lease would expire, and with no attempt counted."""
    task = tenant.client.enqueue("echo", 1)
    with Proxy(server.port) as proxy, codeq.Client(proxy.url, tenant.token, retry_for=0) as client:
        proxy.script(lose_answer, lose_answer)
        with at_work(make_worker({"echo": {"lease": 600}}, concurrency=1), client):
            assert tenant.client.wait(task.id, 30) == 1
        assert proxy.script_is_done()
    assert [event.move for event in tenant.client.history(task.id)] == ["enqueue", "claim", "complete"]


def test_a_handler_that_ended_in_time_is_not_timed_out_while_its_result_waits(
    server: Server, tenant: Tenant, tmp_path: Path
) -> None:
    """The first result cannot be reported, so the second waits behind it for longer than its timeout."""
    tasks = [tenant.client.enqueue("hold_up", str(tmp_path / str(number))) for number in range(2)]
    worker = make_worker({"hold_up": {"timeout": 3}}, concurrency=2)
    with BlackholeProxy(server.port) as proxy, tenant.at(proxy.url) as client, at_work(worker, client):
        for number in range(2):
            eventually(lambda number=number: lines(tmp_path / str(number)), 20)  # type: ignore[misc]
        proxy.cut()
        for number in range(2):
            may_go_on(tmp_path / str(number))
            time.sleep(0.2)  # so that they are reported one after the other
        ended_s = time.monotonic()
        eventually(lambda: time.monotonic() > ended_s + 4)
        proxy.restore()
        assert [tenant.client.wait(task.id, 30) for task in tasks] == ["done"] * 2
    assert {tenant.client.get(task.id).task.attempts for task in tasks} == {0}
