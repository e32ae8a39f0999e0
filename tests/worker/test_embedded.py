"""Workers on a queue inside the process: opened for plain calls, and on the event loop."""

import asyncio
import threading
from pathlib import Path

from tests.worker.workers import make_worker

import codeq


def test_a_worker_works_on_a_queue_of_its_own_event_loop(tmp_path: Path) -> None:
    async def run() -> list[object]:
        async with await codeq.open_async(tmp_path / "data") as queue:
            tasks = [await queue.enqueue(command, number) for number in range(20) for command in ("echo", "echo_async")]
            await make_worker({"echo": {}, "echo_async": {}}).run_async(queue, until_idle=True)
            return [await queue.wait(task.id, 5) for task in tasks]

    assert asyncio.run(run()) == [number for number in range(20) for _ in range(2)]


def test_a_worker_on_the_loop_of_its_program_stops_when_it_is_cancelled_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    async def run() -> set[str]:
        async with await codeq.open_async(tmp_path / "data") as queue:
            working = asyncio.create_task(make_worker({"echo_async": {}}).run_async(queue))
            task = await queue.enqueue("echo_async", 1)
            assert await queue.wait(task.id, 10) == 1
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            assert working.cancelled()
            assert await queue.wait((await _done_by_hand(queue)).id, 5) == "by hand"
        return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    assert asyncio.run(run()) == set()


async def _done_by_hand(queue: codeq.AsyncQueue) -> codeq.Task:
    task = await queue.enqueue("echo_async", 2)
    [job] = await queue.claim("echo_async")
    await queue.complete(job, "by hand")
    return task


def test_a_worker_runs_in_any_thread(embedded: codeq.Queue) -> None:
    queue = embedded.for_tenant("threads")
    task = queue.enqueue("echo", 1)
    thread = threading.Thread(target=make_worker({"echo": {}}).run, args=(queue,), kwargs={"until_idle": True})
    thread.start()
    thread.join(20)
    assert queue.wait(task.id, 0) == 1


def test_one_worker_can_run_again_and_on_two_queues_at_once(embedded: codeq.Queue) -> None:
    worker = make_worker({"echo": {}})
    queues = [embedded.for_tenant("again-1"), embedded.for_tenant("again-2")]
    for number in range(2):
        tasks = [queue.enqueue("echo", number) for queue in queues]
        threads = [threading.Thread(target=worker.run, args=(queue,), kwargs={"until_idle": True}) for queue in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert [queue.wait(task.id, 0) for queue, task in zip(queues, tasks, strict=True)] == [number] * 2


def test_a_payload_may_be_nothing(embedded: codeq.Queue) -> None:
    queue = embedded.for_tenant("nothing")
    task = queue.enqueue("echo", None)
    make_worker({"echo": {}}).run(queue, until_idle=True)
    assert queue.wait(task.id, 5) is None
