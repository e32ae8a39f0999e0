"""A tenant at its limits, which goes on calling as fast as it can, is refused, and another tenant's calls all succeed.

Prints the latencies of the other tenant, alone and beside it: `pytest -s`. They are not asserted.
"""

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.server.server_process import Server, Tenant, answered, at, environment, start_server

from codeq.wire import paths

ROOT = Path(__file__).parents[2]
CYCLES, ROUNDS = 40, 3
CONNECTIONS = 8
LIMITS = {"connections_max": 4, "long_polls_max": 1, "queues_max": 5, "policies_max": 1, "tasks_max": 6}
TASK, OTHER = '{"command":"c0","payload":1}', '{"command":"other","payload":1}'
ABUSES = {
    "queues": ("producer", "POST", paths.TASKS, OTHER),
    "tasks": ("producer", "POST", paths.TASKS, TASK),
    "tasks in batches": ("producer", "POST", paths.TASKS_BATCH, f'{{"tasks":[{",".join([TASK] * 1000)}]}}'),
    "policies": ("admin", "PUT", at(paths.TOPIC, "another"), '{"policy":{}}'),
    "long polls": ("worker", "POST", paths.CLAIM, '{"commands":["none"],"waitSeconds":20}'),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with start_server(tmp_path, settings={"limits": {"tenant": LIMITS}}) as running:
        yield running


def test_a_tenant_at_its_limit_is_refused_and_another_is_served(server: Server) -> None:
    """(13.21)"""
    quiet, greedy = server.tenant("quiet"), server.tenant("greedy")
    for number in range(5):
        greedy.create(f"c{number}")
    answered(greedy.admin.put(at(paths.TOPIC, "work"), {"policy": {}}), 201)
    cycles_ms(quiet, CYCLES)
    for abuse in ABUSES:
        alone, beside = [], []
        for _ in range(ROUNDS):  # in turn, because the machine has other work too
            alone += cycles_ms(quiet, CYCLES)
            with abused(server, greedy, abuse) as statuses:
                beside += cycles_ms(quiet, CYCLES)
            assert statuses[refusal(abuse)]
        before, after = p99(alone), p99(beside)
        figures = f"p99 {before:.1f} ms alone, {after:.1f} ms beside it, {after / before:.2f}x"
        sys.stdout.write(f"limit of {abuse}: {figures}\n")


def cycles_ms(tenant: Tenant, number: int) -> list[float]:
    """Enqueues, claims and completes one task after the other; returns how long each took."""
    took = []
    for _ in range(number):
        began_s = time.perf_counter()
        tenant.create()
        held = tenant.claim()
        answered(tenant.worker.post(at(paths.RESULT, held["id"]), {"status": "COMPLETED"}), 200)
        took.append((time.perf_counter() - began_s) * 1000)
    return took


def refusal(abuse: str) -> str:
    """The status of a refused call: a batch is answered with 200, and its items are refused."""
    return "200" if "batches" in abuse else "429"


def p99(took_ms: list[float]) -> float:
    return sorted(took_ms)[len(took_ms) * 99 // 100]


@contextmanager
def abused(server: Server, greedy: Tenant, abuse: str) -> Iterator[dict[str, int]]:
    """Lets the greedy tenant call all the while; the dictionary has its statuses afterwards."""
    role, *request = ABUSES[abuse]
    arguments = [str(server.port), getattr(greedy, role).token, str(CONNECTIONS), refusal(abuse), *request]
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.system.greedy_child", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT,
    )  # fmt: skip
    statuses: dict[str, int] = {}
    assert child.stdout is not None
    with child:
        try:
            assert child.stdout.readline() == "started\n", f"{abuse}: the tenant was not refused"
            yield statuses
            answer, _ = child.communicate("", timeout=30)
            statuses.update(ast.literal_eval(answer))
        finally:
            child.kill()
