"""Commands on connections that stay checked out: none gets the answer to another, or waits for ever."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.redis_servers import RedisNode, start_node

from codeq.domain.errors import StoreUnavailable
from codeq.store.redis import connection, exchange
from codeq.store.redis.connection import LuaScript, RedisClient, parse_url

ECHO = LuaScript("lease")  # any; with another source
ECHO.source = "return ARGV[1]"
ECHO.sha = hashlib.sha1(ECHO.source.encode(), usedforsecurity=False).hexdigest()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisNode]:
    with start_node(tmp_path_factory.mktemp("redis")) as started:
        yield started


def with_client(node: RedisNode, story: Callable[[RedisClient], Awaitable[None]]) -> None:
    async def run() -> None:
        client = RedisClient(parse_url(node.url))
        try:
            await story(client)
        finally:
            await client.close()

    asyncio.run(run())


async def echo(client: RedisClient, text: str) -> str:
    return bytes(await client.run(ECHO, [], [text])).decode()


def test_a_connection_that_redis_has_closed_is_not_used_again(node: RedisNode) -> None:
    async def story(client: RedisClient) -> None:
        assert await echo(client, "first") == "first"
        node.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        [kept] = idle(client)
        async with asyncio.timeout(10):
            while not await kept.can_read():  # noqa: ASYNC110 - there is no event for this
                await asyncio.sleep(0)
        assert await echo(client, "second") == "second"  # a script is not repeated, so a lost one would be an error

    with_client(node, story)


def test_calls_at_once_get_each_its_own_answer_and_few_connections_stay(node: RedisNode) -> None:
    async def story(client: RedisClient) -> None:
        texts = [f"text {number}" for number in range(200)]
        assert await asyncio.gather(*(echo(client, text) for text in texts)) == texts
        assert len(idle(client)) == exchange.KEPT_MAX
        assert node.command("INFO", "clients")["connected_clients"] <= connection.CONNECTIONS_MAX + 1  # that which asks

    with_client(node, story)


def test_the_answer_to_a_call_whose_caller_has_gone_is_nobody_elses(node: RedisNode) -> None:
    async def story(client: RedisClient) -> None:
        await echo(client, "begin")
        node.pause()
        try:
            calling = asyncio.create_task(echo(client, "gone"))
            while idle(client):  # noqa: ASYNC110 - there is no event for this
                await asyncio.sleep(0)
            for _ in range(5):  # until it is sent
                await asyncio.sleep(0)
            calling.cancel()
            await asyncio.wait([calling])
        finally:
            node.go_on()
        assert calling.cancelled()
        assert [await echo(client, text) for text in ("a", "b")] == ["a", "b"]

    with_client(node, story)


def test_a_long_command_is_sent_whole(node: RedisNode) -> None:
    text = "x" * 20_000_000

    async def story(client: RedisClient) -> None:
        assert await echo(client, text) == text

    with_client(node, story)


def test_a_redis_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.3)

    async def story(client: RedisClient) -> None:
        await echo(client, "begin")
        silent.pause()
        try:
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                await echo(client, "unanswered")
        finally:
            silent.go_on()
        assert await echo(client, "again") == "again"

    with start_node(tmp_path) as silent:
        with_client(silent, story)


def test_connections_to_a_primary_that_is_none_any_more_are_closed_though_they_are_kept(node: RedisNode) -> None:
    async def story(client: RedisClient) -> None:
        await echo(client, "begin")
        [kept] = idle(client)
        await client.close_connections("another")
        assert not kept.is_connected
        assert await echo(client, "again") == "again"

    with_client(node, story)


def idle(client: RedisClient) -> list[Any]:
    found = client._exchange
    return [] if found is None else found._idle
