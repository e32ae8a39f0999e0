"""What an operator does to a queue: a key of another type in place of one of its own, and a Redis without memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from tests.priority.conftest import Site
from tests.redis_servers import RedisNode, start_node

from codeq.priority import BlockingPriorityQueue, Claimed

CALLS: dict[str, Callable[[BlockingPriorityQueue, Claimed], object]] = {
    "enqueue": lambda queue, _: queue.enqueue("new"),
    "dequeue": lambda queue, _: queue.dequeue(),
    "renew": lambda queue, task: queue.renew(task),
    "requeue": lambda queue, task: queue.requeue_with_delay(task, 5),
    "release": lambda queue, task: queue.release_lock(task),
    "complete": lambda queue, task: queue.complete(task),
}
PLACES = ("queue", "retry", "in_flight")


@pytest.mark.parametrize("name", [*PLACES, "records", "sequence", "wake", "corrupted", "dead"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_at_a_key_of_another_type_has_changed_nothing(site: Site, call: str, name: str) -> None:
    queue, key = site.queue(), getattr(site.keys, name)
    queue.enqueue("held")
    queue.enqueue("ready")
    task = queue.dequeue()
    assert task is not None
    before = where(site)
    kept = site.raw.dump(key)
    site.raw.delete(key)
    site.raw.set(key, "junk")
    failed = False
    try:
        CALLS[call](queue, task)
    except redis.ResponseError:
        failed = True
    site.raw.delete(key)
    if kept:
        site.raw.restore(key, 0, kept)
    assert failed is False or where(site) == before
    assert name != "wake" or not failed


def where(site: Site) -> dict[str, list[bytes]]:
    return {place: site.raw.zrange(getattr(site.keys, place), 0, -1) for place in PLACES}


@pytest.fixture
def small_node(tmp_path: Path) -> Iterator[RedisNode]:
    with start_node(tmp_path) as node:
        yield node


def test_a_redis_without_memory_refuses_new_tasks_and_lets_workers_work_off_what_is_there(
    small_node: RedisNode,
) -> None:
    with BlockingPriorityQueue(small_node.url) as queue:
        for number in range(10):
            queue.enqueue(f"task-{number}")
        small_node.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            queue.enqueue("one-more")
        first, second = queue.dequeue(), queue.dequeue()
        assert first is not None
        assert second is not None
        queue.renew(first)
        queue.release_lock(first)
        queue.requeue_with_delay(second, 0)
        queue.recover()
        done = []
        while task := queue.dequeue():
            queue.complete(task)
            done.append(task.task_id)
        assert sorted(done) == sorted(f"task-{number}" for number in range(10))
