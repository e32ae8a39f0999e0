"""The queue inside the process, seen as several tenants and closed by one."""

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import codeq
from codeq import Status, TaskFailed
from codeq.errors import StoreClosed


def test_closing_a_tenants_view_leaves_the_store_open(tmp_path: Path) -> None:
    with codeq.open(tmp_path) as queue:
        with queue.for_tenant("other") as other:
            task = other.enqueue("work", 1)
        assert queue.enqueue("work", 2).status is Status.PENDING
        assert queue.for_tenant("other").get(task.id).payload == 1
        assert queue.list().tasks[0].id != task.id
    with pytest.raises(StoreClosed):
        other.enqueue("work", 3)
    with pytest.raises(StoreClosed):
        queue.enqueue("work", 3)


def test_closing_a_tenants_awaited_view_leaves_the_store_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with await codeq.open_async(tmp_path) as queue:
            async with queue.for_tenant("other") as other:
                task = await other.enqueue("work", 1)
            assert (await queue.enqueue("work", 2)).status is Status.PENDING
            assert (await queue.for_tenant("other").get(task.id)).payload == 1
        with pytest.raises(StoreClosed):
            await other.enqueue("work", 3)

    asyncio.run(main())


def test_a_failure_can_be_sent_to_another_process(tmp_path: Path) -> None:
    with codeq.open(tmp_path) as queue:
        task = queue.enqueue("work", {"n": 1})
        queue.cancel(task.id)
        with pytest.raises(TaskFailed) as caught:
            queue.wait(task.id)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.details) == (str(caught.value), caught.value.details)


def test_a_program_that_leaves_its_queue_open_ends_as_it_wants_to(tmp_path: Path) -> None:
    program = "import codeq, os, sys; q = codeq.open(sys.argv[1]); q.enqueue('a', 1); os.fork() or exit(8); exit(7)"
    for number in range(1, 4):
        run = [sys.executable, "-c", program, str(tmp_path)]
        ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (7, "")
        with codeq.open(tmp_path) as queue:
            assert len(queue.list().tasks) == number


IN_A_FORK = """
import codeq, os, sys
queue = codeq.open(sys.argv[1])
batcher = queue.batcher()
if os.fork() == 0:
    view = queue.for_tenant("b")
    for call in (lambda: queue.enqueue("a", 1), view.queues, lambda: batcher.enqueue("a", 1)):
        try:
            call()
        except codeq.CodeqError as fault:
            print(fault, flush=True)
    batcher.close()
    queue.close()
    os._exit(0)
status = os.wait()[1]
batcher.enqueue("a", 2)
batcher.close()
print(status, len(queue.list().tasks))
queue.close()
"""


def test_a_queue_that_was_opened_before_a_fork_says_so_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    """As under a web server that forks after it has loaded the application."""
    run = [sys.executable, "-c", IN_A_FORK, str(tmp_path)]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    *refusals, last = ended.stdout.splitlines()
    assert [text.partition(" before the fork")[0] for text in refusals] == [
        "this queue was opened", "this queue was opened", "this batcher was made",
    ]  # fmt: skip
    assert last == "0 1"
