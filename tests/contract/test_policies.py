"""A queue's policy takes effect at once, is stored, and applies to all shards together."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.contract.world import LEASE_MS, TENANT, World

from codeq.domain.backoff import Backoff, BackoffKind, PartialBackoff
from codeq.domain.errors import PolicyChanged
from codeq.domain.queue import EffectivePolicy, OnExpiry, QueueKey, QueuePolicy
from codeq.usecases import policies

WAIT_MS = 20_000
"""Longer than any test takes: a waiter that is not woken fails the test by its timeout."""

FULL = QueuePolicy(
    max_attempts=7,
    max_deliveries=8,
    lease_ms=9_000,
    backoff=Backoff(BackoffKind.LINEAR, 10, 11),
    on_expiry=OnExpiry.IMMEDIATE,
    retention_ms=12_000,
    dead_retention_ms=13_000,
    max_consumers=14,
    paused=True,
)


async def test_a_policy_that_another_call_has_replaced_is_not_overwritten(world: World) -> None:
    queue = QueueKey(TENANT, "a")
    first, second = FULL, msgspec.structs.replace(FULL, max_attempts=2)
    assert await world.store.set_policy(queue, first, replacing=None)
    assert not await world.store.set_policy(queue, second, replacing=None)
    assert not await world.store.set_policy(queue, None, replacing=second)
    assert world.store.policies()[queue] == first
    assert await world.store.set_policy(queue, second, replacing=first)
    assert world.store.policies()[queue] == second


async def test_a_policy_is_stored_and_survives_reopening(world: World) -> None:
    queues = [QueueKey(TENANT, "a"), QueueKey(TENANT, "b"), QueueKey("other", "a")]
    for number, queue in enumerate(queues):
        await world.store.set_policy(queue, msgspec.structs.replace(FULL, max_attempts=number + 1), replacing=None)
    await world.store.flush()
    before = dict(world.store.policies())
    assert list(before) == queues
    await world.reopen()
    assert dict(world.store.policies()) == before


async def test_a_policy_can_be_forgotten(world: World) -> None:
    await world.set_policy("work", FULL)
    await world.set_policy("work", None)
    assert dict(world.store.policies()) == {}
    await world.set_policy("never-had-one", None)
    await world.reopen()
    assert dict(world.store.policies()) == {}


async def test_rules_that_were_not_set_follow_the_defaults_of_the_next_start(world: World) -> None:
    """(13.26) Also those of a queue that was paused and resumed meanwhile."""
    await world.set_policy("work", QueuePolicy(max_attempts=9, backoff=PartialBackoff(max_ms=7)))
    for command in ("work", "paused-once"):
        for paused in (True, False):
            await policies.set_paused(world.core, QueueKey(TENANT, command), paused=paused)
    before = dict(world.store.policies())
    world.defaults = QueuePolicy(max_attempts=4, lease_ms=1_234, backoff=Backoff(BackoffKind.LINEAR, 5, 6))
    await world.reopen()
    assert dict(world.store.policies()) == before
    filled = world.core.policy(TENANT, "work")
    assert filled == EffectivePolicy(max_attempts=9, lease_ms=1_234, backoff=Backoff(BackoffKind.LINEAR, 5, 7))
    assert world.core.policy(TENANT, "paused-once") == world.core.defaults == world.core.policy(TENANT, "without")
    assert (await world.enqueue()).max_attempts == 9
    held = await world.claim_one()
    assert held.lease_until_ms == world.clock.now_ms + 1_234
    assert (await world.enqueue("paused-once")).max_attempts == 4


async def test_every_change_of_a_policy_is_a_version(world: World) -> None:
    """(13.26)"""
    queue = QueueKey(TENANT, "work")

    async def stored(policy: QueuePolicy, if_match: str | None = None) -> tuple[int, int, int]:
        world.clock.pass_ms(1)
        made, _ = await policies.put_policy(world.core, queue, policy, if_match=if_match)
        assert world.store.policies()[queue] == made
        return made.version, made.created_ms - start_ms, made.updated_ms - start_ms

    start_ms = world.clock.now_ms
    assert await stored(QueuePolicy(max_attempts=2, version=77), "0") == (1, 1, 1)
    assert await stored(QueuePolicy(max_attempts=2)) == (1, 1, 1)
    assert await stored(QueuePolicy(max_attempts=2, lease_ms=200)) == (2, 1, 3)
    await policies.set_paused(world.core, queue, paused=True)
    await policies.set_paused(world.core, queue, paused=True)
    assert world.store.policies()[queue].version == 3
    with pytest.raises(PolicyChanged, match="version 3"):
        await stored(QueuePolicy(max_attempts=8), "2")
    assert await stored(FULL, "3") == (4, 1, 5)
    with pytest.raises(PolicyChanged):
        await policies.delete_policy(world.core, queue, if_match="3")
    await policies.delete_policy(world.core, queue, if_match="4")
    assert world.core.policy(*queue) == world.core.defaults


async def test_a_pause_is_not_refused_because_another_server_changes_the_policy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(13.26)"""
    queue, kind = QueueKey(TENANT, "work"), type(world.store)
    set_policy = kind.set_policy

    async def beaten(store: Any, queue: QueueKey, policy: QueuePolicy, *, replacing: QueuePolicy | None) -> bool:
        monkeypatch.undo()
        await set_policy(store, queue, QueuePolicy(max_attempts=9, version=1), replacing=replacing)
        return False

    monkeypatch.setattr(kind, "set_policy", beaten)
    await policies.set_paused(world.core, queue, paused=True)
    assert world.core.policy(*queue).paused
    assert world.core.policy(*queue).max_attempts == 9


async def test_a_policy_that_was_deleted_and_made_again_is_another_one(world: World) -> None:
    """(13.26) Its version is the same, its etag is not."""
    queue = QueueKey(TENANT, "work")
    first, _ = await policies.put_policy(world.core, queue, QueuePolicy(max_attempts=2))
    await policies.delete_policy(world.core, queue, if_match=first.etag)
    world.clock.pass_ms(1)
    again, _ = await policies.put_policy(world.core, queue, QueuePolicy(max_attempts=3))
    assert (again.version, first.version) == (1, 1)
    with pytest.raises(PolicyChanged):
        await policies.put_policy(world.core, queue, QueuePolicy(max_attempts=4), if_match=first.etag)
    await policies.put_policy(world.core, queue, QueuePolicy(max_attempts=4), if_match=again.etag)


async def test_new_tasks_and_claims_follow_the_policy_of_their_queue(world: World) -> None:
    await world.set_policy("work", msgspec.structs.replace(world.defaults, max_attempts=9, lease_ms=1_234))
    task = await world.enqueue()
    assert task.max_attempts == 9
    assert (await world.enqueue(max_attempts=2)).max_attempts == 2
    held = await world.claim_one()
    assert held.lease_until_ms == world.clock.now_ms + 1_234
    assert (await world.heartbeat(held)).lease_until_ms == world.clock.now_ms + 1_234


async def test_a_paused_queue_takes_tasks_and_hands_out_none(world: World) -> None:
    await world.set_policy("work", msgspec.structs.replace(world.defaults, paused=True))
    await world.enqueue_many(3)
    await world.enqueue("other")
    assert await world.claim("work") == []
    assert [task.command for task in await world.drain()] == ["other"]
    assert await world.counts() == (3, 0, 0, 0)
    await world.reopen()
    assert await world.claim("work") == []
    await world.set_policy("work", None)
    assert len(await world.claim("work", limit=5)) == 3


async def test_a_running_task_of_a_paused_queue_can_be_finished(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    await world.set_policy("work", msgspec.structs.replace(world.defaults, paused=True))
    await world.heartbeat(held)
    await world.complete(held)


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_no_more_than_max_consumers_are_in_progress_over_all_shards(world: World, limit: int) -> None:
    await world.set_policy("work", msgspec.structs.replace(world.defaults, max_consumers=limit))
    await world.enqueue_many(30)
    held = await world.claim("work", limit=30)
    assert len(held) == limit
    assert await world.claim("work") == []
    await world.complete(held[0])
    assert len(await world.claim("work", limit=30)) == 1
    assert await world.counts() == (29 - limit, 0, limit, 0)


async def test_max_consumers_of_one_queue_leave_the_others_alone(world: World) -> None:
    await world.set_policy("few", msgspec.structs.replace(world.defaults, max_consumers=2))
    await world.enqueue_many(9, "few", priority=9)
    await world.enqueue_many(9, "many")
    taken = [task.command for task in await world.claim("few", "many", limit=9)]
    assert (taken.count("few"), taken.count("many")) == (2, 7)


async def test_max_consumers_count_what_was_in_progress_before_reopening(world: World) -> None:
    await world.set_policy("work", msgspec.structs.replace(world.defaults, max_consumers=3))
    await world.enqueue_many(9)
    await world.claim("work", limit=2)
    await world.reopen()
    assert len(await world.claim("work", limit=9)) == 1


async def test_a_waiter_is_woken_when_its_queue_is_resumed(world: World) -> None:
    await world.set_policy("work", msgspec.structs.replace(world.defaults, paused=True))
    task = await world.enqueue()
    waiting = asyncio.create_task(world.claim("work", wait_ms=WAIT_MS))
    await asyncio.sleep(0)
    assert not waiting.done()
    await world.set_policy("work", None)
    [held] = await waiting
    assert held.id == task.id


async def test_waiters_are_woken_when_max_consumers_is_raised(world: World) -> None:
    await world.set_policy("work", msgspec.structs.replace(world.defaults, max_consumers=1))
    await world.enqueue_many(6)
    await world.claim("work")
    waiting = [asyncio.create_task(world.claim("work", wait_ms=WAIT_MS)) for _ in range(3)]
    await asyncio.sleep(0)
    await world.set_policy("work", msgspec.structs.replace(world.defaults, max_consumers=4))
    assert [len(taken) for taken in await asyncio.gather(*waiting)] == [1, 1, 1]


@pytest.mark.parametrize("way", ["complete", "fail", "nack", "abandon", "cancel", "expire"])
async def test_a_waiter_is_woken_when_a_place_is_free(world: World, way: str) -> None:
    await world.set_policy("work", msgspec.structs.replace(world.defaults, max_consumers=1))
    await world.enqueue_many(6)
    held = await world.claim_one("work")
    waiting = asyncio.create_task(world.claim("work", worker="next", wait_ms=WAIT_MS))
    await asyncio.sleep(0)
    assert not waiting.done()
    if way == "expire":
        world.clock.pass_ms(LEASE_MS)
        await world.sweep()
    else:
        await getattr(world, way)(held)
    [next_one] = await waiting
    assert next_one.worker == "next"
    assert (await world.counts())[2] == 1
