"""A task is enqueued, delivered in order, and ends."""

import pytest
from tests.contract.world import KEEP_MS, LEASE_MS, TENANT, World, accepted, by_shard, ids

from codeq.domain.errors import InvalidRequest
from codeq.domain.ids import shard_of
from codeq.domain.requests import Claim, NewTask
from codeq.domain.task import Move, Status
from codeq.store.interface import ClaimRequest
from codeq.usecases import claim as claiming
from codeq.usecases.enqueue import Enqueued


async def test_a_task_is_enqueued_claimed_and_completed(world: World) -> None:
    queued = await world.enqueue(payload=b'{"n":1}', priority=4)
    assert (queued.status, queued.attempts, queued.deliveries, queued.lease_token) == (Status.PENDING, 0, 0, 0)
    assert queued.created_ms == world.clock.now_ms

    world.clock.pass_ms(10)
    [held] = await world.claim("work", worker="ann")
    assert (held.id, held.status, held.worker, held.lease_token) == (queued.id, Status.IN_PROGRESS, "ann", 1)
    assert (held.attempts, held.deliveries) == (0, 1)
    assert held.lease_until_ms == world.clock.now_ms + LEASE_MS

    world.clock.pass_ms(10)
    done = await world.complete(held, b'{"ok":true}')
    assert (done.task.status, done.result) == (Status.COMPLETED, b'{"ok":true}')
    assert (done.task.ended_ms, done.task.purge_ms) == (world.clock.now_ms, world.clock.now_ms + KEEP_MS)

    record = await world.get(queued)
    assert (record.task, record.body.payload, record.result) == (done.task, b'{"n":1}', b'{"ok":true}')
    assert await world.claim() == []


async def test_a_cycle_with_every_answer_forced_to_disk(synced_world: World) -> None:
    world = synced_world
    await world.enqueue_many(10)
    held = await world.claim(limit=10)
    assert len(held) == 10
    for task in held:
        assert (await world.complete(task)).task.status is Status.COMPLETED
    await world.reopen()
    assert {task.status for task in await world.find_all()} == {Status.COMPLETED}


async def test_a_claim_delivers_the_payload_byte_for_byte(world: World) -> None:
    payloads = [b'{"text": "\\u00e9\\n\xc3\xa9"}', b"null", b"[1, 2]", b'"' + b"x" * 10_000 + b'"']
    for payload in payloads:
        await world.enqueue(payload=payload)
    delivered = await claiming.claim(world.core, TENANT, Claim(worker="w", limit=10))
    assert sorted(delivery.body.payload for delivery in delivered) == sorted(payloads)


@pytest.mark.parametrize("result", [None, b"null", b"0", b'""', b"[null]"])
async def test_a_result_is_kept_byte_for_byte_and_none_differs_from_null(world: World, result: bytes | None) -> None:
    done, failed = await world.enqueue_many(2)
    for task in await world.claim(limit=2):
        if task.id == done.id:
            assert (await world.complete(task, result)).result == result
            assert (await world.complete(task, result)).result == result  # sent again: the stored one
        else:
            await world.fail(task, "no such customer", result)
    found = await world.store.get_records(TENANT, [done.id, failed.id])
    assert [record is not None and record.result for record in found] == [result, result]


async def test_a_failed_task_is_final_keeps_its_error_and_is_not_dead(world: World) -> None:
    await world.enqueue()
    ended = await world.fail(await world.claim_one(), "no such customer", b'{"code":7}')
    assert (ended.task.status, ended.task.error, ended.result) == (Status.FAILED, "no such customer", b'{"code":7}')
    assert await world.counts() == (0, 0, 0, 0)
    assert await world.claim() == []


async def test_tasks_of_one_priority_are_handed_out_first_in_first_out(world: World) -> None:
    queued = [await world.enqueue() for _ in range(20)]
    assert by_shard(await world.drain()) == by_shard(queued)


async def test_a_batch_is_handed_out_in_the_order_of_its_orders(world: World) -> None:
    queued = await world.enqueue_many(50)
    assert by_shard(await world.drain(limit=7)) == by_shard(queued)


async def test_a_higher_priority_is_handed_out_first(world: World) -> None:
    queued = [await world.enqueue(priority=priority) for priority in (0, 9, 4, 9, 0, 1, 4, 8, 0, 9, 4, 1)]
    wanted = sorted(queued, key=lambda task: -task.priority)
    assert by_shard(await world.drain()) == by_shard(wanted)


async def test_one_claim_of_many_takes_the_highest_priorities_first(world: World) -> None:
    queued = [await world.enqueue(priority=priority % 10) for priority in range(30)]
    wanted = sorted(queued, key=lambda task: -task.priority)
    taken = await world.claim(limit=30)
    assert by_shard(taken) == by_shard(wanted)


async def test_a_task_handed_out_again_goes_to_the_back_of_its_priority(world: World) -> None:
    keyed = [await world.enqueue(idempotency_key="same shard")]
    shard = shard_of(keyed[0].id)
    while len(keyed) < 3:
        task = await world.enqueue()
        if shard_of(task.id) == shard:
            keyed.append(task)
    first = next(task for task in await world.claim(limit=100) if task.id == keyed[0].id)
    for task in keyed[1:]:
        await world.abandon(await world.load(task))
    await world.abandon(first)
    order = [task.id for task in await world.drain("work") if task.id in ids(keyed)]
    assert order == [keyed[1].id, keyed[2].id, keyed[0].id]


async def test_the_highest_priority_of_several_commands_comes_first(world: World) -> None:
    low = await world.enqueue_many(6, "low", priority=1)
    high = await world.enqueue_many(6, "high", priority=5)
    taken = await world.drain("low", "high")
    assert sorted(ids(taken)) == sorted(ids(low + high))
    for shard in range(world.store.shards):
        of_shard = [task.command for task in taken if shard_of(task.id) == shard]
        assert of_shard == sorted(of_shard)  # "high" before "low"


async def test_equal_priorities_of_several_commands_are_served_in_rotation(world: World) -> None:
    for command in ("a", "b", "c"):
        await world.enqueue_many(30, command)
    taken = [(await world.claim_one("a", "b", "c")).command for _ in range(30)]
    served = [taken.count(command) for command in "abc"]
    assert max(served) - min(served) < 2 * world.store.shards  # each shard has a rotation of its own


async def test_one_claim_of_many_takes_from_each_command_in_rotation(world: World) -> None:
    for command in ("a", "b", "c"):
        await world.enqueue_many(30, command)
    taken = [task.command for task in await world.claim("a", "b", "c", limit=9)]
    assert {command: taken.count(command) for command in "abc"} == {"a": 3, "b": 3, "c": 3}


async def test_a_busy_command_does_not_starve_another(world: World) -> None:
    await world.enqueue_many(200, "busy")
    await world.enqueue_many(3, "quiet")
    taken = [(await world.claim_one()).command for _ in range(20)]
    assert taken.count("quiet") == 3


async def test_claims_of_other_commands_in_between_starve_nobody(world: World) -> None:
    for command in ("a", "b", "c", "d"):
        await world.enqueue_many(60, command)
    taken = []
    for _ in range(12):
        taken.append((await world.claim_one("a", "b")).command)
        await world.claim_one("c", "d")
    assert taken.count("a") >= 3
    assert taken.count("b") >= 3


async def test_a_claim_without_commands_covers_every_command_of_the_tenant(world: World) -> None:
    for command in ("a", "b", "c"):
        await world.enqueue(command)
        await world.enqueue(command, tenant="other")
    assert sorted(task.command for task in await world.drain()) == ["a", "b", "c"]
    assert len(await world.drain(tenant="other")) == 3


async def test_a_claim_takes_no_more_than_its_limit_and_only_its_commands(world: World) -> None:
    await world.enqueue_many(10, "a")
    await world.enqueue_many(10, "b")
    taken = await world.claim("a", limit=4)
    assert len(taken) == 4
    assert {task.command for task in taken} == {"a"}
    assert await world.claim("nothing-of-the-kind", limit=4) == []


async def test_no_task_is_handed_out_twice(world: World) -> None:
    queued = await world.enqueue_many(100)
    taken = await world.drain(limit=9)
    assert sorted(ids(taken)) == sorted(ids(queued))


async def test_an_empty_batch_does_nothing(world: World) -> None:
    assert await world.enqueue_all([]) == []
    assert await world.store.commit([]) == []
    assert await world.store.get_tasks(TENANT, []) == []
    assert await world.store.get_records(TENANT, []) == []
    order = ClaimRequest(
        tenant=TENANT, commands=[], worker="w", lease_ms=LEASE_MS, limit=5, policy_of=world.core.policy_of
    )
    assert await world.store.take(order) == []
    assert all(not events for events in (await world.events()).values())


async def test_one_bad_order_leaves_the_others_of_its_batch_alone(world: World) -> None:
    answers = await world.enqueue_all(
        [
            NewTask(command="a"),
            NewTask(command="no spaces please"),
            NewTask(command="a", priority=10),
            NewTask(command="b"),
        ]
    )
    assert [type(answer) for answer in answers] == [Enqueued, InvalidRequest, InvalidRequest, Enqueued]
    assert await world.counts("a") == (1, 0, 0, 0)
    assert await world.counts("b") == (1, 0, 0, 0)


async def test_a_higher_token_comes_with_every_delivery(world: World) -> None:
    await world.enqueue()
    tokens = []
    for _ in range(5):
        held = await world.claim_one()
        tokens.append(held.lease_token)
        await world.abandon(held)
    assert tokens == [1, 2, 3, 4, 5]


async def test_what_was_just_committed_is_visible_before_it_is_settled(world: World) -> None:
    task = await world.enqueue()
    held = await world.claim_one()
    assert (await world.load(task)).move is Move.CLAIM
    [record] = await world.store.get_records(TENANT, [task.id])
    assert record is not None
    assert record.task == held
    assert accepted(record).result is None
