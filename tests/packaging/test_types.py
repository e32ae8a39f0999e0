"""A user's program is type-checked against the installed wheel: its types are ours, and its mistakes are found."""

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.packaging.conftest import Environment

PROGRAM = """
import asyncio

import codeq
from codeq.errors import NotFound

client = codeq.Client("http://127.0.0.1:8080")
worker = codeq.Worker(client, concurrency=4)


@worker.task("resize", timeout=60)
def resize(payload: dict[str, str], job: codeq.RunningJob) -> dict[str, int]:
    job.progress(0.5, "half of it")
    return {"width": len(payload["image"])}


@worker.task("fetch")
async def fetch(payload: str) -> str:
    return payload


async def main() -> None:
    async with codeq.AsyncClient("http://127.0.0.1:8080") as other:
        await other.enqueue("fetch", "x")
        reveal_type(await other.claim("fetch"))


task = client.enqueue("resize", {"image": "cat.png"}, priority=5)
reveal_type(task)
reveal_type(client.queues())
reveal_type(client.workers())
reveal_type(client.get(task.id).task.status)
reveal_type(resize)
try:
    client.cancel(task.id)
except NotFound as fault:
    reveal_type(fault.code)
with codeq.open("./data") as queue:
    reveal_type(queue)
    [job] = queue.claim("resize", wait=1)
    queue.complete(job, {"width": 1})
worker.run(until_idle=True)
asyncio.run(main())
"""

REVEALED = [
    "list[codeq.sdk.jobs.Job]",
    "codeq.sdk.tasks.Task",
    "dict[str, codeq.sdk.jobs.QueueInfo]",
    "list[codeq.sdk.worker_info.WorkerStatus]",
    "codeq.domain.task.Status",
    (
        "codeq.sdk.definitions.PlainTaskDefinition["
        "[payload: dict[str, str], job: codeq.sdk.worker.running_job.RunningJob], dict[str, int]]"
    ),
    "str",
    "codeq.embedded.blocking.Queue",
]

PLANTED = """
import codeq

client = codeq.Client(tokn="x")
client.enqueue(5)
client.enqueue("resize", priority="high")
client.enqueue("resize").ide
codeq.Wroker(client)
worker = codeq.Worker(client, concurrency="many")
worker.task("resize", leese=60)
"""


def check(base: "Environment", name: str, program: str) -> str:
    (base.folder / name).write_text(program)
    command = ["--strict", "--no-error-summary", "--python-executable", str(base.bin / "python")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *command, "--cache-dir", str(base.folder / "types"), name],
        cwd=base.folder, env=base.variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def found(base: "Environment") -> str:
    return check(base, "program.py", PROGRAM)


def test_a_users_program_is_strictly_typed(found: str) -> None:
    assert re.findall(r'note: Revealed type is "(.*)"', found) == REVEALED
    assert "error" not in found


def test_a_users_mistakes_are_found(base: "Environment", found: str) -> None:
    said = check(base, "planted.py", PLANTED)
    wrong = [number for number, line in enumerate(PLANTED.splitlines(), 1) if line and number > 2]
    assert sorted({int(number) for number in re.findall(r"planted.py:(\d+): error", said)}) == wrong, said
