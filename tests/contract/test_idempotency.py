"""One key, one task, per tenant; checked in the same step that stores the task."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.contract.engines import on_every_engine
from tests.contract.world import KEEP_MS, TENANT, World, accepted

from codeq.domain.errors import IdempotencyMismatch, InvalidRequest
from codeq.domain.requests import NewTask
from codeq.domain.task import Status
from codeq.usecases.enqueue import Enqueued, enqueue

pytestmark = on_every_engine


def new_task(key: str = "k", *, command: str = "work", payload: bytes = b"null") -> NewTask:
    return NewTask(command=command, payload=payload, idempotency_key=key)


async def put(world: World, wanted: NewTask, tenant: str = TENANT) -> Enqueued:
    [answer] = await world.enqueue_all([wanted], tenant=tenant)
    return accepted(answer)


async def test_the_same_key_and_body_answer_the_first_task(world: World) -> None:
    first = await put(world, new_task(payload=b"1"))
    again = await put(world, new_task(payload=b"1"))
    assert (first.is_replay, again.is_replay) == (False, True)
    assert again.task == first.task
    assert await world.counts() == (1, 0, 0, 0)


async def test_the_same_key_of_two_tenants_makes_two_tasks(world: World) -> None:
    mine = await put(world, new_task())
    theirs = await put(world, new_task(), tenant="other")
    assert mine.task.id != theirs.task.id
    assert not theirs.is_replay
    assert await world.counts(tenant="other") == (1, 0, 0, 0)
    for tenant, first in ((TENANT, mine), ("other", theirs)):
        again = await put(world, new_task(), tenant=tenant)
        assert (again.task.id, again.is_replay) == (first.task.id, True)
    await world.cancel(theirs.task)
    await world.purge(theirs.task)
    assert (await put(world, new_task())).is_replay


@pytest.mark.parametrize("different", [{"payload": b"2"}, {"command": "play"}])
async def test_the_same_key_for_another_task_answers_the_first_or_is_refused_if_strict(
    world: World, different: dict[str, Any]
) -> None:
    """(13.24)"""
    first = await put(world, new_task(payload=b"1"))
    wanted = new_task("k", **({"payload": b"1"} | different))
    again = await put(world, wanted)
    assert (again.task, again.is_replay, again.is_mismatch) == (first.task, True, True)
    [refusal] = await enqueue(replace(world.core, strict_idempotency=True), TENANT, [wanted])
    assert isinstance(refusal, IdempotencyMismatch)
    assert first.task.id in str(refusal)
    assert await world.counts() == (1, 0, 0, 0)
    assert await world.counts("play") == (0, 0, 0, 0)


async def test_a_key_twice_in_one_batch_makes_one_task(world: World) -> None:
    answers = await world.enqueue_all(
        [new_task("a"), new_task("b"), new_task("a"), new_task("a", payload=b"2"), new_task("b")]
    )
    tasks = [accepted(answer) for answer in answers if isinstance(answer, Enqueued)]
    assert [answer.is_replay for answer in tasks] == [False, False, True, True, True]
    assert [answer.is_mismatch for answer in tasks] == [False, False, False, True, False]
    assert tasks[2].task.id == tasks[3].task.id == tasks[0].task.id
    assert tasks[4].task.id == tasks[1].task.id
    assert await world.counts() == (2, 0, 0, 0)


@pytest.mark.parametrize("fsync", [False, True])
async def test_fifty_calls_at_once_with_one_key_make_one_task(
    world: World, synced_world: World, *, fsync: bool
) -> None:
    busy = synced_world if fsync else world
    answers = await asyncio.gather(*(put(busy, new_task()) for _ in range(50)))
    assert len({answer.task.id for answer in answers}) == 1
    assert sum(not answer.is_replay for answer in answers) == 1
    assert await busy.counts() == (1, 0, 0, 0)


async def test_a_replay_answers_the_task_as_it_stands(world: World) -> None:
    await put(world, new_task())
    await world.complete(await world.claim_one(), b"7")
    again = await put(world, new_task())
    assert again.is_replay
    assert again.task.status is Status.COMPLETED
    assert await world.claim() == []


async def test_a_key_is_free_again_after_its_task_was_purged(world: World) -> None:
    first = await put(world, new_task())
    await world.cancel(first.task)
    await world.purge(first.task)
    second = await put(world, new_task(payload=b"another"))
    assert not second.is_replay
    assert second.task.id != first.task.id


async def test_a_key_lasts_as_long_as_its_task(world: World) -> None:
    await put(world, new_task())
    await world.complete(await world.claim_one())
    world.clock.pass_ms(KEEP_MS - 1)
    await world.sweep()
    assert (await put(world, new_task())).is_replay
    world.clock.pass_ms(1)
    await world.sweep()
    assert not (await put(world, new_task())).is_replay


async def test_a_key_of_a_task_that_never_ends_is_never_free(world: World) -> None:
    await put(world, new_task())
    world.clock.pass_ms(100 * KEEP_MS)
    await world.sweep()
    assert (await put(world, new_task())).is_replay


async def test_keys_survive_reopening(world: World) -> None:
    first = await put(world, new_task())
    await world.reopen()
    again = await put(world, new_task())
    assert again.is_replay
    assert again.task == first.task


async def test_keys_that_look_alike_are_different(world: World) -> None:
    keys = ["k", "K", "k ", "k/", "kk", "é", "\u00e9\u0301", "a:b", "a", "b"]
    tasks = {(await put(world, new_task(key))).task.id for key in keys}
    assert len(tasks) == len(keys)
    for key in keys:
        assert (await put(world, new_task(key))).is_replay


async def test_the_replays_of_a_batch_are_bounded_in_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small request could ask for a thousand stored payloads of a megabyte each."""
    monkeypatch.setattr("codeq.usecases.enqueue.BATCH_BYTES_MAX", 2_000)
    payload = b'"' + b"x" * 998 + b'"'
    first = await world.enqueue_all(
        [NewTask(command="work", payload=payload, idempotency_key=f"k{i}") for i in range(5)]
    )
    again = await world.enqueue_all([NewTask(command="work", idempotency_key=f"k{i}") for i in range(5)])
    replays = [answer for answer in again if isinstance(answer, Enqueued)]
    assert [answer.task.id for answer in replays] == [accepted(answer).task.id for answer in first[:2]]
    assert [type(answer) for answer in again[2:]] == [InvalidRequest] * 3
