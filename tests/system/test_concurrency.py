"""Many concurrent workers: every task is leased to exactly one of them, and a single worker gets them in order."""

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path

from tests.system.audit import audit, faults_of, read_shards

import codeq

TASKS = 10_000


def test_64_coroutines_complete_10_000_tasks_each_once(tmp_path: Path) -> None:
    claimed: list[int] = []

    async def work(queue: codeq.AsyncQueue, number: int) -> None:
        dice = random.Random(number)
        while jobs := await queue.claim("job", worker=f"worker-{number}", limit=dice.randint(1, 32)):
            claimed.extend(job.payload for job in jobs)
            answers = await queue.complete_many(jobs, [job.payload for job in jobs])
            assert not any(answers)

    async def main() -> None:
        async with await codeq.open_async(tmp_path / "data") as queue:
            await asyncio.gather(
                *(queue.enqueue_many(codeq.new_tasks("job", range(n, n + 500))) for n in range(0, TASKS, 500))
            )
            await asyncio.gather(*(work(queue, number) for number in range(64)))
            assert await queue.queues() == {}

    asyncio.run(main())
    _check_all_done(claimed, tmp_path / "data")


def test_8_threads_complete_10_000_tasks_each_once(tmp_path: Path) -> None:
    claimed: list[list[int]] = [[] for _ in range(8)]
    faults: list[BaseException] = []

    def work(queue: codeq.Queue, number: int) -> None:
        dice = random.Random(number)
        try:
            while jobs := queue.claim("job", worker=f"worker-{number}", limit=dice.randint(1, 64)):
                claimed[number].extend(job.payload for job in jobs)
                answers = queue.complete_many(jobs, [job.payload for job in jobs])
                assert not any(answers)
        except BaseException as fault:  # noqa: BLE001 - shown by the main thread
            faults.append(fault)

    with codeq.open(tmp_path / "data") as queue:
        for n in range(0, TASKS, 1000):
            queue.enqueue_many(codeq.new_tasks("job", range(n, n + 1000)))
        threads = [threading.Thread(target=work, args=(queue, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert faults == []
        assert queue.queues() == {}
    _check_all_done([number for each in claimed for number in each], tmp_path / "data")


def _check_all_done(claimed: list[int], path: Path) -> None:
    assert [number for number, times in Counter(claimed).items() if times > 1] == []
    assert sorted(claimed) == list(range(TASKS))
    found = read_shards(path)
    assert faults_of(found) == []
    stored = list(found[0].tasks.values())
    assert {task.task.status for task in stored} == {codeq.Status.COMPLETED}
    assert all(task.result == task.body.payload for task in stored)


def test_a_single_worker_gets_higher_priorities_first_and_each_priority_in_order(tmp_path: Path) -> None:
    dice = random.Random(3)
    new_tasks = [
        codeq.NewTask(command="job", payload=str(n).encode(), priority=dice.choice((0, 1, 5, 9))) for n in range(5000)
    ]
    wanted = [int(new_task.payload) for new_task in sorted(new_tasks, key=lambda new_task: -new_task.priority)]
    with codeq.open(tmp_path / "data") as queue:
        for n in range(0, 5000, 500):
            queue.enqueue_many(new_tasks[n : n + 500])
        got = [job.payload for job in queue.claim("job", limit=300)]
    with codeq.open(tmp_path / "data") as queue:  # the order outlives the process
        while jobs := queue.claim("job", limit=dice.randint(1, 300)):
            got += [job.payload for job in jobs]
    assert got == wanted
    assert audit(tmp_path / "data") == []


def test_a_reader_and_a_writer_in_the_same_turn_of_the_loop_both_return(tmp_path: Path) -> None:
    async def main() -> None:
        async with await codeq.open_async(tmp_path / "data", sweeping=False) as queue:
            for n in range(50):
                verbs = (queue.enqueue("job", n), queue.list(), queue.queues(), queue.claim("none"))
                await asyncio.wait_for(asyncio.gather(*verbs), 30)

    asyncio.run(main())
