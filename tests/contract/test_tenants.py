"""Another tenant's task does not exist, for any verb."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.contract.world import TENANT, World, ids

from codeq.domain.errors import CodeqError, NotFound
from codeq.domain.queue import QueueKey
from codeq.domain.requests import Filter
from codeq.domain.task import Status, Task
from codeq.usecases import cancel, purge, replay

Verb = Callable[[World, Task], Awaitable[object]]

VERBS: dict[str, Verb] = {
    "get": lambda world, task: world.get(task),
    "history": lambda world, task: world.history(task),
    "heartbeat": lambda world, task: world.heartbeat(task),
    "nack": lambda world, task: world.nack(task),
    "abandon": lambda world, task: world.abandon(task),
    "complete": lambda world, task: world.complete(task),
    "fail": lambda world, task: world.fail(task),
    "cancel": lambda world, task: world.cancel(task),
    "replay": lambda world, task: world.replay(task),
    "purge": lambda world, task: world.purge(task),
}


async def held_one(world: World) -> Task:
    await world.enqueue()
    return await world.claim_one()


async def pending_one(world: World) -> Task:
    return await world.enqueue()


async def delayed_one(world: World) -> Task:
    return await world.enqueue(delay_ms=1_000)


async def dead_one(world: World) -> Task:
    return await world.dead()


async def completed_one(world: World) -> Task:
    return (await world.complete(await held_one(world))).task


@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("make", [pending_one, delayed_one, held_one, dead_one, completed_one])
async def test_a_task_of_another_tenant_is_not_found(
    world: World, verb: str, make: Callable[[World], Awaitable[Task]]
) -> None:
    task = await make(world)
    before, counts = await world.load(task), await world.counts()
    stolen = msgspec.structs.replace(task, tenant="other")
    with pytest.raises(NotFound):
        await VERBS[verb](world, stolen)
    assert await world.load(task) == before
    assert await world.counts() == counts


@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("bad", ["", "x", "../../etc", "018bcfe5-6800-7001-8179-a22a86570000", "f" * 36, "é" * 40])
async def test_an_unknown_id_is_not_found(world: World, verb: str, bad: str) -> None:
    with pytest.raises(NotFound):
        await VERBS[verb](world, msgspec.structs.replace(await world.enqueue(), id=bad))


async def test_an_id_of_a_shard_that_does_not_exist_is_not_found(world: World) -> None:
    task = await world.enqueue()
    strange = msgspec.structs.replace(task, id=task.id[:-4] + "0fff")
    for verb in VERBS.values():
        with pytest.raises(NotFound):
            await verb(world, strange)


async def test_load_and_read_answer_nothing_for_another_tenant(world: World) -> None:
    task = await held_one(world)
    assert await world.store.get_tasks("other", [task.id]) == [None]
    assert await world.store.get_records("other", [task.id]) == [None]


async def test_a_batch_with_foreign_ids_moves_only_its_own(world: World) -> None:
    mine = await world.enqueue()
    theirs = await world.enqueue(tenant="other")
    answers = await cancel.cancel(world.core, TENANT, [theirs.id, mine.id, "nonsense"])
    assert [isinstance(answer, CodeqError) for answer in answers] == [True, False, True]
    assert (await world.load(theirs)).status is Status.PENDING
    assert (await world.load(mine)).status is Status.CANCELLED


async def test_listings_and_counts_show_the_tenant_only_its_own(world: World) -> None:
    mine = await world.enqueue_many(5)
    theirs = await world.enqueue_many(3, tenant="other")
    assert sorted(ids(await world.find_all())) == sorted(ids(mine))
    assert sorted(ids(await world.find_all(tenant="other"))) == sorted(ids(theirs))
    assert list(await world.store.counts(TENANT)) == [QueueKey(TENANT, "work")]
    assert set(await world.store.counts(None)) == {QueueKey(TENANT, "work"), QueueKey("other", "work")}
    assert await world.store.counts("nobody") == {}


async def test_a_claim_never_crosses_tenants_even_with_names_that_begin_alike(world: World) -> None:
    for tenant, command in (("a", "bc"), ("ab", "c"), ("a", "b"), ("abc", "abc"), ("a-", "b")):
        await world.enqueue(command, tenant=tenant)
    assert [(task.tenant, task.command) for task in await world.drain(tenant="ab")] == [("ab", "c")]
    assert sorted(task.command for task in await world.drain(tenant="a")) == ["b", "bc"]
    assert await world.claim("b", tenant="ab") == []


async def test_replay_and_purge_of_all_dead_tasks_stay_inside_the_tenant(world: World) -> None:
    dead = await world.dead()
    for sweep in (replay.replay, purge.purge):
        swept = await sweep(world.core, "other", Filter(), limit=100)
        assert (swept.matched, swept.changed) == (0, 0)
    assert (await world.load(dead)).is_dead


async def test_a_policy_of_one_tenant_leaves_the_other_alone(world: World) -> None:
    await world.set_policy("work", msgspec.structs.replace(world.defaults, paused=True))
    await world.enqueue()
    await world.enqueue(tenant="other")
    assert await world.claim() == []
    assert len(await world.claim(tenant="other")) == 1
