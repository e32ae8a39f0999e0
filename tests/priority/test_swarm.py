"""Sixteen workers in four processes take ten thousand tasks: every task once, the high ones first."""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.redis_servers import RedisNode

from codeq.priority import BlockingPriorityQueue, PriorityQueue, TaskPriority

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TASKS, PROCESSES, THREADS = 10_000, 4, 4


async def enqueue_all(url: str) -> None:
    async with PriorityQueue(url) as queue:
        numbers = iter(range(TASKS))

        async def produce() -> None:
            for number in numbers:
                await queue.enqueue(str(number), TaskPriority.HIGH if number % 5 == 0 else TaskPriority.NORMAL)

        await asyncio.gather(*(produce() for _ in range(16)))


def test_sixteen_workers_take_ten_thousand_tasks_once_each(node: RedisNode) -> None:
    node.client().flushall()
    asyncio.run(enqueue_all(node.url))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.priority.swarm_worker", node.url, str(THREADS)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    lines = [line.split() for process in processes for line in process.communicate(timeout=300)[0].splitlines()]
    assert Counter(task_id for task_id, _, _ in lines) == Counter(str(number) for number in range(TASKS))
    assert {attempts for _, _, attempts in lines} == {"1"}
    by_delivery = [int(task_id) for task_id, _, _ in sorted(lines, key=lambda line: int(line[1]))]
    high = TASKS // 5
    assert all(number % 5 == 0 for number in by_delivery[:high])
    with BlockingPriorityQueue(node.url) as queue:
        assert queue.queue_size(include_delayed=True) == 0
