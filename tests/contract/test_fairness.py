"""A claim is served by its own queues, whatever others have waiting, and in order of priority over all shards."""

import dataclasses

from msgspec.structs import replace
from tests.contract.world import DEFAULTS, TENANT, World, ids

from codeq.domain.ids import shard_of
from codeq.domain.queue import Index, OnExpiry, QueueKey
from codeq.domain.requests import NewTask
from codeq.store.interface import Scope
from codeq.usecases import sweep
from codeq.usecases.core import Sweeping

OTHER = "other"


async def test_due_tasks_of_another_tenant_do_not_come_first(world: World) -> None:
    """(13.7) Without a sweeper, a claim promotes the tasks of its own commands."""
    for _ in range(3):
        await world.enqueue_all([NewTask(command="mail", delay_ms=1_000) for _ in range(200)], tenant=OTHER)
    mine = await world.enqueue(command="mail", delay_ms=1_500)
    world.clock.now_ms += 2_000
    assert ids(await world.claim("mail")) == [mine.id]


async def test_expired_leases_of_another_tenant_do_not_come_first(world: World) -> None:
    """(13.7) As above, for leases."""
    for _ in range(3):
        await world.enqueue_all([NewTask(command="mail") for _ in range(200)], tenant=OTHER)
        await world.claim("mail", limit=200, tenant=OTHER, lease_ms=1_000)
    await world.set_policy("mail", replace(DEFAULTS, on_expiry=OnExpiry.IMMEDIATE))
    mine = await world.enqueue(command="mail")
    await world.claim("mail", lease_ms=1_500)
    world.clock.now_ms += 2_000
    assert ids(await world.claim("mail")) == [mine.id]


async def test_a_claim_promotes_as_many_due_tasks_as_it_is_set_to(world: World) -> None:
    """(13.7)"""
    await world.enqueue_all([NewTask(command="work", delay_ms=1_000) for _ in range(100)])
    world.clock.now_ms += 2_000
    for limit, pending in ((3, 3), (40, 43), (200, 100)):  # the second is more than is promoted in one piece
        core = dataclasses.replace(world.core, sweeping=Sweeping(inspect_limit=limit))
        await sweep.before_claim(core, TENANT, ["work"])
        assert await world.counts() == (pending, 100 - pending, 0, 0)


async def test_a_claim_of_all_commands_promotes_those_of_its_tenant(world: World) -> None:
    for _ in range(3):
        await world.enqueue_all([NewTask(command="mail", delay_ms=1_000) for _ in range(200)], tenant=OTHER)
    mine = await world.enqueue(command="print", delay_ms=1_500)
    world.clock.now_ms += 2_000
    assert ids(await world.claim()) == [mine.id]


async def test_the_sweeper_serves_queues_in_turn(world: World) -> None:
    """A backlog of one tenant does not delay what is due for another."""
    await world.enqueue_all([NewTask(command="mail", delay_ms=1_000) for _ in range(900)], tenant=OTHER)
    mine = await world.enqueue(command="mail", delay_ms=1_500)
    world.clock.now_ms += 2_000
    await sweep.promote_due(world.core, 200, Scope(shard=shard_of(mine.id)))
    assert (await world.store.counts(TENANT))[QueueKey(TENANT, "mail")].pending == 1


async def test_the_highest_priority_of_all_shards_is_first(world: World) -> None:
    """(13.8)"""
    for priority in (0, 9, 0, 9, 5):
        await world.enqueue_all([NewTask(command="mail", priority=priority) for _ in range(12)])
    claimed = [task for _ in range(60) for task in await world.claim("mail")]
    assert [task.priority for task in claimed] == [9] * 24 + [5] * 12 + [0] * 24
    for shard in range(world.store.shards):
        for priority in (9, 5, 0):
            line = [task.version for task in claimed if shard_of(task.id) == shard and task.priority == priority]
            assert line == sorted(line)  # claims are numbered in their order, and the tasks came in that order


async def test_a_claim_of_all_commands_serves_the_queues_in_rotation(world: World) -> None:
    """(13.16) And it does not look at queues that have nothing for it."""
    commands = [f"c{i}" for i in range(7)]
    for command in commands:
        await world.enqueue_all([NewTask(command=command) for _ in range(3 * world.store.shards)])
    served = [task.command for _ in range(7) for task in await world.claim()]
    if world.store.shards == 1:
        assert sorted(served) == commands


async def test_a_queue_that_was_emptied_and_filled_again_is_swept_once(world: World) -> None:
    """The queue that was removed while its turn was due must not return the tasks of its successor."""
    for _ in range(200):
        await world.enqueue(delay_ms=1_000, tenant=OTHER)
    first = await world.enqueue(delay_ms=1_000)
    world.clock.now_ms += 2_000
    scope = Scope(shard=shard_of(first.id))
    assert await sweep.promote_due(world.core, 1, scope)
    await world.core.store.flush()
    await world.cancel(first)
    await world.purge(await world.load(first))
    second = await world.enqueue(delay_ms=0)
    await world.cancel(second)
    again = await world.enqueue(delay_ms=1_000)
    world.clock.now_ms += 2_000
    due = await world.store.due(Index.DELAYED, world.clock.now_ms, 1000)
    assert [task.id for task in due].count(again.id) == 1
