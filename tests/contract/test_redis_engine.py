"""What the Redis engine does to save round trips and Redis's time, and what that must not change."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from tests.contract.redis_engines import node_url, prefix_of
from tests.contract.world import TENANT, World, Worlds, by_shard, ids

from codeq.domain.errors import NotOwner, PolicyChanged, StoreError, StoreUnavailable
from codeq.domain.ids import shard_of
from codeq.domain.queue import QueueKey, QueuePolicy
from codeq.domain.requests import NewTask
from codeq.domain.task import Move, Status
from codeq.store.redis import bodies
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import Channels, ShardKeys
from codeq.store.redis.plan import COMMIT
from codeq.usecases import cancel, events, policies

on_node = pytest.mark.parametrize("engine", ["redis"], indirect=True)
on_redis = pytest.mark.parametrize("engine", ["redis", "redis-cluster"], indirect=True)

LARGE = b'"' + b"x" * 5000 + b'"'


def calls(*names: str) -> int:
    """Returns how many commands of these names the server has run; for none, of all but those that say who asks."""
    with redis.Redis.from_url(node_url()) as client:
        stats = client.info("commandstats")
    called = {name.removeprefix("cmdstat_"): of["calls"] for name, of in stats.items()}
    return sum(called.get(name, 0) for name in names or called.keys() - {"client", "hello", "info"})


@on_node
async def test_claims_at_the_same_time_are_served_in_order_by_few_scripts(world: World) -> None:
    await asyncio.gather(*(world.claim("work", worker=f"w{number}") for number in range(16)))  # they are registered now
    tasks = await world.enqueue_many(40)
    await world.claim("work")  # the script is known to the server now, and the queue to the store
    before = calls("evalsha")
    claimed = await asyncio.gather(*(world.claim("work", worker=f"w{number}", limit=2) for number in range(16)))
    assert calls("evalsha") - before <= 4
    assert [task_id for part in claimed for task_id in ids(part)] == ids(tasks)[1:33]
    assert [{task.worker for task in part} for part in claimed] == [{f"w{number}"} for number in range(16)]


@on_node
async def test_the_result_null_which_most_tasks_have_takes_no_place(world: World) -> None:
    await world.enqueue_many(3)
    first, second, third = await world.claim(limit=3)
    await world.complete(first, b"null")
    await world.complete(second, b"{}")
    await world.complete(third)
    with redis.Redis.from_url(node_url()) as client:
        stored = client.hgetall(ShardKeys(prefix_of(world.path), shard_of(second.id)).results)
    assert sorted(stored.values()) == [b"", b"{}"]


@on_node
async def test_entries_that_were_read_for_a_claim_that_takes_none_are_put_back_in_order(world: World) -> None:
    tasks = await world.enqueue_many(10)
    first = await world.claim("work", worker="again", limit=2, request_id="a request")
    before = calls("lpush")
    claimed = await asyncio.gather(
        world.claim("work", worker="other", limit=3),
        world.claim("work", worker="again", limit=2, request_id="a request"),
    )
    assert calls("lpush") - before == 1  # they went in one script
    assert list(map(ids, claimed)) == [ids(tasks)[2:5], ids(first)]
    assert ids(await world.drain("work")) == ids(tasks)[5:]
    assert await world.counts() == (0, 0, 10, 0)


@on_node
async def test_claims_at_the_same_time_share_what_there_is(world: World) -> None:
    [task] = await world.enqueue_many(1)
    claimed = await asyncio.gather(*(world.claim("work", limit=3) for _ in range(5)))
    assert sorted(map(len, claimed)) == [0, 0, 0, 0, 1]
    assert await world.counts() == (0, 0, 1, 0)
    assert [task.id] == [held.id for part in claimed for held in part]


@on_node
async def test_claims_of_other_queues_and_leases_at_the_same_time_get_their_own(world: World) -> None:
    mails, works = await world.enqueue_many(4, "mail"), await world.enqueue_many(4, "work")
    await world.claim("mail")  # known to the store from now on; else looks at the queues could overtake each other
    await world.claim("work")
    claimed = await asyncio.gather(
        world.claim("mail", lease_ms=1_000),
        world.claim("work", lease_ms=2_000),
        world.claim("mail", limit=2, lease_ms=3_000),
        world.claim("work", limit=2, lease_ms=4_000),
    )
    assert list(map(ids, claimed)) == [ids(part) for part in (mails[1:2], works[1:2], mails[2:], works[2:])]
    leases = [{task.lease_until_ms - world.clock.now_ms for task in part} for part in claimed]
    assert leases == [{1_000}, {2_000}, {3_000}, {4_000}]


@on_node
async def test_a_request_id_sent_twice_at_the_same_time_leases_once(world: World) -> None:
    await world.enqueue_many(10)
    first, second = await asyncio.gather(*(world.claim("work", limit=3, request_id="r1") for _ in range(2)))
    assert ids(first) == ids(second)
    assert await world.counts() == (7, 0, 3, 0)


@on_redis
async def test_a_result_needs_no_read_of_the_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    task = await world.enqueue()
    held = await world.claim_one("work")
    read: list[Any] = []
    call = RedisClient.call

    async def noting(self: RedisClient, *command: Any) -> Any:
        read.append(command)
        return await call(self, *command)

    monkeypatch.setattr(RedisClient, "call", noting)
    await world.complete(held)
    assert "HMGET" not in [command[0] for command in read]
    assert (await world.load(task)).status is Status.COMPLETED


@on_redis
async def test_a_task_that_another_process_took_over_is_not_judged_by_memory(worlds: Worlds) -> None:
    here, there = worlds.open(), worlds.open()
    await here.enqueue()
    old = await here.claim_one("work", worker="one", lease_ms=1_000)
    worlds.clock.pass_ms(2_000)
    await there.sweep()
    worlds.clock.pass_ms(10_000)
    new = await there.claim_one("work", worker="two")
    with pytest.raises(NotOwner):
        await here.complete(old)
    assert (await here.complete(new)).task.status is Status.COMPLETED
    assert (await here.complete(new)).task.status is Status.COMPLETED  # a repeat, answered as the first time


@on_redis
async def test_a_task_with_a_longer_lease_elsewhere_is_ended_here(worlds: Worlds) -> None:
    here, there = worlds.open(), worlds.open()
    await here.enqueue()
    held = await here.claim_one("work", lease_ms=1_000)
    await there.heartbeat(held, 60_000)
    worlds.clock.pass_ms(5_000)
    assert (await here.nack(held, delay_ms=0)).status is Status.PENDING


@on_node
async def test_a_claim_behind_thousands_of_cancelled_tasks_costs_little(world: World) -> None:
    first, *others, last = await world.enqueue_many(5_000)
    for start in range(0, len(others), 1000):
        await cancel.cancel(world.core, TENANT, ids(others[start : start + 1000]))
    assert ids(await world.claim("work")) == [first.id]
    before = calls()
    assert ids(await world.claim("work")) == [last.id]
    assert calls() - before < 120


@on_node
@pytest.mark.parametrize("seed", range(5))
async def test_whatever_is_cancelled_the_others_are_delivered_once_and_in_order(world: World, seed: int) -> None:
    dice = random.Random(seed)
    kept: list[str] = []
    for _ in range(3):
        tasks = [task for priority in (2, 5) for task in await world.enqueue_many(150, priority=priority)]
        cancelled = {
            task.id for start in range(0, 300, 10) if dice.random() < 0.6 for task in tasks[start : start + 10]
        }
        cancelled |= {task.id for task in tasks if dice.random() < 0.3}
        await cancel.cancel(world.core, TENANT, dice.sample(sorted(cancelled), len(cancelled)))
        high = [task.id for task in tasks if task.priority == 5 and task.id not in cancelled]
        low = [task.id for task in tasks if task.priority == 2 and task.id not in cancelled]
        expected, kept = (high + kept + low)[: len(high) + 40], (high + kept + low)[len(high) + 40 :]
        delivered: list[str] = []
        while len(delivered) < len(expected):
            limit = min(dice.choice([1, 7, 64]), len(expected) - len(delivered))
            taken = ids(await world.claim("work", limit=limit))
            assert taken, "a task was lost with the cancelled ones"
            delivered += taken
        assert delivered == expected
    assert ids(await world.drain("work", limit=100)) == kept


@on_node
async def test_nothing_is_left_of_a_cancelled_task_once_it_is_purged(world: World) -> None:
    cancelled = [await world.cancel(task) for task in await world.enqueue_many(3)]
    key = ShardKeys(prefix_of(world.path), 0).queue(QueueKey(TENANT, "work")).withdrawn
    with redis.Redis.from_url(node_url()) as client:
        assert client.zcard(key) == 3
        for task in cancelled:
            await world.purge(task)
        assert client.zcard(key) == 0


@on_redis
async def test_a_body_whose_script_never_ran_is_deleted_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = await world.enqueue(payload=LARGE)
    run = RedisClient.run

    async def lose(self: RedisClient, script: Any, *arguments: Any, before: Any = ()) -> Any:
        if script is not COMMIT:
            return await run(self, script, *arguments, before=before)
        for command in before:
            await self.client.execute_command(*command)
        raise StoreUnavailable("cut off between the body and the script")

    with monkeypatch.context() as patch:
        patch.setattr(RedisClient, "run", lose)
        patch.setattr("codeq.store.redis.shard.PAUSES_S", ())
        with pytest.raises(StoreUnavailable):
            await world.enqueue(payload=LARGE)
    shards = [getattr(world.store, "_shards", [world.store])[number] for number in range(world.store.shards)]

    async def stored_bodies() -> int:
        return sum([await shard._connection.call("HLEN", shard._keys.bodies) for shard in shards])

    await world.store.trim(before_ms=0, keep_max=10_000)
    assert await stored_bodies() == 2  # its script may still be on its way
    world.clock.pass_ms(bodies.SCRIPT_MS_MAX + 1)
    await world.store.trim(before_ms=0, keep_max=10_000)
    assert await stored_bodies() == 1
    assert (await world.get(kept)).body.payload == LARGE
    assert by_shard([kept]) == by_shard(await world.find_all())


@on_redis
async def test_a_change_that_comes_twice_in_one_commit_is_applied_once(world: World) -> None:
    task = await world.enqueue()
    await world.enqueue_all([NewTask(command="work")])
    answers = await cancel.cancel(world.core, TENANT, [task.id, task.id])
    assert [type(answer).__name__ for answer in answers] == ["Task", "AlreadyFinal"]


@on_redis
async def test_policies_that_were_read_before_a_change_do_not_undo_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers on several connections may arrive in another order than Redis gave them."""
    queue = QueueKey(TENANT, "work")
    is_read, may_arrive = asyncio.Event(), asyncio.Event()
    call = RedisClient.call

    async def late(client: RedisClient, *command: Any, **options: Any) -> Any:
        answer = await call(client, *command, **options)
        if command[0] == "HGETALL":
            is_read.set()
            await may_arrive.wait()
        return answer

    monkeypatch.setattr(RedisClient, "call", late)
    await policies.put_policy(world.core, queue, QueuePolicy(max_attempts=2))
    await world.store.peers.is_sweeper(0)  # starts its looks
    await asyncio.wait_for(is_read.wait(), 10)  # the look of the peers, once a second
    await policies.delete_policy(world.core, queue)
    may_arrive.set()
    for _ in range(20):
        await asyncio.sleep(0)
        assert world.store.policies().get(queue) is None


@on_redis
async def test_a_policy_that_another_server_has_deleted_is_deleted(
    worlds: Worlds,
) -> None:
    queue = QueueKey(TENANT, "work")
    here, there = worlds.open(), worlds.open()
    await policies.put_policy(here.core, queue, QueuePolicy(max_attempts=2))
    with pytest.raises(PolicyChanged):  # which makes it known there
        await policies.put_policy(there.core, queue, QueuePolicy(max_attempts=3))
    await policies.delete_policy(here.core, queue)
    assert there.store.policies()[queue].max_attempts == 2
    await policies.delete_policy(there.core, queue)
    assert there.store.policies().get(queue) is None


@on_redis
async def test_a_call_that_waits_here_is_woken_by_a_move_there(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codeq.store.redis.peers.LOOK_AGAIN_S", 3600)  # so that only the signal can wake it
    here, there = worlds.open(), worlds.open()
    task = await here.enqueue()
    held, shard = await there.claim_one("work"), shard_of(task.id)
    seen = len((await here.events())[shard])
    result = asyncio.create_task(here.get(task, wait_ms=20_000))
    log = asyncio.create_task(events.read(here.core, shard, seen + 1, 10, wait_ms=20_000))
    await until(lambda: here.store.peers._subscribed)  # type: ignore[attr-defined]
    await there.complete(held, b'"done"')
    assert (await asyncio.wait_for(result, 10)).result == b'"done"'
    assert [event.move for event in (await asyncio.wait_for(log, 10)).events] == [Move.COMPLETE]


@on_node
async def test_a_key_that_redis_has_evicted_is_told_in_words(world: World) -> None:
    await world.enqueue()
    with redis.Redis.from_url(node_url()) as client:
        client.delete(ShardKeys(prefix_of(world.path), 0).number)
    with pytest.raises(StoreError, match=r"keys were deleted there.*noeviction"):
        await world.enqueue()


@on_node
async def test_no_signal_of_moves_is_sent_to_a_process_in_which_nobody_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codeq.store.redis.peers.LINGER_S", 0.0)
    monkeypatch.setattr("codeq.store.redis.peers.LOOK_AGAIN_S", 0.05)
    channel = Channels(prefix_of(world.path)).moved

    def listeners() -> int:
        with redis.Redis.from_url(node_url()) as client:
            return int(client.pubsub_numsub(channel)[0][1])

    task = await world.enqueue()
    assert listeners() == 0
    waiting = asyncio.create_task(world.get(task, wait_ms=20_000))
    await until(lambda: listeners() == 1)
    await world.cancel(task)
    await asyncio.wait_for(waiting, 10)
    await until(lambda: listeners() == 0)


@on_node
async def test_the_counts_of_all_queues_and_those_of_one_command_take_few_round_trips(world: World) -> None:
    for tenant in ("acme", "other"):
        await world.enqueue_all([NewTask(command=f"c{number}") for number in range(300)], tenant=tenant)
    before = calls()
    found = {queue: counts async for part in world.store.all_counts() for queue, counts in part.items()}
    assert calls() - before < 15
    assert found == await world.store.counts(None)
    assert len(found) == 600
    before = calls()
    named = {queue async for part in world.store.all_counts("c7") for queue in part}
    assert calls() - before < 6
    assert named == {QueueKey("acme", "c7"), QueueKey("other", "c7")}


@on_node
async def test_the_oldest_tasks_of_queues_that_are_asked_for_together_take_one_round_trip(world: World) -> None:
    """A scrape asks for sixteen at a time, of a thousand queues: two round trips for each were half of its CPU time."""
    await world.enqueue_all([NewTask(command=f"c{number}", priority=number % 10) for number in range(16)])
    await world.cancel(await world.enqueue("c16"))
    await world.claim("c3")
    await world.store.counts(TENANT, "c0", ages=True)  # the script is known to the server now
    before = calls("evalsha", "eval")
    looked = [world.store.counts(TENANT, f"c{number}", ages=True) for number in range(17)]
    found = {queue: counts for part in await asyncio.gather(*looked) for queue, counts in part.items()}
    assert calls("evalsha", "eval") - before <= 3
    plain = await world.store.counts(TENANT)
    assert {queue: replace(counts, oldest_ms=None) for queue, counts in found.items()} == plain
    assert [counts.oldest_ms is None for counts in found.values()] == [number == 3 for number in range(16)]


async def until(is_so: Callable[[], Any]) -> None:
    """Returns when it is so; fails after ten seconds."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - there is no event for this
            await asyncio.sleep(0.01)
