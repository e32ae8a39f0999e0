"""The connections to Redis: all are closed in the end, and only faults of Redis and of the way to it pass as such."""

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.contract.engines import FakeClock
from tests.contract.redis_engines import cluster_url, node_url
from tests.redis_servers import RedisNode, start_node

from codeq.domain.errors import StoreClosed, StoreMismatch, StoreUnavailable
from codeq.store.interface import Store
from codeq.store.redis import connection, peers
from codeq.store.redis.connection import RedisClient, parse_url
from codeq.store.redis.faults import FAULTS, passing
from codeq.store.redis.keys import ShardKeys
from codeq.store.redis.opening import Wanted, open_redis

KEYS = [f"{{{number}}}" for number in range(40)]
"""Of every node of a cluster."""


def unclosed_after(story: Callable[[RedisClient], Awaitable[None]], url: str) -> list[str]:
    """Runs the story with a client, closes it, and returns what was left open."""

    async def run() -> None:
        client = RedisClient(parse_url(url))
        try:
            await story(client)
        finally:
            await client.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(run())
        gc.collect()
    return [str(warning.message) for warning in found]


def test_a_cluster_that_has_just_lost_a_connection_is_closed_whole() -> None:
    async def story(client: RedisClient) -> None:
        await asyncio.gather(*(client.call("GET", key) for key in KEYS))
        await client.guarded(client.client.initialize())
        node = client.client.get_node_from_key(KEYS[0])
        with redis.Redis(node.host, node.port) as killer:
            killer.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(StoreUnavailable):
            await client.guarded(client.client.execute_command("GET", KEYS[0]))

    assert unclosed_after(story, cluster_url()) == []


@pytest.mark.parametrize("url", [node_url, cluster_url])
def test_a_call_whose_caller_has_gone_opens_no_connection_after_the_close(url: Callable[[], str]) -> None:
    async def story(client: RedisClient) -> None:
        calling = asyncio.create_task(client.call("GET", KEYS[0]))
        await asyncio.sleep(0)
        calling.cancel()

    assert unclosed_after(story, url()) == []


def test_a_call_that_gets_no_answer_does_not_hold_up_the_close(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(connection, "CLOSE_S", 0.1)

    async def story(client: RedisClient) -> None:
        await client.call("GET", KEYS[0])
        node.pause()
        calling = asyncio.create_task(client.call("GET", KEYS[0]))
        await asyncio.sleep(0.05)
        calling.cancel()
        await asyncio.wait([calling])

    with start_node(tmp_path / "redis") as node:
        try:
            assert unclosed_after(story, node.url) == []
        finally:
            node.go_on()


def test_a_closed_client_does_not_connect_again() -> None:
    async def story() -> None:
        client = RedisClient(parse_url(node_url()))
        await client.call("GET", KEYS[0])
        await client.close()
        with pytest.raises(StoreClosed):
            await client.call("GET", KEYS[0])

    asyncio.run(story())


# -- whose fault it is -------------------------------------------------------------------------------------------------


async def _raised(client: RedisClient) -> Exception:
    try:
        await client.client.execute_command("GET", KEYS[0])
    except FAULTS as fault:
        return fault
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("kind", [RuntimeError, AttributeError])
def test_what_the_library_raises_under_a_call_passes(monkeypatch: Any, kind: type[Exception]) -> None:
    async def story() -> None:
        client = RedisClient(parse_url(node_url()))
        await client.call("GET", KEYS[0])

        async def closed(*_: Any, **__: Any) -> Any:
            raise kind("the transport is closed")

        # As asyncio and uvloop do where the library uses a connection that it has closed.
        monkeypatch.setattr("asyncio.StreamWriter.drain", closed)
        monkeypatch.setattr("asyncio.StreamWriter.writelines", lambda *_: (_ for _ in ()).throw(kind("closed")))
        assert isinstance(passing(await _raised(client)), StoreUnavailable)
        monkeypatch.undo()
        await client.close()

    asyncio.run(story())


@pytest.mark.parametrize("kind", [RuntimeError, AttributeError])
def test_a_mistake_of_our_own_is_not_taken_for_a_fault_of_redis(monkeypatch: Any, kind: type[Exception]) -> None:
    def mistaken(*_: Any) -> Any:
        raise kind("a mistake")

    async def story() -> None:
        client = RedisClient(parse_url(node_url()))
        await client.call("GET", KEYS[0])
        mistaken.__globals__["__name__"], kept = "codeq.store.redis.connection", mistaken.__globals__["__name__"]
        monkeypatch.setattr(connection.PlainConnection, "pack_command", mistaken)
        try:
            with pytest.raises(kind, match="a mistake"):
                await client.guarded(client.client.execute_command("GET", KEYS[0]))
        finally:
            mistaken.__globals__["__name__"] = kept
            monkeypatch.undo()
            await client.close()

    asyncio.run(story())


# -- an address where nothing answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/x"]
)
def test_a_redis_that_is_not_there_is_named_at_the_start_and_passes_later(url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        open_redis(url, Wanted(), process="a")

    async def story(client: RedisClient) -> None:
        with pytest.raises(StoreUnavailable, match=r"at the moment \(\w+(Error|Exception)\)"):
            await client.call("GET", KEYS[0])

    assert unclosed_after(story, url) == []


@pytest.mark.parametrize("value", ["x", "-1", ""])
def test_data_of_somebody_else_under_our_prefix_is_refused(value: str) -> None:
    prefix = "foreign" + value.replace("-", "m")
    with redis.Redis.from_url(node_url()) as client:
        client.hset(ShardKeys(prefix, 0).meta, "format", value)
    with pytest.raises(StoreMismatch, match="not codeQ's"):
        open_redis(node_url(), Wanted(prefix=prefix), process="a")


# -- data that goes away under a running process -----------------------------------------------------------------------


def opened(prefix: str, shards: int = 1) -> Store:
    return open_redis(node_url(), Wanted(prefix=prefix, shards=shards), process=f"p{shards}", clock=FakeClock())


def delete(prefix: str) -> None:
    with redis.Redis.from_url(node_url()) as client:
        client.delete(*client.keys(f"{{{prefix}*"))


async def sweep_for_ever(store: Store) -> None:
    async with asyncio.timeout(10):
        while True:
            await store.peers.is_sweeper(0)
            await store.counts(None)


def test_deleted_data_is_said_loudly_and_the_number_of_shards_is_agreed_on_again(caplog: Any, monkeypatch: Any) -> None:
    async def story() -> None:
        store = opened("deleted")
        await store.peers.is_sweeper(0)
        log_id = store.log_id
        delete("deleted")
        async with asyncio.timeout(10):
            while "not those that were opened" not in caplog.text or store.log_id == log_id:
                await store.counts(None)
        other = opened("deleted")
        assert other.log_id == store.log_id  # the log of this data set, not of one process
        await other.close()
        with pytest.raises(StoreMismatch):
            opened("deleted", shards=3)
        await store.close()

    monkeypatch.setattr(peers, "LOOK_AGAIN_S", 0.01)
    asyncio.run(story())
    assert caplog.text.count("not those that were opened") == 1


def test_a_process_does_not_go_on_with_data_that_has_another_number_of_shards(monkeypatch: Any) -> None:
    async def story() -> None:
        store = opened("replaced")
        delete("replaced")
        other = opened("replaced", shards=3)
        with pytest.raises(StoreMismatch, match="3 shards, not 1"):
            await sweep_for_ever(store)
        await store.close()
        await other.close()

    monkeypatch.setattr(peers, "LOOK_AGAIN_S", 0.01)
    asyncio.run(story())


def test_a_user_who_is_refused_while_the_process_runs_is_a_passing_fault(tmp_path: Path) -> None:
    async def story(node: RedisNode) -> None:
        store = open_redis(f"redis://u:secret@127.0.0.1:{node.port}/0", Wanted(), process="a", clock=FakeClock())
        await store.counts(None)
        node.command("ACL", "SETUSER", "u", "resetpass", ">other")
        node.command("CLIENT", "KILL", "USER", "u")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="refuses this server's user"):
                await store.counts(None)
        node.command("ACL", "SETUSER", "u", ">secret")
        assert await store.counts(None) == {}
        await store.close()

    with start_node(tmp_path / "redis") as node:
        node.command("ACL", "SETUSER", "u", "on", ">secret", "~*", "&*", "+@all")
        asyncio.run(story(node))
        with pytest.raises(StoreUnavailable, match="invalid username-password pair"):
            open_redis(f"redis://u:wrong@127.0.0.1:{node.port}/0", Wanted(), process="a")
