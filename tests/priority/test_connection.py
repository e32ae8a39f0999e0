"""Between the queue and Redis: each script once, on any client, on a cluster whose slots move."""

import asyncio
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from tests.priority.conftest import Site
from tests.priority.reply_losing_proxy import ReplyLosingProxy
from tests.redis_servers import RedisClusterNodes, RedisNode, bundled_binary, start_node

from codeq.domain.errors import InvalidRequest, StoreClosed
from codeq.priority import BlockingPriorityQueue, PriorityQueue, TaskPriority
from codeq.priority.keys import QueueKeys

Drain = Callable[[BlockingPriorityQueue], list[str]]
LUA = Path(__file__).parents[2] / "src/codeq/priority/lua"
SCRIPTS = sorted(path.stem for path in LUA.glob("[a-z]*.lua"))


def calls_of(node: RedisNode) -> int:
    return int(node.command("INFO", "commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def test_a_script_whose_answer_is_lost_runs_once_on_a_client_that_would_repeat_it(node: RedisNode) -> None:
    async def run() -> None:
        client = aioredis.Redis(port=proxy.port)  # with the retries that redis-py has by default
        queue = PriorityQueue(client, prefix="lost:")
        await queue.enqueue("warm")
        before = calls_of(node)
        proxy.lose_replies = True
        with pytest.raises(redis.ConnectionError):
            await queue.enqueue("a")
        proxy.lose_replies = False
        assert calls_of(node) == before + 1
        assert not await queue.enqueue("a")  # the answer was lost, not the task
        await client.aclose()

    with ReplyLosingProxy(node.port) as proxy:
        asyncio.run(run())


def test_a_script_whose_answer_is_lost_runs_once_on_a_cluster(cluster: RedisClusterNodes) -> None:
    async def run(proxies: dict[int, ReplyLosingProxy]) -> None:
        client = AsyncRedisCluster(
            host="127.0.0.1",
            port=proxies[cluster.nodes[0].port].port,
            address_remap=lambda address: (
                address[0],
                proxies[address[1]].port if address[1] in proxies else address[1],
            ),
        )
        queue = PriorityQueue(client, hash_tag="lost")
        await queue.enqueue("warm")
        before = sum(map(calls_of, cluster.nodes))
        for proxy in proxies.values():
            proxy.lose_replies = True
        with pytest.raises(redis.ConnectionError):
            await queue.enqueue("a")
        for proxy in proxies.values():
            proxy.lose_replies = False
        assert sum(map(calls_of, cluster.nodes)) == before + 1
        assert not await queue.enqueue("a")
        await client.aclose()

    with ExitStack() as stack:
        asyncio.run(run({node.port: stack.enter_context(ReplyLosingProxy(node.port)) for node in cluster.nodes}))


def test_a_task_whose_delivery_was_lost_on_the_way_is_delivered_again(node: RedisNode) -> None:
    with ReplyLosingProxy(node.port) as proxy:
        worker = BlockingPriorityQueue(f"redis://127.0.0.1:{proxy.port}/0", prefix="delivery:", lock_ttl_s=0.2)
        worker.enqueue("a")
        worker.dequeue()
        worker.release_lock("a")
        proxy.lose_replies = True
        with pytest.raises(redis.ConnectionError):
            worker.dequeue()
        proxy.lose_replies = False
        task = worker.dequeue(wait=10)
        assert str(task) == "a"
        worker.close()


def test_scripts_that_redis_forgot_are_sent_again(site: Site) -> None:
    queue = site.queue()
    queue.enqueue("a")
    site.raw.script_flush()
    assert str(queue.dequeue()) == "a"
    site.raw.script_flush()
    queue.complete("a")


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}, {"socket_timeout": 0.5}])
def test_a_client_with_other_options_serves_as_well(site: Site, options: dict[str, Any]) -> None:
    async def run() -> None:
        kind: Any = AsyncRedisCluster if site.is_cluster else aioredis.Redis
        client = kind.from_url(site.url, **options)
        async with PriorityQueue(client, **site.names) as queue:
            await asyncio.to_thread(site.raw.zadd, site.keys.queue, {b"\xff": 7.5})
            assert await queue.enqueue("a", 70)
            task = await queue.dequeue()
            assert task is not None
            assert (task.task_id, task.priority) == ("a", 70)
            assert [(found.member, found.score) for found in await queue.corrupted()] == [(b"\xff", 7.5)]
            await queue.complete(task)
            assert await queue.dequeue(wait=0.5) is None
        assert await client.zcard(site.keys.queue) == 0  # a client that was passed stays open
        await client.aclose()

    asyncio.run(run())


def test_an_older_redis_serves_as_well(tmp_path: Path, drain: Drain) -> None:
    with start_node(tmp_path, binary=bundled_binary()) as node:
        with BlockingPriorityQueue(node.url) as queue:
            for task_id, priority in (("n", TaskPriority.NORMAL), ("h", TaskPriority.HIGH)):
                queue.enqueue(task_id, priority)
            queue.requeue_with_delay(str(queue.dequeue()), 0)
            assert drain(queue) == ["h", "n"]
            assert queue.dequeue(wait=0.1) is None
        assert node.client().keys("*") == [b"task:sequence"]


def test_without_a_prefix_the_keys_have_the_names_of_the_story() -> None:
    keys = QueueKeys()
    assert (keys.queue, keys.retry, keys.lock("7")) == ("task:queue", "task:retry:queue", "task:lock:7")


def test_two_queues_with_other_prefixes_have_nothing_in_common(node: RedisNode, drain: Drain) -> None:
    with BlockingPriorityQueue(node.url, prefix="x:") as one, BlockingPriorityQueue(node.url, prefix="y:") as other:
        one.enqueue("a")
        assert drain(other) == []
        assert drain(one) == ["a"]


def test_all_keys_of_a_tagged_queue_are_in_one_slot(cluster: RedisClusterNodes) -> None:
    keys = QueueKeys("acme:", "reviews")
    assert len({cluster.slot(key) for key in (*keys.fixed, keys.lock("a"), keys.lock("b{c}"))}) == 1


def test_a_cluster_without_a_hash_tag_is_refused(cluster: RedisClusterNodes) -> None:
    client = AsyncRedisCluster.from_url(cluster.nodes[0].url)
    with pytest.raises(InvalidRequest, match="hash tag"):
        PriorityQueue(client)


@pytest.mark.parametrize("names", [{"hash_tag": ""}, {"hash_tag": "a}"}, {"hash_tag": "a", "prefix": "{b}"}])
def test_a_hash_tag_that_would_not_work_is_refused(names: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="hash tag"):
        QueueKeys(**names)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_states_its_contract_and_names_no_key(name: str) -> None:
    text = (LUA / f"{name}.lua").read_text()
    assert text.startswith(f"-- {name}: ")
    assert "-- ARGV" in text
    assert "-- Returns" in text
    assert "task:" not in text


def test_every_key_that_a_script_touches_was_declared() -> None:
    """Names of KEYS and of their elements only: a key made up inside a script breaks it when its slot moves."""
    names = {
        *[
            "queue",
            "retry",
            "in_flight",
            "records",
            "sequence",
            "wake",
            "corrupted",
            "dead",
            "lock",
            "times",
            "locks[id]",
        ]
    }
    text = "".join(path.read_text() for path in LUA.glob("*.lua"))
    touched = set(re.findall(r"redis\.p?call\('(?!TIME)\w+', ([\w\[\]]+)", text))
    assert touched <= names
    assert len(re.findall(r"redis\.p?call\(", text)) == len(re.findall(r"redis\.p?call\('\w+'[,)]", text))


def test_a_closed_queue_says_so(node: RedisNode) -> None:
    queue = BlockingPriorityQueue(node.url)
    queue.close()
    queue.close()
    with pytest.raises(StoreClosed):
        queue.enqueue("a")
