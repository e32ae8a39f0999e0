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


# -- claims of all commands ------------------------------------------------------------------------------------------


async def _one_task_each(world: World, commands: list[str]) -> None:
    for start in range(0, len(commands), 500):
        await world.enqueue_all([NewTask(command=command) for command in commands[start : start + 500]])


@on_redis
async def test_queues_whose_slots_are_taken_hide_no_others_from_a_claim_of_all_commands(world: World) -> None:
    commands = [f"c{number:03}" for number in range(150)]
    for command in commands:
        await world.set_policy(command, replace(DEFAULTS, max_consumers=1))
    for _ in range(3):
        await _one_task_each(world, commands)
    taken = [task for _ in range(len(commands)) for task in await world.claim()]
    assert sorted([task.command for task in taken]) == commands
    assert await world.claim() == []
    await world.complete(taken[-1])
    assert [task.command for task in await world.claim()] == [taken[-1].command]


@on_redis
async def test_paused_queues_hide_no_others_from_a_claim_of_all_commands(world: World) -> None:
    paused = [f"p{number:03}" for number in range(600)]
    for command in paused:
        await world.set_policy(command, replace(DEFAULTS, paused=True))
    await _one_task_each(world, [*paused, "a", "b", "c"])
    await world.enqueue_all([NewTask(command="a", priority=9)])
    taken = [task.command for _ in range(20) for task in await world.claim()]
    assert sorted(taken) == ["a", "a", "b", "c"]


@on_node
async def test_a_claim_of_all_commands_comes_to_every_queue_however_many_have_tasks(world: World) -> None:
    commands = [f"c{number:03}" for number in range(700)]
    for _ in range(4):
        await _one_task_each(world, commands)
    taken = {task.command for _ in range(25) for task in await world.claim(limit=64)}
    assert sorted(taken) == commands


# -- cancelled tasks -------------------------------------------------------------------------------------------------


@on_node
async def test_nothing_is_left_in_the_list_of_a_queue_whose_tasks_were_all_cancelled(world: World) -> None:
    tasks = await world.enqueue_many(50)
    pending = keys(world).queue(QueueKey(TENANT, "work")).pending[0]
    with redis.Redis.from_url(node_url()) as client:
        await cancel.cancel(world.core, TENANT, ids(tasks[1:]))
        assert client.llen(pending) == 50
        await cancel.cancel(world.core, TENANT, ids(tasks[:1]))
        assert client.llen(pending) == 0
    last = await world.enqueue()
    assert ids(await world.claim("work")) == [last.id]


@on_node
async def test_the_oldest_task_is_found_behind_any_number_of_cancelled_ones(world: World) -> None:
    *others, last = await world.enqueue_many(2_000)
    for start in range(0, len(others), 1000):
        await cancel.cancel(world.core, TENANT, ids(others[start : start + 1000]))
    counts = (await world.store.counts(TENANT, "work", ages=True))[QueueKey(TENANT, "work")]
    assert (counts.pending, counts.oldest_ms) == (1, last.created_ms)
    assert ids(await world.claim("work")) == [last.id]


# -- damaged records -------------------------------------------------------------------------------------------------


def _damage(world: World, task_id: str) -> None:
    """Changes bytes of the stored record, and not its version."""
    with redis.Redis.from_url(node_url()) as client:
        data = client.hget(keys(world).records, id_bytes(task_id))
        client.hset(keys(world).records, id_bytes(task_id), data[:4] + b"\xc1" * 8 + data[12:])


@on_node
async def test_a_damaged_record_spares_the_other_tasks_of_a_claim(world: World) -> None:
    tasks = await world.enqueue_many(5)
    _damage(world, tasks[2].id)
    claimed = await world.claim("work", limit=10, request_id="again")
    expected = [task.id for task in tasks if task is not tasks[2]]
    assert ids(claimed) == expected
    assert ids(await world.claim("work", limit=10, request_id="again")) == expected
    for task in claimed:
        await world.complete(task)
    world.clock.pass_ms(3_600_000)
    await world.sweep()
    assert await world.find_all() == []


@on_node
async def test_a_damaged_record_hides_no_queue_from_the_gauges(world: World) -> None:
    first, _ = await world.enqueue("work"), await world.enqueue("other")
    _damage(world, first.id)
    counted = await world.store.counts(TENANT, ages=True)
    assert {queue.command: counts.pending for queue, counts in counted.items()} == {"work": 1, "other": 1}


@on_node
async def test_a_damaged_event_stops_no_reader(world: World) -> None:
    tasks = await world.enqueue_many(5)
    _damage(world, tasks[2].id)
    await world.claim("work", limit=10)  # which copies the record into the event
    last = await world.enqueue()
    read, start = list[int](), 1
    while found := (await world.store.events(0, start, 4)).events:
        read += [event.version for event in found]
        start = found[-1].version + 1
    assert read == [*range(1, 8), *range(9, last.version + 1)]
    await world.reopen()


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
async def test_a_damaged_event_has_no_younger_event_trimmed_and_is_trimmed_in_the_end(world: World) -> None:
    times = []
    for _ in range(20):
        task = await world.enqueue()
        times.append(world.clock.now_ms)
        world.clock.pass_ms(1_000)
    _damage(world, task.id)
    await world.claim("work", limit=100)  # which copies the record into the last event of an entry
    for _ in range(10):
        world.clock.pass_ms(1_000)
        last = await world.enqueue()
    for time_ms in times:  # the search for the first to keep meets the damaged one in some of them
        assert await world.store.trim(before_ms=time_ms + 1, keep_max=10**9) == 1
    await world.store.trim(before_ms=world.clock.now_ms, keep_max=10**9)
    assert (await world.store.events(0, 1, 100)).events == [last]


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
