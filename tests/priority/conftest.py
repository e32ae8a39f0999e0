"""A real Redis and a real Redis Cluster, and queues on them, each with keys of its own."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster

# The tests' own modules are imported by their full name, which `--import-mode=importlib` leaves to the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.redis_servers import RedisClusterNodes, RedisNode, start_cluster, start_node

from codeq.priority import BlockingPriorityQueue, PriorityQueue
from codeq.priority.keys import QueueKeys

_numbers = count(1)


class ManualClock:
    """A time in milliseconds that a test sets."""

    def __init__(self, ms: int = 1_738_800_000_000) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms

    def advance(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)


class Site:
    """One queue's keys on a server or cluster: any number of workers on it, and a plain client beside them."""

    def __init__(self, url: str, raw: Any, *, is_cluster: bool) -> None:
        name = f"test{next(_numbers)}"
        self.url = url
        self.raw = raw
        self.is_cluster = is_cluster
        self.names: dict[str, Any] = {"hash_tag": name} if is_cluster else {"prefix": f"{name}:"}
        self.keys = QueueKeys(**self.names)
        self._queues: list[BlockingPriorityQueue] = []

    def queue(self, **options: Any) -> BlockingPriorityQueue:
        """Returns a queue with a worker of its own."""
        made = BlockingPriorityQueue(self._client(), **self.names, **options)
        made._inner._connection._is_own = True  # closed with the queue, on its event loop
        self._queues.append(made)
        return made

    def async_queue(self, **options: Any) -> PriorityQueue:
        """Returns a queue for the running event loop. `async with` closes it."""
        made = PriorityQueue(self._client(), **self.names, **options)
        made._connection._is_own = True
        return made

    def close(self) -> None:
        for queue in self._queues:
            queue.close()

    def _client(self) -> Any:
        kind: Any = AsyncRedisCluster if self.is_cluster else aioredis.Redis
        return kind.from_url(self.url, socket_timeout=120)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisNode]:
    with start_node(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisClusterNodes]:
    with start_cluster(tmp_path_factory.mktemp("cluster"), masters=3) as running:
        yield running


@pytest.fixture(params=["redis", "cluster"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Everything is promised on one server and on a cluster alike."""
    if request.param == "redis":
        node: RedisNode = request.getfixturevalue("node")
        made = Site(node.url, node.client(), is_cluster=False)
        yield made
        made.close()
        return
    cluster: RedisClusterNodes = request.getfixturevalue("cluster")
    with redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port) as raw:
        made = Site(cluster.nodes[0].url, raw, is_cluster=True)
        yield made
        made.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def drain() -> Callable[[BlockingPriorityQueue], list[str]]:
    """Returns a function that dequeues and completes until nothing is ready, and names the tasks in order."""

    def drained(queue: BlockingPriorityQueue) -> list[str]:
        found = []
        while task := queue.dequeue():
            queue.complete(task)
            found.append(task.task_id)
        return found

    return drained
