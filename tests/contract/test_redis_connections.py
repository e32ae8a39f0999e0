"""The connections to Redis: all are closed in the end, and only faults of Redis and of the way to it pass as such."""

import asyncio
import gc
import threading
import warnings
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from tests.contract.engines import FakeClock
from tests.contract.redis_engines import cluster_url, node_url
from tests.priority.reply_losing_proxy import ReplyLosingProxy
from tests.redis_servers import RedisNode, in_step, start_cluster, start_node, start_pair, wait_until

from codeq.domain.errors import InvalidRequest, StoreBusy, StoreClosed, StoreError, StoreMismatch, StoreUnavailable
from codeq.domain.queue import QueueKey, QueuePolicy
from codeq.store.interface import Listener, Store
from codeq.store.redis import connection, exchange, merging, peers
from codeq.store.redis.connection import RedisClient, parse_url
from codeq.store.redis.faults import FAULTS, passing
from codeq.store.redis.keys import ShardKeys
from codeq.store.redis.opening import RedisOptions, open_redis
from codeq.store.redis.peers import POLICY

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


def test_calls_whose_callers_have_gone_do_not_heap_up_before_a_redis_that_does_not_answer(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async def story(client: RedisClient) -> None:
        await client.call("GET", KEYS[0])
        node.pause()
        for _ in range(3):
            calling = asyncio.create_task(client.call("GET", KEYS[0]))
            await asyncio.sleep(0)
            calling.cancel()
        with pytest.raises(StoreBusy, match="3 calls wait for Redis"):
            await client.call("GET", KEYS[0])
        node.go_on()
        await until(lambda: not client._detached)
        assert await client.call("GET", KEYS[0]) is None

    monkeypatch.setattr(connection, "COMMITS_WAITING_MAX", 3)
    with start_node(tmp_path / "redis") as node:
        assert unclosed_after(story, node.url) == []


class OneByOne:
    def __init__(self) -> None:
        self._is_full = False

    def add(self, _: int) -> bool:
        was_full, self._is_full = self._is_full, True
        return not was_full


def test_scripts_do_not_heap_up_behind_those_that_are_under_way(monkeypatch: Any) -> None:
    async def story() -> None:
        answered = asyncio.Event()

        async def send(calls: Sequence[int]) -> Sequence[int]:
            await answered.wait()
            return calls

        merged = merging.MergedCalls(send, OneByOne, in_order=True)
        calls = range(merging.AT_ONCE + 3)
        waiting = [asyncio.create_task(merged.call(number)) for number in calls[: merging.AT_ONCE]]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting += [asyncio.create_task(merged.call(number)) for number in calls[merging.AT_ONCE :]]
        await asyncio.sleep(0)
        with pytest.raises(StoreBusy, match="wait for Redis"):
            await asyncio.wait_for(merged.call(0), 5)
        answered.set()
        assert await asyncio.gather(*waiting) == list(calls)

    monkeypatch.setattr(merging, "COMMITS_WAITING_MAX", 3)
    asyncio.run(story())


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
        monkeypatch.setattr(exchange.PlainConnection, "pack_command", mistaken)
        try:
            with pytest.raises(kind, match="a mistake"):
                await client.guarded(client.client.execute_command("GET", KEYS[0]))
        finally:
            mistaken.__globals__["__name__"] = kept
            monkeypatch.undo()
            await client.close()

    asyncio.run(story())


# -- an address that leads to another server ---------------------------------------------------------------------------


def test_a_primary_that_becomes_a_replica_is_left_for_the_one_behind_its_address(tmp_path: Path) -> None:
    async def story(url: str, fail_over: Callable[[], None]) -> None:
        store = open_redis(url, RedisOptions(), process="a", clock=FakeClock())
        queue = QueueKey("acme", "work")
        await store.set_policy(queue, QueuePolicy(), replacing=None)
        await asyncio.gather(*(store.counts(None) for _ in range(10)))  # each has a connection
        fail_over()
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await store.set_policy(queue, None, replacing=QueuePolicy())
        assert await store.set_policy(queue, None, replacing=QueuePolicy())
        await store.close()

    with start_pair(tmp_path / "redis") as (primary, replica), ReplyLosingProxy(primary.port) as address:

        def fail_over() -> None:
            wait_until(lambda: in_step(primary), "the replica")
            replica.command("REPLICAOF", "NO", "ONE")
            primary.command("REPLICAOF", "127.0.0.1", replica.port)
            address.server_port = replica.port  # connections stay as they are

        asyncio.run(story(f"redis://127.0.0.1:{address.port}/0", fail_over))


# -- signals that are lost without a word ------------------------------------------------------------------------------


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


class Moves(Listener):
    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def moved_elsewhere(self, ended: Collection[str]) -> None:  # noqa: ARG002
        self.heard.set()


def test_a_connection_for_signals_that_was_lost_without_a_word_is_renewed_and_said_once(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    async def story(node: RedisNode, proxy: ReplyLosingProxy) -> None:
        moves = Moves()
        url = f"redis://127.0.0.1:{proxy.port}/0"
        store = open_redis(url, RedisOptions(), process="a", clock=FakeClock(), listeners=[moves])
        async with store.peers.watch_moves(), asyncio.timeout(30):
            while not moves.heard.is_set():
                node.command("PUBLISH", "codeq:moved", b"\0\0")
                await asyncio.sleep(0.01)
            proxy.forget_connections()
            await until(lambda: "not heard" in caplog.text)
            moves.heard.clear()
            while not moves.heard.is_set():
                node.command("PUBLISH", "codeq:moved", b"\0\0")
                await asyncio.sleep(0.01)
        await store.close()

    monkeypatch.setattr(peers, "SILENCE_S", 0.2)
    monkeypatch.setattr(connection, "ANSWER_S", 1.0)  # of calls on the other connections that were lost
    with start_node(tmp_path / "redis") as node, ReplyLosingProxy(node.port) as proxy:
        asyncio.run(story(node, proxy))
    assert caplog.text.count("not heard") == caplog.text.count("heard again") == 1


def test_an_outage_of_signals_is_said_once_however_long_it_lasts(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    async def story(node: RedisNode) -> None:
        store = open_redis(node.url, RedisOptions(), process="a", clock=FakeClock())
        await store.peers.is_sweeper(0)
        node.kill()
        tries = 0
        connect = RedisClient.subscriptions

        async def counted(client: RedisClient) -> Any:
            nonlocal tries
            tries += 1
            return await connect(client)

        monkeypatch.setattr(RedisClient, "subscriptions", counted)
        await until(lambda: tries >= 5)
        node.start()
        await until(lambda: "heard again" in caplog.text)
        await store.close()

    monkeypatch.setattr(peers, "LOOK_AGAIN_S", 0.01)
    with start_node(tmp_path / "redis") as node:
        asyncio.run(story(node))
    assert caplog.text.count("not heard") == caplog.text.count("heard again") == 1


# -- an address where nothing answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/x"]
)
def test_a_redis_that_is_not_there_is_named_at_the_start_and_passes_later(url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        open_redis(url, RedisOptions(), process="a")

    async def story(client: RedisClient) -> None:
        with pytest.raises(StoreUnavailable, match=r"at the moment \(\w+(Error|Exception)\)"):
            await client.call("GET", KEYS[0])

    assert unclosed_after(story, url) == []


class Silent(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Says nothing of bad requests."""


def test_what_answers_as_no_redis_does_is_named_at_the_start_and_passes_later() -> None:
    async def story(client: RedisClient) -> None:
        with pytest.raises(StoreUnavailable, match="InvalidResponse"):
            await client.call("GET", KEYS[0])

    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"redis://127.0.0.1:{other.server_port}/0"
        with pytest.raises(StoreUnavailable, match=f":{other.server_port}: Protocol error"):
            open_redis(url, RedisOptions(), process="a")
        assert unclosed_after(story, url) == []
        other.shutdown()


def test_an_address_of_another_kind_is_named_at_the_start() -> None:
    one_of_three = cluster_url().replace("redis+cluster", "redis").partition(",")[0]
    host = node_url().removeprefix("redis://").removesuffix("/0")
    refused_urls = {
        f"{one_of_three}/0": r"redis\+cluster://",
        f"redis+sentinel://{host}/x": rf"{host} \(x\): unknown command .SENTINEL",
        f"redis://{host}/99": rf"{host}: DB index",
    }
    for url, reason in refused_urls.items():
        with pytest.raises(StoreUnavailable, match=reason):
            open_redis(url, RedisOptions(prefix=prefix_on_another_node(one_of_three)), process="a")
    with pytest.raises(InvalidRequest, match="names one server"):
        parse_url(f"redis://{host},{host}/0")


def prefix_on_another_node(url: str) -> str:
    """Returns a prefix whose first shard is not on this node of a cluster."""
    with redis.Redis.from_url(url) as client:
        owned = [
            (first, last)
            for first, last, (_, port, *_), *_ in client.execute_command("CLUSTER SLOTS")
            if url.endswith(f":{port}")
        ]
    slots = {letter: key_slot(ShardKeys(letter, 0).meta.encode()) for letter in ascii_lowercase}
    return next(letter for letter, slot in slots.items() if not any(first <= slot <= last for first, last in owned))


@pytest.mark.parametrize("value", ["x", "-1", ""])
def test_data_of_somebody_else_under_our_prefix_is_refused(value: str) -> None:
    prefix = "foreign" + value.replace("-", "m")
    with redis.Redis.from_url(node_url()) as client:
        client.hset(ShardKeys(prefix, 0).meta, "format", value)
    with pytest.raises(StoreMismatch, match="not codeQ's"):
        open_redis(node_url(), RedisOptions(prefix=prefix), process="a")


# -- data that goes away under a running process -----------------------------------------------------------------------


def opened(prefix: str, shards: int = 1) -> Store:
    return open_redis(node_url(), RedisOptions(prefix=prefix, shards=shards), process=f"p{shards}", clock=FakeClock())


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


def test_a_shard_that_loses_its_data_alone_is_said_loudly_and_the_log_begins_anew_everywhere(
    caplog: Any, monkeypatch: Any
) -> None:
    async def story() -> None:
        stores = [opened("partly", shards=3) for _ in range(2)]
        for store in stores:
            await store.peers.is_sweeper(0)
        log_id = stores[0].log_id
        assert stores[1].log_id == log_id
        delete("partly:2")  # as when one node of a cluster starts without its data
        await until(lambda: caplog.text.count("not those that were opened") == 2)
        await until(lambda: stores[0].log_id == stores[1].log_id != log_id)
        late = opened("partly", shards=3)
        assert late.log_id == stores[0].log_id
        for store in (late, *stores):
            await store.close()

    monkeypatch.setattr(peers, "LOOK_AGAIN_S", 0.01)
    asyncio.run(story())
    told = [record for record in caplog.records if "not those that were opened" in record.message]
    assert [record.fields["shards"] for record in told] == [[2], [2]]


def test_others_notice_that_the_process_which_made_the_data_had_to_make_it_again(caplog: Any, monkeypatch: Any) -> None:
    async def story() -> None:
        maker = opened("remade")
        other = opened("remade")
        await maker.peers.is_sweeper(0)
        delete("remade")
        await until(lambda: "not those that were opened" in caplog.text)
        await other.peers.is_sweeper(0)  # it looks for the first time
        await until(lambda: caplog.text.count("not those that were opened") == 2)
        await maker.close()
        await other.close()

    monkeypatch.setattr(peers, "LOOK_AGAIN_S", 0.01)
    asyncio.run(story())


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


async def refusals(client: RedisClient) -> list[StoreError]:
    """Returns how the client takes the refusal of a command alone, of several at once, and of a long script."""
    policy = ["field", "", "new", "channel", *["x"] * 20]
    calls: list[Awaitable[Any]] = [
        client.call("HSET", KEYS[0], "a", 1),
        client.call_all([("HSET", KEYS[0], "a", 1), ("HSET", KEYS[0], "a", 2)]),
        client.run(POLICY, [KEYS[0]], policy, before=[("HSET", KEYS[0], "a", 1)]),
        client.run(POLICY, [KEYS[0]], policy),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, StoreError) for answer in answers)
    return [answer for answer in answers if isinstance(answer, StoreError)]


@pytest.mark.parametrize("kind", ["redis", "redis+cluster"])
def test_what_redis_refuses_for_a_while_is_unknown_however_it_was_sent(tmp_path: Path, kind: str) -> None:
    async def story(client: RedisClient) -> None:
        await client.call("GET", KEYS[0])
        node.command("CONFIG", "SET", "min-replicas-to-write", 1)
        for refusal in await refusals(client):
            assert isinstance(refusal, StoreUnavailable)
            assert "(NOREPLICAS)" in str(refusal)
        node.command("CONFIG", "SET", "min-replicas-to-write", 0)
        node.command("CONFIG", "SET", "requirepass", "secret")
        with redis.Redis(port=node.port, password="secret") as operator:
            operator.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            for _ in range(2):
                for refusal in await refusals(client):
                    assert isinstance(refusal, StoreUnavailable)
            if kind == "redis":  # a cluster's client asks the nodes for their slots first
                assert "refuses this server's user" in str(refusal)
            operator.config_set("requirepass", "")
        await client.call("GET", KEYS[0])

    with ExitStack() as servers:
        if kind == "redis+cluster":
            [node] = servers.enter_context(start_cluster(tmp_path / "redis", masters=1)).nodes
        else:
            node = servers.enter_context(start_node(tmp_path / "redis"))
        assert unclosed_after(story, f"{kind}://127.0.0.1:{node.port}") == []


def test_a_user_who_is_refused_while_the_process_runs_is_a_passing_fault(tmp_path: Path) -> None:
    async def story(node: RedisNode) -> None:
        store = open_redis(f"redis://u:secret@127.0.0.1:{node.port}/0", RedisOptions(), process="a", clock=FakeClock())
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
            open_redis(f"redis://u:wrong@127.0.0.1:{node.port}/0", RedisOptions(), process="a")
