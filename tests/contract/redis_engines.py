"""The Redis engine for the contract: servers that live as long as the test process, and a prefix per data directory."""

import atexit
import hashlib
import itertools
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import redis
from tests.redis_servers import start_cluster, start_node

from codeq.store.interface import Clock, Listener, Store
from codeq.store.redis.connection import parse_url
from codeq.store.redis.filters import Filters, FilterSize, RotatingFilter
from codeq.store.redis.keys import ShardKeys
from codeq.store.redis.opening import RedisOptions, open_redis

SERVER_URL = "CODEQ_TEST_REDIS_URL"
"""Names the variable with the address of a running server to test instead, as redis://127.0.0.1:6379/0."""

_running = ExitStack()
atexit.register(_running.close)
_processes = itertools.count()
_moved: dict[Path, Path] = {}
"""Where the data of a directory really is: a copy that a crash left is the same data, because Redis goes on."""


@cache
def node_url() -> str:
    if given := os.environ.get(SERVER_URL):
        return given
    folder = Path(_running.enter_context(tempfile.TemporaryDirectory(prefix="codeq-redis-")))
    return _running.enter_context(start_node(folder)).url


@cache
def durable_node_url() -> str:
    """As `node_url`, of a server that syncs every write before it answers."""
    if given := os.environ.get(SERVER_URL):
        return given
    folder = Path(_running.enter_context(tempfile.TemporaryDirectory(prefix="codeq-redis-")))
    return _running.enter_context(start_node(folder, appendonly="yes", appendfsync="always")).url


@cache
def cluster_url() -> str:
    folder = Path(_running.enter_context(tempfile.TemporaryDirectory(prefix="codeq-cluster-")))
    cluster = _running.enter_context(start_cluster(folder, masters=3))
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)


def open_node(path: Path, **options: object) -> Store:
    return _open(node_url(), path, **options)  # type: ignore[arg-type]


def open_cluster(path: Path, **options: object) -> Store:
    return _open(cluster_url(), path, **options)  # type: ignore[arg-type]


class EightBits(RotatingFilter):
    """Never starts anew: after a few items it says yes to everything."""

    def _is_full(self) -> bool:
        return False


def open_with_full_filters(path: Path, **options: object) -> Store:
    tiny = FilterSize(items=1, error_rate=0.5, seconds=86_400)
    filters = Filters(idempotency=EightBits(tiny), ghost=EightBits(tiny), cleanup=EightBits(tiny))
    for each in filters.by_name().values():
        for item in range(100):
            each.add(str(item))
        assert each.size_bytes == 1
        assert "never added" in each
    return _open(node_url(), path, filters=filters, **options)  # type: ignore[arg-type]


def crash(path: Path, target: Path) -> None:
    """A process that is killed leaves everything in Redis."""
    _moved[target] = _moved.get(path, path)
    target.mkdir()


def prefix_of(path: Path) -> str:
    return "t" + hashlib.sha1(str(_moved.get(path, path)).encode()).hexdigest()[:16]


def _open(
    url: str,
    path: Path,
    *,
    clock: Clock,
    shards: int | None,
    fsync: bool,
    grace_ms: int,
    listeners: Sequence[Listener],
    filters: Filters | None = None,
) -> Store:
    path.mkdir(exist_ok=True)
    prefix = prefix_of(path)
    _forget_the_server(url, prefix, shards or 1)
    wanted = RedisOptions(prefix=prefix, shards=shards, grace_ms=grace_ms)
    return open_redis(url, wanted, clock=clock, listeners=listeners, process=str(next(_processes)), filters=filters)


def _forget_the_server(url: str, prefix: str, shards: int) -> None:
    """Makes this opening the first one after a start of Redis, so that leases get their grace."""
    address = parse_url(url)
    host, port = address.nodes[0]
    client = redis.RedisCluster(host, port) if address.kind == "cluster" else redis.Redis(host, port)
    with client:
        for shard in range(shards):
            client.hdel(ShardKeys(prefix, shard).meta, "run_id")
