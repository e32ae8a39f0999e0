"""Who is notified when a queue becomes non-empty: once per time that it does, by mode and interval, on every engine."""

import asyncio
import itertools
import random
from collections import Counter
from typing import Any

import pytest
from tests.contract.world import LEASE_MS, TENANT, World, Worlds

from codeq.domain.errors import InvalidRequest, NotFound, QuotaExceeded, StoreUnavailable
from codeq.domain.limits import SUBSCRIPTIONS_MAX
from codeq.domain.queue import QueueKey
from codeq.domain.subscriptions import DeliveryMode, Subscription
from codeq.store.interface import Registration, Registry
from codeq.usecases import notify, subscriptions
from codeq.usecases.notify import ANNOUNCED, ANNOUNCED_MS, EMPTIED, NOTIFIED, ROTATION, IsBusy, Notification
from codeq.usecases.policies import set_paused
from codeq.usecases.ready_queues import ReadyQueues


async def subscribe(world: World, **options: Any) -> Subscription:
    wanted: dict[str, Any] = {
        "id": "", "tenant": TENANT, "owner": "ann", "url": "https://example.com/ready", "commands": ("work",),
        "mode": DeliveryMode.FANOUT, "group": None, "min_interval_ms": 0, "ttl_ms": 600_000, "created_ms": 0,
        "expires_ms": 0,
    }  # fmt: skip
    return await subscriptions.subscribe(world.core, Subscription(**(wanted | options)))


async def notifications(world: World, ready: ReadyQueues, **options: IsBusy) -> list[Notification]:
    """Returns all that is to be sent now."""
    found: list[Notification] = []
    ready.changed.set()
    while ready.changed.is_set():
        ready.changed.clear()
        async for of_queue in notify.notifications(world.core, ready, **options):
            found += of_queue
    return found


async def listening(world: World) -> ReadyQueues:
    """Returns a listener that knows the subscriptions there are."""
    ready = ReadyQueues()
    world.store.peers.add_listener(ready)
    assert await notifications(world, ready) == []
    return ready


async def told(world: World, ready: ReadyQueues) -> list[str]:
    """Returns the ids of the subscriptions to be notified now."""
    return sorted(each.subscription.id for each in await notifications(world, ready))


async def test_a_queue_is_announced_when_it_becomes_non_empty_and_not_again(world: World) -> None:
    subscription = await subscribe(world)
    ready = await listening(world)
    first = await world.enqueue(trace_parent="00-" + "a" * 32 + "-" + "b" * 16 + "-01", trace_state="k=v")
    [notification] = await notifications(world, ready)
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
    [again] = await notifications(world, ready)
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


async def test_queues_of_ever_new_commands_leave_nothing_behind(world: World) -> None:
    await subscribe(world, commands=None)
    ready = await listening(world)
    for number in range(20):
        await world.enqueue(command=f"c{number}")
        assert len(await told(world, ready)) == 1
        await world.claim(f"c{number}")
        assert await told(world, ready) == []
    world.clock.pass_ms(2 * ANNOUNCED_MS)
    for kind in (ANNOUNCED, EMPTIED):
        assert await world.store.registry.entries(kind, TENANT) == []


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


async def pause(world: World, *, paused: bool) -> None:
    await set_paused(world.core, QueueKey(TENANT, "work"), paused=paused)


async def test_a_paused_queue_is_announced_when_it_is_resumed(world: World) -> None:
    subscription = await subscribe(world)
    ready = await listening(world)
    await pause(world, paused=True)
    await world.enqueue()
    assert await told(world, ready) == []
    await pause(world, paused=False)
    assert await told(world, ready) == [subscription.id]
    await pause(world, paused=True)
    assert await told(world, ready) == []
    await world.enqueue()
    await pause(world, paused=False)
    assert await told(world, ready) == [subscription.id], "it was announced before, and is claimable again"
    await world.enqueue()
    assert await told(world, ready) == []
    await pause(world, paused=True)
    await world.set_policy("work", None)
    assert await told(world, ready) == [], "nobody has seen it paused"
    await world.drain()
    await pause(world, paused=True)
    assert await told(world, ready) == []
    await pause(world, paused=False)
    assert await told(world, ready) == [], "it is empty"
    await world.enqueue()
    assert await told(world, ready) == [subscription.id]


@pytest.mark.parametrize("engine", ["redis", "redis-3-shards"], indirect=True)
async def test_of_several_processes_one_announces_that_a_queue_is_resumed(worlds: Worlds) -> None:
    processes = [worlds.open() for _ in range(3)]
    subscription = await subscribe(processes[0])
    looks = [(process, await listening(process)) for process in processes]
    queue = QueueKey(TENANT, "work")
    for process in processes:
        await process.store.peers.is_sweeper(0)  # starts to hear of the others
    for number in range(3):
        await pause(processes[number], paused=True)
        while not all(process.core.policy(*queue).paused for process in processes):  # noqa: ASYNC110 - as below
            await asyncio.sleep(0.01)
        await processes[0].enqueue()
        for process, ready in looks:
            assert await told(process, ready) == []
        await pause(processes[number], paused=False)
        while any(process.core.policy(*queue).paused for process in processes):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)
        found = [await told(process, ready) for process, ready in looks]
        assert sorted(map(len, found)) == [0, 0, 1]
        assert [subscription.id] in found


async def test_check_30_only_those_who_subscribed_to_the_command_and_the_tenant_are_told(world: World) -> None:
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


@pytest.mark.parametrize("engine", ["rocksdb", "rocksdb-3-shards"], indirect=True)
async def test_who_subscribes_after_a_time_without_subscriptions_is_told_of_the_next_task(world: World) -> None:
    await subscribe(world, commands=("other",))
    first = await subscribe(world)
    ready = await listening(world)
    await world.enqueue()
    assert await told(world, ready) == [first.id]
    await subscriptions.unsubscribe(world.core, TENANT, first.id)
    ready.remove(TENANT, first.id)
    await world.drain()  # of which nobody is told
    second = await subscribe(world)
    ready.put(second, world.clock.now_ms)
    await world.enqueue()
    assert await told(world, ready) == [second.id]


async def test_queues_that_have_tasks_when_a_process_starts_are_announced_once(world: World) -> None:
    subscription = await subscribe(world)
    await world.enqueue()  # nobody listens yet
    for expected in ([subscription.id], []):
        ready = ReadyQueues()
        world.store.peers.add_listener(ready)
        assert await told(world, ready) == expected


async def test_a_subscription_that_is_made_while_others_are_read_is_kept(world: World) -> None:
    gone = await subscribe(world)
    ready = ReadyQueues()
    world.store.peers.add_listener(ready)
    ready.begin_reading()
    found = await subscriptions.all_of(world.core)
    await subscriptions.unsubscribe(world.core, TENANT, gone.id)
    ready.remove(TENANT, gone.id)
    made = await subscribe(world)
    ready.put(made, world.clock.now_ms)
    for each in found:
        ready.put_read(each)
    ready.end_reading({each.id for each in found})
    await world.enqueue()
    assert await told(world, ready) == [made.id]


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


async def test_subscriptions_that_are_made_and_ended_again_and_again_leave_little(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(13.20) What was noted of them stayed for their interval, and of their groups for a day."""
    monkeypatch.setattr(subscriptions, "NOTED_MAX", 8)
    ready = await listening(world)
    stays = await subscribe(world, mode=DeliveryMode.GROUP, group="stays", min_interval_ms=3_600_000)
    for number in range(30):
        made = await subscribe(world, mode=DeliveryMode.GROUP, group=f"g{number}", min_interval_ms=3_600_000)
        ready.put(made, world.core.now_ms())
        ready.put(stays, world.core.now_ms())
        await world.enqueue()
        assert made.id in await told(world, ready)
        await world.claim_one()
        assert await told(world, ready) == []
        await subscriptions.unsubscribe(world.core, TENANT, made.id)
        ready.remove(TENANT, made.id)
    for kind in (NOTIFIED, ROTATION):
        assert 1 < len(await world.store.registry.entries(kind, TENANT)) <= 10
    await world.enqueue()
    assert await told(world, ready) == [], "the one that stays was notified within its interval"


async def test_deliveries_of_callbacks_announce_nothing(world: World) -> None:
    await subscribe(world, commands=None)
    await world.enqueue(webhook="https://example.com/done")
    task = await world.claim_one()
    ready = await listening(world)
    await world.complete(task)
    assert await told(world, ready) == []


@pytest.mark.parametrize("seed", range(3))
async def test_the_only_process_announces_each_time_that_the_queue_becomes_non_empty(world: World, seed: int) -> None:
    await announces_each_time([world], seed)


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
@pytest.mark.parametrize("seed", range(4))
async def test_of_several_processes_one_announces_each_time_that_the_queue_becomes_non_empty(
    worlds: Worlds, seed: int
) -> None:
    await announces_each_time([worlds.open() for _ in range(3)], seed)


async def announces_each_time(processes: list[World], seed: int) -> None:
    """The processes add and claim tasks of one queue in random order, and look in random order, sooner or later."""
    dice = random.Random(seed)
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


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
async def test_a_task_that_another_process_has_announced_is_not_again_once_the_queue_was_emptied(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow process looks at the queue, and what others do meanwhile happens between each two steps of it in turn."""
    slow, quick = worlds.open(), worlds.open()
    await subscribe(slow)
    looks, of_quick = await listening(slow), await listening(quick)
    registry_get, get_tasks, counts = slow.store.registry.get, slow.store.get_tasks, slow.store.counts

    for step in range(6):
        steps = itertools.count()
        announced: list[str] = []

        async def others(step: int = step, steps: Any = steps, announced: list[str] = announced) -> None:
            if next(steps) == step:
                announced += await told(quick, of_quick)
                assert len(await quick.claim("work")) == 1
                announced += await told(quick, of_quick)

        async def get(*args: Any, others: Any = others) -> Any:
            await others()
            return await registry_get(*args)

        async def tasks(*args: Any, others: Any = others) -> Any:
            await others()
            return await get_tasks(*args)

        async def counted(*args: Any, others: Any = others) -> Any:
            await others()
            return await counts(*args)

        await quick.enqueue()
        assert len(await told(quick, of_quick)) == 1
        assert len(await quick.claim("work")) == 1  # it has not told anybody yet that the queue was emptied
        await slow.enqueue()
        with monkeypatch.context() as patched:
            patched.setattr(slow.store.registry, "get", get)
            patched.setattr(slow.store, "get_tasks", tasks)
            patched.setattr(slow.store, "counts", counted)
            announced += await told(slow, looks)
        if next(steps) <= step:  # it has taken fewer
            announced += await told(quick, of_quick)
            assert len(await quick.claim("work")) == 1
        assert len(announced) == 1, f"announced {len(announced)} times if others act before step {step}"
        await told(quick, of_quick)
        await told(slow, looks)


async def test_a_cancelled_delayed_task_does_not_hide_that_the_queue_was_emptied(world: World) -> None:
    subscription = await subscribe(world)
    ready = await listening(world)
    await world.enqueue()
    assert await told(world, ready) == [subscription.id]
    await world.claim_one()
    await world.enqueue()
    await world.cancel(await world.enqueue(delay_ms=1_000))
    assert await told(world, ready) == [subscription.id], "it was empty before the second task"


@pytest.mark.parametrize("mode", list(DeliveryMode))
async def test_who_was_told_less_than_the_interval_ago_is_told_when_it_has_passed(
    world: World, mode: DeliveryMode
) -> None:
    group = "g" if mode is DeliveryMode.GROUP else None
    subscription = await subscribe(world, commands=None, mode=mode, group=group, min_interval_ms=5_000)
    ready = await listening(world)
    await world.enqueue()
    assert await told(world, ready) == [subscription.id]
    await world.claim_one()
    world.clock.pass_ms(1_000)
    task = await world.enqueue()  # nothing else happens: nobody would come for it
    await world.enqueue("other")
    assert await told(world, ready) == []
    assert ready.due_ms == world.clock.now_ms + 4_000
    world.clock.pass_ms(4_000)
    [late] = await notifications(world, ready)
    assert (late.command, late.queue_depth) == ("work", 1)
    world.clock.pass_ms(5_000)
    assert [each.command for each in await notifications(world, ready)] == ["other"], "two queues, two intervals"
    world.clock.pass_ms(5_000)
    assert await told(world, ready) == []
    assert ready.due_ms is None
    assert (await world.claim_one("work")).id == task.id


async def test_who_is_to_be_told_later_is_not_if_the_queue_is_empty_paused_or_announced_anew(world: World) -> None:
    late = await subscribe(world, min_interval_ms=5_000)
    ready = await listening(world)

    async def defers() -> None:
        world.clock.pass_ms(60_000)
        await world.drain()
        await world.enqueue()
        assert await told(world, ready) == [late.id]
        await world.drain()
        await world.enqueue()
        assert await told(world, ready) == []
        world.clock.pass_ms(5_000)

    await defers()
    await world.drain()
    assert await told(world, ready) == []
    await defers()
    await pause(world, paused=True)
    assert await told(world, ready) == []
    await pause(world, paused=False)
    assert await told(world, ready) == [late.id]
    await defers()
    await world.drain()
    await world.enqueue()
    assert await told(world, ready) == [late.id]
    world.clock.pass_ms(5_000)
    assert await told(world, ready) == []


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
async def test_who_is_to_be_told_later_is_told_once_by_several_processes(worlds: Worlds) -> None:
    processes = [worlds.open() for _ in range(2)]
    late = await subscribe(processes[0], min_interval_ms=5_000)
    looks = [(process, await listening(process)) for process in processes]
    found: list[str] = []
    for process, ready in [*looks, looks[0]]:  # the second and third time it is too early, each for another process
        await process.enqueue()
        found += await told(process, ready)
        if len(found) == 1 and process is processes[0]:
            await process.drain()
            assert await told(process, ready) == []
            processes[0].clock.pass_ms(1_000)
    await processes[1].drain()
    assert await told(*looks[1]) == []
    await processes[0].enqueue()
    assert await told(*looks[0]) == []
    assert found == [late.id]
    processes[0].clock.pass_ms(10_000)
    assert sorted([*await told(*looks[0]), *await told(*looks[1])]) == [late.id]
    processes[0].clock.pass_ms(10_000)
    assert [*await told(*looks[0]), *await told(*looks[1])] == []


async def test_a_member_that_has_not_answered_is_passed_over_and_told_later_if_nobody_else_is_there(
    world: World,
) -> None:
    members = [await subscribe(world, mode=DeliveryMode.GROUP, group="g") for _ in range(2)]
    alone = await subscribe(world, mode=DeliveryMode.GROUP, group="h")
    ready = await listening(world)
    silent = {members[0].id, alone.id}
    await world.enqueue()
    found = await notifications(world, ready, is_busy=silent.__contains__)
    assert [each.subscription.id for each in found] == [members[1].id]
    world.clock.pass_ms(1_000)
    assert await notifications(world, ready, is_busy=silent.__contains__) == []
    world.clock.pass_ms(1_000)
    assert await told(world, ready) == [alone.id]
    await world.drain()
    await world.enqueue()
    await notifications(world, ready, is_busy=silent.__contains__)
    await world.drain()
    await world.enqueue()
    assert alone.id in await told(world, ready), "it has answered before the second was due"
    world.clock.pass_ms(1_000)
    assert await told(world, ready) == []


class FaultyRegistry:
    """A registry that does not answer after some calls."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.calls_left = 0

    def __getattr__(self, name: str) -> Any:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise StoreUnavailable("no answer")
        return getattr(self._registry, name)


async def test_what_the_store_does_not_answer_is_looked_at_again(world: World) -> None:
    subscription = await subscribe(world, min_interval_ms=1)
    ready = await listening(world)
    await world.enqueue()
    faulty = FaultyRegistry(world.store.registry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store if "registry" in vars(world.store) else type(world.store), "registry", faulty)
        for answered in range(10):  # it fails later each time: also after the announcement was recorded
            faulty.calls_left = answered
            try:
                found = await told(world, ready)
            except StoreUnavailable:
                continue
            break
    assert answered >= 2
    assert found == [subscription.id]


async def test_a_tenant_with_many_queues_does_not_keep_another_waiting(world: World) -> None:
    await subscribe(world, commands=None)
    quiet = await subscribe(world, tenant="quiet")
    ready = await listening(world)
    for number in range(100):
        await world.enqueue(f"c{number}")
    await world.enqueue(tenant="quiet")
    order: list[str] = []
    async for of_queue in notify.notifications(world.core, ready):
        order += [each.subscription.tenant for each in of_queue]
        if len(order) == 4:
            assert await world.drain(tenant="quiet")
            await world.enqueue(tenant="quiet")
    assert quiet.tenant in order[:2]
    assert quiet.tenant in order[4:6], "it comes while the others are looked at"
    assert len(order) < 40, "now and then there is a pause"
    assert len(await notifications(world, ready)) == 102 - len(order)


async def test_a_tenant_with_more_queues_than_are_followed_takes_none_from_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codeq.usecases.ready_queues.NOTIFY_QUEUES_MAX", 20)
    monkeypatch.setattr("codeq.usecases.ready_queues.NOTIFY_TENANT_QUEUES_MAX", 20)
    await subscribe(world, commands=None)
    quiet = await subscribe(world, tenant="quiet")
    ready = await listening(world)
    await world.enqueue("last")
    assert len(await told(world, ready)) == 1
    for number in range(20):
        await world.enqueue(f"c{number}")
    await world.drain("last")  # nobody follows it
    await world.enqueue(tenant="quiet")
    assert quiet.id in await told(world, ready)
    await world.enqueue("last")
    assert len(await told(world, ready)) == 1, "it was not taken for a queue that has had tasks all the time"
