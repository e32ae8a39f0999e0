"""A cluster moves the slot of a queue to another node while it is used: nothing is lost, halved or done twice."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from tests.priority.conftest import Site
from tests.redis_servers import RedisClusterNodes

from codeq.priority import BlockingPriorityQueue
from codeq.priority.keys import QueueKeys
from codeq.priority.scripts import load


def test_in_a_slot_that_is_moving_a_script_runs_whole_or_not_at_all(cluster: RedisClusterNodes) -> None:
    keys = QueueKeys(hash_tag="half")
    slot = cluster.slot(keys.queue)
    source = cluster.owner(slot)
    target = cluster.other(source)
    script = load("enqueue")
    arguments = (script.source, len(keys.fixed), *keys.fixed, "", "a", 50)
    source.command("EVAL", *arguments)
    before = source.command("ZRANGE", keys.queue, 0, -1), source.command("GET", keys.sequence)
    cluster.begin_move(slot, to=target)
    with pytest.raises((redis.exceptions.TryAgainError, redis.exceptions.AskError)):  # some keys do not exist yet
        source.command("EVAL", *arguments[:-2], "b", 50)
    assert before == (source.command("ZRANGE", keys.queue, 0, -1), source.command("GET", keys.sequence))
    while cluster.move_keys(slot, to=target):
        pass
    cluster.end_move(slot, to=target)
    assert target.command("ZRANGE", keys.queue, 0, -1) == before[0]


def repeat(call: Callable[[], Any]) -> Any:
    """Repeats what a moving slot refuses; nothing has run then."""
    while True:
        try:
            return call()
        except (redis.exceptions.ClusterError, redis.exceptions.ResponseError):
            continue


def work(queue: BlockingPriorityQueue, completed: list[str], is_over: threading.Event) -> None:
    while True:
        is_last = is_over.is_set()
        task = repeat(lambda: queue.dequeue(wait=0.2))
        if task:
            repeat(lambda: queue.complete(task))  # noqa: B023 - called at once
            completed.append(task.task_id)
        elif is_last:
            return


def test_tasks_survive_the_moves_of_their_slot(cluster: RedisClusterNodes) -> None:
    site = Site(cluster.nodes[0].url, None, is_cluster=True)
    producer, queues = site.queue(), [site.queue(), site.queue()]
    completed: list[str] = []
    is_over = threading.Event()
    workers = [threading.Thread(target=work, args=(queue, completed, is_over)) for queue in queues]
    for worker in workers:
        worker.start()
    slot = cluster.slot(site.keys.queue)
    for number in range(300):
        repeat(lambda: producer.enqueue(f"task-{number}"))  # noqa: B023 - called at once
        if number % 100 == 99:
            cluster.move_slot(slot, to=cluster.other(cluster.owner(slot)))
    is_over.set()
    for worker in workers:
        worker.join(60)
    site.close()
    assert Counter(completed) == Counter(f"task-{number}" for number in range(300))
