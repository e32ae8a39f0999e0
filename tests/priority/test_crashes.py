"""A worker process that is killed before, during and after every step loses no task and leaves nothing behind."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.priority.dying_worker import MOMENTS, STEPS
from tests.redis_servers import RedisNode

from codeq.priority import BlockingPriorityQueue
from codeq.priority.keys import QueueKeys

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_any_moment_loses_nothing(node: RedisNode, step: str, moment: str) -> None:
    raw = node.client()
    raw.flushall()
    run = subprocess.run(
        [sys.executable, "-m", "tests.priority.dying_worker", node.url, step, moment],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    exists = (step, moment) not in {("enqueue", "before"), ("complete", "after")}
    is_certain = (step, moment) not in {("enqueue", "sent"), ("complete", "sent")}
    with BlockingPriorityQueue(node.url) as queue:
        task = queue.dequeue(wait=20 if exists and is_certain else 0.5)
        if is_certain:
            assert (task is not None) == exists
        if task:
            assert task.task_id == "task"
            queue.complete(task)
        assert queue.dequeue() is None
    assert set(raw.keys("*")) <= {QueueKeys().sequence.encode()}
