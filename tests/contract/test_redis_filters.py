"""What the filters of the Redis engine save: a change that changes nothing is answered by reads."""

from typing import Any

import pytest
import redis
from tests.contract.redis_engines import node_url
from tests.contract.world import World

from codeq.domain import lifecycle
from codeq.domain.errors import CodeqError, StoreUnavailable
from codeq.domain.requests import NewTask
from codeq.store.redis.connection import LuaScript, RedisClient
from codeq.store.redis.plan import COMMIT
from codeq.usecases.enqueue import Enqueued

pytestmark = pytest.mark.parametrize("engine", ["redis", "redis-full-filters"], indirect=True)

LARGE = NewTask(command="work", payload=b'"' + b"x" * 5000 + b'"', idempotency_key="order-1")


def writes() -> int:
    """Returns how many scripts, and writes beside them, the server has run."""
    with redis.Redis.from_url(node_url()) as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval", "hset", "hdel"))


async def enqueued(world: World) -> Enqueued:
    [answer] = await world.enqueue_all([LARGE])
    assert isinstance(answer, Enqueued)
    return answer


async def test_a_repeated_key_writes_nothing(world: World) -> None:
    first = await enqueued(world)
    before = writes()
    for _ in range(3):
        again = await enqueued(world)
        assert again.is_replay
        assert again.task.id == first.task.id
    assert writes() == before


async def test_a_key_whose_task_was_purged_makes_a_new_task(world: World) -> None:
    first = await enqueued(world)
    await world.purge(await world.cancel(first.task))
    again = await enqueued(world)
    assert not again.is_replay
    assert again.task.id != first.task.id


async def test_new_tasks_beside_repeated_ones_are_stored(world: World) -> None:
    first = await enqueued(world)
    batch = [NewTask(command="work", payload=b"1"), LARGE, NewTask(command="work", payload=b"2", idempotency_key="o-2")]
    answers = await world.enqueue_all(batch)
    assert [isinstance(answer, Enqueued) and answer.is_replay for answer in answers] == [False, True, False]
    assert not isinstance(answers[1], CodeqError)
    assert answers[1].task.id == first.task.id
    assert [answer.body.payload for answer in answers if isinstance(answer, Enqueued)] == [b"1", LARGE.payload, b"2"]


async def test_a_purge_that_another_call_was_faster_with_is_answered_by_a_read(world: World) -> None:
    cancelled = await world.cancel((await enqueued(world)).task)
    purge = lifecycle.purge(cancelled, world.clock())
    assert await world.store.commit([purge]) == [purge.after]
    before = writes()
    assert await world.store.commit([lifecycle.purge(cancelled, world.clock())]) == [None]
    assert writes() == before


async def test_a_cancel_that_another_call_was_faster_with_is_answered_by_a_read(world: World) -> None:
    task = (await enqueued(world)).task
    await world.cancel(task)
    world.clock.pass_ms(1)
    late = lifecycle.cancel(task, world.clock(), retention_ms=1000)
    before = writes()
    assert await world.store.commit([late]) == [None]
    assert writes() == before


async def test_a_cancel_whose_answer_was_lost_is_answered_as_the_first_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = (await enqueued(world)).task
    run, lost = RedisClient.run, list[object]()

    async def lose_the_first(self: RedisClient, script: LuaScript, *arguments: Any, **options: Any) -> Any:
        answer = await run(self, script, *arguments, **options)
        if script is COMMIT and not lost:
            lost.append(answer)
            raise StoreUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(RedisClient, "run", lose_the_first)
    change = lifecycle.cancel(task, world.clock(), retention_ms=1000)
    assert await world.store.commit([change]) == [change.after]
    assert lost == [[change.after.version]]
