"""What a tenant may store: new tasks past a limit are refused one by one, and what is there can still be worked on."""

from dataclasses import replace

import pytest
from tests.contract.world import KEEP_MS, TENANT, World

from codeq.domain.errors import CodeqError, QuotaExceeded
from codeq.domain.queue import WEBHOOKS, QueueKey, QueuePolicy
from codeq.domain.requests import NewTask
from codeq.domain.tenants import TenantLimits
from codeq.usecases import deliver, policies
from codeq.usecases.enqueue import Enqueued, enqueue

Answers = list[Enqueued | CodeqError]


async def put(world: World, limits: TenantLimits, *new_tasks: NewTask, tenant: str = TENANT) -> list[str]:
    """Returns per task the limit that it was refused for; empty if it was accepted."""
    answers: Answers = await enqueue(replace(world.core, tenant_limits=limits), tenant, new_tasks)
    refusals = [answer for answer in answers if not isinstance(answer, Enqueued)]
    assert all(isinstance(refusal, QuotaExceeded) for refusal in refusals)
    return [getattr(answer, "limit", "") for answer in answers]


def work(payload: bytes = b"1", key: str | None = None, command: str = "work") -> NewTask:
    return NewTask(command=command, payload=payload, idempotency_key=key)


async def test_tasks_are_accepted_up_to_the_limit_in_the_middle_of_a_batch(world: World) -> None:
    """(13.21)"""
    limits = TenantLimits(tasks=5)
    assert await put(world, limits, *[work()] * 3) == [""] * 3
    assert await put(world, limits, *[work()] * 4) == ["", "", "tasks", "tasks"]
    assert await put(world, limits, work()) == ["tasks"]
    assert await put(world, limits, work(), tenant="other") == [""]
    assert await world.counts() == (5, 0, 0, 0)


async def test_delayed_and_running_tasks_count_and_ended_ones_do_not(world: World) -> None:
    """(13.21)"""
    limits = TenantLimits(tasks=2)
    assert await put(world, limits, NewTask(command="work", delay_ms=60_000), work()) == ["", ""]
    held = await world.claim_one()
    assert await put(world, limits, work()) == ["tasks"]
    await world.complete(held)
    assert await put(world, limits, work(), work()) == ["", "tasks"]


async def test_a_test_of_a_webhook_counts_as_a_task(world: World) -> None:
    """(13.21)"""
    limited = replace(world.core, tenant_limits=TenantLimits(tasks=2))
    for _ in range(2):
        await deliver.enqueue_test(limited, TENANT, "https://example.com/")
    with pytest.raises(QuotaExceeded):
        await deliver.enqueue_test(limited, TENANT, "https://example.com/")
    assert await world.counts(WEBHOOKS) == (2, 0, 0, 0)


async def test_a_repeated_key_is_never_refused(world: World) -> None:
    """(13.21)"""
    limits = TenantLimits(tasks=2)
    assert await put(world, limits, work(key="a"), work(key="b")) == ["", ""]
    mixed = [work(key="b"), work(key="c"), work(), work(key="a")]
    assert await put(world, limits, *mixed) == ["", "tasks", "tasks", ""]
    held = await world.claim_one()
    await world.complete(held)
    assert await put(world, limits, work(key="d"), work(key="d"), work(key="e")) == ["", "", "tasks"]


async def test_queues_are_limited_by_name_whatever_their_shard(world: World) -> None:
    """(13.21)"""
    limits = TenantLimits(queues=3)
    for _ in range(4):  # on several shards, so that a queue has tasks in more than one of them
        assert await put(world, limits, work(command="a"), work(command="b"), work(command="c")) == [""] * 3
    named = [work(command=name) for name in ("a", "d", "b", "e")]
    assert await put(world, limits, *named) == ["", "queues", "", "queues"]
    for task in await world.drain("a", limit=10):
        await world.complete(task)
    assert await put(world, limits, work(command="d"), work(command="e")) == ["", "queues"]


async def test_bytes_count_until_a_task_is_purged_also_over_a_restart(world: World) -> None:
    """(13.21)"""
    limits = TenantLimits(payload_bytes=10)
    assert await put(world, limits, work(b"1234"), work(b"1234"), work(b"1234"), work(b"12")) == [
        "",
        "",
        "payload_bytes",
        "",
    ]
    for task in await world.drain("work", limit=10):
        await world.complete(task)
    await world.reopen()
    assert (await world.store.tenant_usage(TENANT)).payload_bytes == 10
    assert await put(world, limits, work(b"1")) == ["payload_bytes"]
    world.clock.pass_ms(KEEP_MS)
    await world.sweep()
    assert (await world.store.tenant_usage(TENANT)).payload_bytes == 0
    assert await put(world, limits, work(b"1234567890")) == [""]


async def test_tasks_are_counted_over_a_restart(world: World) -> None:
    """(13.21)"""
    limits = TenantLimits(tasks=4, queues=1)
    assert await put(world, limits, *[work()] * 3, NewTask(command="work", delay_ms=60_000)) == [""] * 4
    await world.claim_one()
    await world.reopen()
    assert await put(world, limits, work()) == ["tasks"]
    assert await put(world, TenantLimits(queues=1), work(), work(command="play")) == ["", "queues"]


async def test_policies_are_limited_and_those_that_exist_can_be_changed(world: World) -> None:
    """(13.21)"""
    core = replace(world.core, tenant_limits=TenantLimits(policies=2))
    one, two, three = (QueueKey(TENANT, name) for name in ("one", "two", "three"))
    await policies.put_policy(core, one, QueuePolicy())
    await policies.set_paused(core, two, paused=True)
    for refused in (
        policies.put_policy(core, three, QueuePolicy()),
        policies.set_paused(core, three, paused=True),
    ):
        with pytest.raises(QuotaExceeded):
            await refused
    await policies.put_policy(core, one, QueuePolicy(max_attempts=7))
    await policies.put_policy(core, QueueKey("other", "one"), QueuePolicy())
    await world.reopen()
    core = replace(world.core, tenant_limits=core.tenant_limits)
    with pytest.raises(QuotaExceeded):
        await policies.set_paused(core, three, paused=True)
    await policies.delete_policy(core, two)
    await policies.delete_policy(core, two)
    await policies.set_paused(core, three, paused=True)
    assert (await world.store.tenant_usage(TENANT)).policies == 2


async def test_without_limits_nothing_is_refused(world: World) -> None:
    """(13.21)"""
    assert await put(world, TenantLimits(), *[work(command=f"c{n}") for n in range(100)]) == [""] * 100
