"""What one queue, one damaged record or a long log on Redis must not do to the others."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from tests.contract.redis_engines import node_url, prefix_of
from tests.contract.world import DEFAULTS, TENANT, World, ids

from codeq.domain.queue import QueueKey
from codeq.domain.requests import NewTask
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import ShardKeys, id_bytes
from codeq.usecases import cancel

on_node = pytest.mark.parametrize("engine", ["redis"], indirect=True)
on_redis = pytest.mark.parametrize("engine", ["redis", "redis-cluster"], indirect=True)


def keys(world: World) -> ShardKeys:
    return ShardKeys(prefix_of(world.path), 0)


# -- the log ---------------------------------------------------------------------------------------------------------


@on_node
async def test_a_log_of_any_length_is_trimmed_at_once_and_with_few_reads(world: World, monkeypatch: Any) -> None:
    for _ in range(1_500):  # an entry each
        await world.enqueue()
    world.clock.pass_ms(60_000)
    kept = await world.enqueue_many(3)
    called: list[str] = []
    call = RedisClient.call

    async def noting(self: RedisClient, *command: Any) -> Any:
        called.append(command[0])
        return await call(self, *command)

    monkeypatch.setattr(RedisClient, "call", noting)
    assert await world.store.trim(before_ms=world.clock.now_ms, keep_max=10**9) == 1_500
    assert len(called) < 20
    assert (await world.store.events(0, 1, 10)).events == kept


@on_node
@pytest.mark.parametrize("at_once", [1, 7, 10_000])
async def test_an_entry_is_trimmed_whole_or_not_at_all(world: World, monkeypatch: Any, at_once: int) -> None:
    monkeypatch.setattr("codeq.store.redis.eventlog._TRIMMED_AT_ONCE", at_once)
    for size in (1, 5, 2, 40, 1, 1, 13):
        await world.enqueue_all([NewTask(command="work")] * size)
        world.clock.pass_ms(1_000)
    for keep in (60, 57, 56, 16, 15, 14, 13, 1, 0):
        before = (await world.store.events(0, 1, 100)).events
        trimmed = await world.store.trim(before_ms=0, keep_max=keep)
        after = await world.store.events(0, 1, 100)
        assert after.events == before[trimmed:]
        assert len(after.events) >= min(keep, len(before))
        assert after.next == 64


@on_node
async def test_a_reader_under_whom_the_log_is_trimmed_is_told_where_it_goes_on(world: World, monkeypatch: Any) -> None:
    for _ in range(20):
        await world.enqueue()
        world.clock.pass_ms(1)
    call_all: Callable[..., Any] = RedisClient.call_all

    async def trim_after(self: RedisClient, *commands: Any) -> Any:
        answers = await call_all(self, *commands)
        with redis.Redis.from_url(node_url()) as client:
            client.xtrim(keys(world).events, minid="11-0", approximate=False)
        return answers

    monkeypatch.setattr(RedisClient, "call_all", trim_after)
    found = await world.store.events(0, 3, 5)
    assert (found.start, [event.version for event in found.events]) == (11, [11, 12, 13, 14, 15])
