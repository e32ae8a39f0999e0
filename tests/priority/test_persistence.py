"""What Redis has written to its append-only file is there after a kill and after a stop, in the same order."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.redis_servers import RedisNode, start_node

from codeq.priority import BlockingPriorityQueue, TaskPriority

Drain = Callable[[BlockingPriorityQueue], list[str]]


@pytest.mark.parametrize("end", [RedisNode.kill, RedisNode.stop])
def test_the_queue_survives_a_restart_of_redis(tmp_path: Path, drain: Drain, end: Callable[[RedisNode], None]) -> None:
    with (
        start_node(tmp_path, appendonly="yes", appendfsync="always") as node,
        BlockingPriorityQueue(node.url) as queue,
    ):
        for number in range(9, -1, -1):
            queue.enqueue(f"normal-{number}")
        for task_id in ("done", "delayed", "running"):
            queue.enqueue(task_id, TaskPriority.HIGH)
        queue.complete(str(queue.dequeue()))
        queue.requeue_with_delay(str(queue.dequeue()), 3600)
        running = queue.dequeue()
        assert str(running) == "running"
        end(node)
        node.start()
        assert queue.is_locked("running")
        assert (queue.queue_size(), queue.queue_size(include_delayed=True)) == (10, 11)
        assert drain(queue) == [f"normal-{number}" for number in range(9, -1, -1)]
        assert running is not None
        queue.complete(running)


def test_a_program_can_ask_whether_redis_keeps_what_it_is_given(tmp_path: Path) -> None:
    for setting, answer in (("yes", True), ("no", False)):
        with start_node(tmp_path / setting, appendonly=setting) as node, BlockingPriorityQueue(node.url) as queue:
            assert queue.is_persistent() is answer


def test_the_task_of_a_worker_that_died_with_redis_is_recovered(tmp_path: Path) -> None:
    with start_node(tmp_path, appendonly="yes", appendfsync="always") as node:
        with BlockingPriorityQueue(node.url, lock_ttl_s=0.2) as dying:
            dying.enqueue("a")
            dying.dequeue()
            node.kill()
        node.start()
        with BlockingPriorityQueue(node.url) as queue:
            task = queue.dequeue(wait=10)
            assert task is not None
            assert (task.task_id, task.attempts) == ("a", 2)
