"""Who is notified when a queue becomes non-empty: once per time that it does, by mode and interval, on every engine."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from tests.contract.world import LEASE_MS, TENANT, World, Worlds

from codeq.domain.errors import InvalidRequest, NotFound, QuotaExceeded
from codeq.domain.limits import SUBSCRIPTIONS_MAX
from codeq.domain.subscriptions import DeliveryMode, Subscription
from codeq.store.interface import Registration
from codeq.usecases import subscriptions
from codeq.usecases.notify import ANNOUNCED_MS, Notification, ReadyQueues, notifications


async def subscribe(world: World, **options: Any) -> Subscription:
    wanted: dict[str, Any] = {
        "id": "", "tenant": TENANT, "owner": "ann", "url": "https://example.com/ready", "commands": ("work",),
        "mode": DeliveryMode.FANOUT, "group": None, "min_interval_ms": 0, "ttl_ms": 600_000, "created_ms": 0,
        "expires_ms": 0,
    }  # fmt: skip
    return await subscriptions.subscribe(world.core, Subscription(**(wanted | options)))


async def listening(world: World) -> ReadyQueues:
    """Returns a listener that knows the subscriptions there are."""
    ready = ReadyQueues()
    world.store.peers.add_listener(ready)
    assert await notifications(world.core, ready) == []
    return ready


async def told(world: World, ready: ReadyQueues) -> list[str]:
    """Returns the ids of the subscriptions to be notified now."""
    return sorted(each.subscription.id for each in await notifications(world.core, ready))


async def test_a_queue_is_announced_when_it_becomes_non_empty_and_not_again(world: World) -> None:
    subscription = await subscribe(world)
    ready = await listening(world)
    first = await world.enqueue(trace_parent="00-" + "a" * 32 + "-" + "b" * 16 + "-01", trace_state="k=v")
    [notification] = await notifications(world.core, ready)
    assert isinstance(notification, Notification)
    assert (notification.subscription, notification.command) == (subscription, "work")
    assert (notification.queue_depth, notification.trace_state) == (1, "k=v")
    assert notification.trace_parent == "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    assert notification.id.startswith("ntf-")
    await world.enqueue_many(3)
    assert await told(world, ready) == []
    assert first.id in {task.id for task in await world.drain()}
    assert await told(world, ready) == []
    await world.enqueue_many(5)
    [again] = await notifications(world.core, ready)
    assert again.queue_depth == 5
    assert again.id != notification.id


async def test_promoted_handed_back_retried_and_replayed_tasks_announce_their_queue_too(world: World) -> None:
    subscription = await subscribe(world)
    ready = await listening(world)
    await world.enqueue(delay_ms=1_000, max_attempts=2)
    assert await told(world, ready) == []
    world.clock.pass_ms(1_000)
    await world.sweep()
    assert await told(world, ready) == [subscription.id]
    task = await world.claim_one()
    assert await told(world, ready) == []
    await world.abandon(task)
    assert await told(world, ready) == [subscription.id]
    task = await world.claim_one()
    assert await told(world, ready) == []
    await world.nack(task, delay_ms=0)
    assert await told(world, ready) == [subscription.id]
    await world.claim_one()
    world.clock.pass_ms(LEASE_MS)
    await world.sweep()
    assert await told(world, ready) == []
    [dead] = await world.find_all()
    assert dead.is_dead
    await world.replay(dead)
    assert await told(world, ready) == [subscription.id]


async def test_a_queue_that_always_has_tasks_is_announced_again_after_a_while(world: World) -> None:
    subscription = await subscribe(world)
    ready = await listening(world)
    await world.enqueue()
    assert await told(world, ready) == [subscription.id]
    world.clock.pass_ms(ANNOUNCED_MS)
    await world.enqueue()
    assert await told(world, ready) == [subscription.id]


async def test_a_queue_that_a_cancellation_emptied_is_announced_again(world: World) -> None:
    subscription = await subscribe(world)
    ready = await listening(world)
    for _ in range(2):
        task = await world.enqueue()
        assert await told(world, ready) == [subscription.id]
        await world.cancel(task)
        assert await told(world, ready) == []
    task = await world.enqueue()
    assert await told(world, ready) == [subscription.id]
    await world.cancel(task)
    await world.enqueue()
    assert await told(world, ready) == [subscription.id], "also if nobody has looked meanwhile"


async def test_only_those_who_subscribed_to_the_command_and_the_tenant_are_told(world: World) -> None:
    everything = await subscribe(world, commands=None)
    await subscribe(world, commands=("other",))
    await subscribe(world, tenant="stranger")
    ready = await listening(world)
    await world.enqueue()
    assert await told(world, ready) == [everything.id]


async def test_no_subscription_is_told_twice_within_its_interval_whichever_member_it_is(world: World) -> None:
    members = [
        await subscribe(world, mode=DeliveryMode.GROUP, group="g", min_interval_ms=10_000),
        await subscribe(world, mode=DeliveryMode.GROUP, group="g", min_interval_ms=10_000),
    ]
    eager = await subscribe(world)
    ready = await listening(world)
    got: list[list[str]] = []
    for _ in range(4):
        await world.enqueue()
        got.append([each for each in await told(world, ready) if each != eager.id])
        await world.drain()
        assert await told(world, ready) == []
        world.clock.pass_ms(1_000)
    assert got == [[members[0].id], [members[1].id], [], []]
    world.clock.pass_ms(7_000)
    await world.enqueue()
    assert members[0].id in await told(world, ready)


async def test_a_group_takes_turns_and_a_hash_spreads(world: World) -> None:
    group = [await subscribe(world, mode=DeliveryMode.GROUP, group="g") for _ in range(3)]
    hashed = [await subscribe(world, mode=DeliveryMode.HASH) for _ in range(3)]
    ready = await listening(world)
    rounds: list[list[str]] = []
    for _ in range(12):
        await world.enqueue()
        rounds.append(await told(world, ready))
        await world.drain()
        assert await told(world, ready) == []
    in_group = [each for found in rounds for each in found if each in {one.id for one in group}]
    assert in_group == [one.id for one in group] * 4
    by_hash = Counter(each for found in rounds for each in found if each in {one.id for one in hashed})
    assert by_hash.total() == 12
    assert len(by_hash) > 1


async def test_subscriptions_end_unless_renewed_and_can_be_deleted(world: World) -> None:
    short = await subscribe(world, ttl_ms=5_000)
    renewed = await subscribe(world, ttl_ms=5_000)
    deleted = await subscribe(world)
    ready = await listening(world)
    await subscriptions.unsubscribe(world.core, TENANT, deleted.id)
    ready.look_again()
    world.clock.pass_ms(4_000)
    assert (await subscriptions.renew(world.core, TENANT, renewed.id)).expires_ms == world.clock.now_ms + 5_000
    ready.look_again()
    world.clock.pass_ms(1_000)
    await world.enqueue()
    assert await told(world, ready) == [renewed.id]
    for tenant, gone in ((TENANT, short.id), (TENANT, deleted.id), ("stranger", renewed.id)):
        with pytest.raises(NotFound):
            await subscriptions.renew(world.core, tenant, gone)
        with pytest.raises(NotFound):
            await subscriptions.unsubscribe(world.core, tenant, gone)


async def test_subscriptions_survive_a_restart(world: World) -> None:
    subscription = await subscribe(world)
    await world.reopen()
    ready = await listening(world)
    await world.enqueue()
    assert await told(world, ready) == [subscription.id]


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://127.0.0.1/"},
        {"url": "ftp://example.com/"},
        {"mode": DeliveryMode.GROUP},
        {"group": "g"},
        {"mode": DeliveryMode.GROUP, "group": "x" * 200},
        {"ttl_ms": 10},
        {"ttl_ms": 1 << 40},
        {"min_interval_ms": 1 << 40},
        {"commands": ("no such/name",)},
        {"commands": ()},
    ],
    ids=str,
)
async def test_what_a_subscription_must_not_ask_for(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await subscribe(world, **wrong)


async def test_a_tenant_has_a_bounded_number_of_subscriptions(world: World) -> None:
    entries = [
        Registration(kind=subscriptions.KIND, tenant=TENANT, name=f"x{n}", value=b"{}", expires_ms=1 << 50)
        for n in range(SUBSCRIPTIONS_MAX)
    ]
    await world.store.registry.put(entries)
    with pytest.raises(QuotaExceeded, match="subscriptions"):
        await subscribe(world)
    await world.store.registry.remove(subscriptions.KIND, TENANT, [each.name for each in entries])


async def test_deliveries_of_callbacks_announce_nothing(world: World) -> None:
    await subscribe(world, commands=None)
    await world.enqueue(webhook="https://example.com/done")
    task = await world.claim_one()
    ready = await listening(world)
    await world.complete(task)
    assert await told(world, ready) == []


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
@pytest.mark.parametrize("seed", range(4))
async def test_of_several_processes_one_announces_each_time_that_the_queue_becomes_non_empty(
    worlds: Worlds, seed: int
) -> None:
    """Three processes add and claim tasks of one queue in random order, and look in random order, sooner or later."""
    dice, processes = random.Random(seed), [worlds.open() for _ in range(3)]
    subscription = await subscribe(processes[0])
    looks = [(process, await listening(process)) for process in processes]
    depth = announced = periods = skipped = 0
    is_announced = True
    for _ in range(300):
        process = dice.choice(processes)
        if dice.random() < 0.5:
            await process.enqueue()
            periods += depth == 0
            is_announced = is_announced and depth > 0
            depth += 1
        else:
            depth -= len(await process.claim("work", limit=dice.choice((1, 1, 3))))
            skipped += depth == 0 and not is_announced
            is_announced = is_announced or depth == 0
        if dice.random() < 0.4:
            continue  # the queue may become empty, and non-empty again, before anybody looks
        dice.shuffle(looks)
        for each, ready in looks:
            for found in await told(each, ready):
                assert found == subscription.id
                announced += 1
                assert depth, "announced while it is empty"
                assert not is_announced, "announced twice"
                is_announced = True
        assert is_announced, "not announced"
    assert announced + skipped + (not is_announced) == periods
    assert announced > 20, "this test is about announcements"
    assert skipped > 0, "and about periods that nobody saw"


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
async def test_looks_at_the_same_time_announce_once(worlds: Worlds) -> None:
    processes = [worlds.open() for _ in range(3)]
    await subscribe(processes[0])
    looks = [(process, await listening(process)) for process in processes]
    for _ in range(30):
        await asyncio.gather(*(process.enqueue_many(3) for process in processes))
        found = await asyncio.gather(*(told(process, ready) for process, ready in looks))
        assert sum(map(len, found)) == 1
        held = await asyncio.gather(*(process.claim("work", limit=5) for process in processes))
        assert sum(map(len, held)) == 9
        more = asyncio.gather(*(told(process, ready) for process, ready in looks))
        await processes[0].enqueue()  # while the others look
        found = [*await more, *[await told(process, ready) for process, ready in looks]]
        assert sum(map(len, found)) == 1
        assert len(await processes[1].claim("work")) == 1
        for process, ready in looks:
            assert await told(process, ready) == []
