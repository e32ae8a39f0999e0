"""Everything acknowledged is present after closing, crashing, or restoring a backup."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest
from tests.contract.engines import Engine, FakeClock, on_files
from tests.contract.world import KEEP_MS, LEASE_MS, TENANT, World, Worlds, by_shard, ids

from codeq.domain.errors import InvalidRequest, StoreClosed, StoreLocked, StoreMismatch
from codeq.domain.limits import RESTART_GRACE_MS
from codeq.domain.queue import Index
from codeq.domain.requests import Filter, Record
from codeq.domain.task import Status, Task
from codeq.usecases.waiters import Waiters

Everything = tuple[list[Record | None], object, object, object]


async def fill(world: World) -> None:
    """Stores tasks in every index, two tenants, a policy, and events."""
    await world.set_policy("b", msgspec.structs.replace(world.defaults, max_attempts=1))
    for tenant in (TENANT, "other"):
        await world.enqueue_many(12, "a", tenant=tenant, payload=b'{"n":1}')
        await world.enqueue_many(4, "a", tenant=tenant, delay_ms=60_000, priority=3)
        held = await world.claim("a", tenant=tenant, limit=6)
        await world.complete(held[0], b'"done"')
        await world.fail(held[1])
        await world.nack(held[2], "not yet")
        await world.abandon(held[3])
        await world.heartbeat(held[4])
        await world.cancel((await world.enqueue_many(2, "a", tenant=tenant, priority=9))[0])
        await world.enqueue("b", tenant=tenant, idempotency_key="k")
        [doomed] = await world.claim("b", tenant=tenant)
        await world.nack(doomed, "dead")


async def everything(world: World) -> Everything:
    records: list[Record | None] = []
    for tenant in (TENANT, "other"):
        found = await world.find_all(tenant=tenant)
        records += await world.store.get_records(tenant, ids(found))
    # A restart may extend leases, and may change nothing else.
    steady = [
        record and msgspec.structs.replace(record, task=msgspec.structs.replace(record.task, lease_until_ms=0))
        for record in records
    ]
    return steady, await world.store.counts(None), await world.events(), dict(world.store.policies())


async def test_the_log_keeps_its_id_over_a_restart(world: World) -> None:
    before = world.store.log_id
    assert before
    await world.reopen()
    assert world.store.log_id == before


async def test_everything_survives_closing_and_opening(world: World) -> None:
    await fill(world)
    before = await everything(world)
    for _ in range(3):
        await world.reopen()
        assert await everything(world) == before


async def test_everything_survives_with_every_answer_forced_to_disk(synced_world: World) -> None:
    await fill(synced_world)
    before = await everything(synced_world)
    await synced_world.reopen()
    assert await everything(synced_world) == before


@pytest.mark.parametrize("fsync", [False, True])
async def test_everything_acknowledged_survives_a_crash(worlds: Worlds, *, fsync: bool) -> None:
    """A copy of the files, made while they are open and after every result, equals what a killed process leaves."""
    world = worlds.open(fsync=fsync)
    await fill(world)
    before = await everything(world)
    worlds.engine.crash(world.path, worlds.folder / "crashed")
    crashed = worlds.open("crashed")
    assert await everything(crashed) == before
    assert await everything(world) == before


async def test_order_survives_reopening(world: World) -> None:
    queued = [await world.enqueue(priority=i % 3) for i in range(30)]
    wanted = by_shard(sorted(queued, key=lambda task: -task.priority))
    taken: list[Task] = []
    while piece := await world.claim(limit=2):
        taken += piece
        await world.reopen()
    assert by_shard(taken) == wanted


async def test_tasks_enqueued_after_reopening_stand_behind_those_before(world: World) -> None:
    before = await world.enqueue_many(9)
    await world.reopen()
    after = await world.enqueue_many(9)
    assert by_shard(await world.drain()) == by_shard(before + after)


async def test_counts_stay_exact_through_reopening(world: World) -> None:
    await world.enqueue_many(20)
    held = await world.claim(limit=10)
    await world.reopen()
    assert await world.counts() == (10, 0, 10, 0)
    for task in held[:5]:
        await world.complete(task)
    await world.reopen()
    assert await world.counts() == (10, 0, 5, 0)
    assert len(await world.drain(limit=3)) == 10
    for task in held[5:]:
        await world.abandon(task)
    assert await world.counts() == (5, 0, 10, 0)


async def test_a_live_lease_gets_a_grace_period_after_a_restart(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    world.clock.pass_ms(LEASE_MS + 60_000)  # the store was down longer than the lease
    await world.reopen()
    assert (await world.load(held)).lease_until_ms == world.clock.now_ms + RESTART_GRACE_MS
    assert await world.sweep() == (0, 0, 0)
    world.clock.pass_ms(RESTART_GRACE_MS - 1)
    await world.heartbeat(held)
    world.clock.pass_ms(LEASE_MS - 1)
    assert await world.sweep() == (0, 0, 0)
    assert (await world.complete(held)).task.status is Status.COMPLETED


async def test_a_lease_that_nobody_keeps_expires_after_the_grace_period(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    world.clock.pass_ms(LEASE_MS)
    await world.reopen(grace_ms=2_000)
    world.clock.pass_ms(1_999)
    assert await world.sweep() == (0, 0, 0)
    world.clock.pass_ms(1)
    assert await world.sweep() == (0, 1, 0)
    assert (await world.load(held)).attempts == 1


async def test_a_grace_period_never_shortens_a_lease(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one(lease_ms=10 * RESTART_GRACE_MS)
    await world.reopen()
    assert await world.load(held) == held


async def test_an_extended_lease_survives_once_a_sweep_has_passed(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    longer = await world.heartbeat(held, extend_ms=10 * LEASE_MS)
    await world.sweep()
    await world.reopen()
    assert await world.load(held) == longer


async def test_a_late_worker_is_refused_after_a_restart_too(world: World) -> None:
    await world.enqueue()
    first = await world.claim_one(worker="first")
    await world.abandon(first)
    second = await world.claim_one(worker="second")
    await world.reopen()
    assert await world.load(second) == second
    with pytest.raises(Exception, match="leased to another worker"):
        await world.complete(first)
    await world.complete(second)


async def test_the_same_submit_after_a_restart_answers_the_stored_result(world: World) -> None:
    await world.enqueue()
    held = await world.claim_one()
    await world.complete(held, b"1")
    await world.reopen()
    assert (await world.complete(held, b"2")).result == b"1"


async def test_delayed_and_dead_tasks_survive(world: World) -> None:
    delayed = await world.enqueue("delayed", delay_ms=1_000)
    dead = await world.dead()
    await world.reopen()
    assert ids(await world.find_all(Filter(index=Index.DEAD))) == [dead.id]
    world.clock.pass_ms(1_000)
    assert ids(await world.claim("delayed")) == [delayed.id]
    await world.replay(dead)
    assert ids(await world.claim("work")) == [dead.id]


async def test_many_queues_survive(world: World) -> None:
    for number in range(200):
        await world.enqueue(f"command-{number:03}", tenant=f"tenant-{number % 7}")
    await world.reopen()
    assert len(await world.store.counts(None)) == 200
    assert sum([len(await world.drain(tenant=f"tenant-{number}", limit=50)) for number in range(7)]) == 200


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
async def test_another_number_of_shards_is_refused(world: World, engine: Engine, clock: FakeClock, shards: int) -> None:
    task = await world.enqueue()
    await world.close()
    if shards == engine.shards:
        await world.reopen()
    else:
        with pytest.raises(StoreMismatch):
            Engine("other", shards, engine.open_store).open(world.path, clock, Waiters())
        world.open()
    assert ids(await world.claim()) == [task.id]


async def test_the_number_of_shards_need_not_be_said_again(world: World, engine: Engine, clock: FakeClock) -> None:
    await world.close()
    store = engine.open_store(
        world.path, clock=clock, shards=None, fsync=False, grace_ms=RESTART_GRACE_MS, listeners=[Waiters()]
    )
    assert store.shards == engine.shards
    await store.close()


@on_files
async def test_a_store_is_open_only_once_at_a_time(world: World, engine: Engine, clock: FakeClock) -> None:
    task = await world.enqueue()
    with pytest.raises(StoreLocked):
        engine.open(world.path, clock, Waiters())
    assert ids(await world.claim()) == [task.id]


async def test_a_closed_store_refuses_every_call(world: World) -> None:
    task = await world.enqueue()
    await world.close()
    for call in (
        world.enqueue(),
        world.claim(),
        world.get(task),
        world.cancel(task),
        world.store.flush(),
        world.store.counts(None),
        world.store.events(0, 0, 1),
        world.store.trim(before_ms=0, keep_max=0),
        world.store.find(TENANT, Filter(), cursor=None, limit=1),
        world.store.due(Index.DELAYED, 0, 1),
    ):
        with pytest.raises(StoreClosed):
            await call


async def test_closing_twice_is_harmless_or_refused_as_closed(world: World) -> None:
    await world.close()
    with contextlib.suppress(StoreClosed):
        await world.store.close()


@on_files
async def test_a_backup_of_a_running_store_can_be_put_back(worlds: Worlds) -> None:
    world = worlds.open()
    await fill(world)
    before = await everything(world)
    await worlds.engine.back_up(world.store, worlds.folder / "backup")
    await world.drain(limit=5)  # the store continues to work
    await world.enqueue_many(5)
    assert await everything(world) != before
    worlds.engine.restore(worlds.folder / "backup", worlds.folder / "restored")
    restored = worlds.open("restored")
    assert await everything(restored) == before


@on_files
async def test_a_backup_amid_traffic_is_consistent(worlds: Worlds) -> None:
    world = worlds.open(fsync=True)
    stop = asyncio.Event()

    async def traffic() -> None:
        while not stop.is_set():
            await world.enqueue_many(5)
            for task in await world.claim(limit=3):
                await world.complete(task)

    busy = asyncio.create_task(traffic())
    for _ in range(20):
        await asyncio.sleep(0)
    await worlds.engine.back_up(world.store, worlds.folder / "backup")
    stop.set()
    await busy
    worlds.engine.restore(worlds.folder / "backup", worlds.folder / "restored")
    restored = worlds.open("restored")
    found = await restored.find_all()
    tally = [sum(task.status is status for task in found) for status in (Status.PENDING, Status.IN_PROGRESS)]
    pending, _, running, _ = await restored.counts()
    assert [pending, running] == tally
    assert {task.id: task for task in found} == {
        event.id: event for events in (await restored.events()).values() for event in events
    }
    assert len(await restored.drain(limit=100)) == pending


@on_files
async def test_a_backup_does_not_overwrite_and_a_restore_wants_an_empty_place(worlds: Worlds, tmp_path: Path) -> None:
    world = worlds.open()
    task = await world.enqueue()
    await worlds.engine.back_up(world.store, tmp_path / "backup")
    with pytest.raises(InvalidRequest):
        await worlds.engine.back_up(world.store, tmp_path / "backup")
    with pytest.raises(InvalidRequest):
        worlds.engine.restore(tmp_path / "backup", world.path)
    with pytest.raises(InvalidRequest):
        worlds.engine.restore(tmp_path / "nothing", tmp_path / "new")
    assert ids(await world.claim()) == [task.id]


async def test_nothing_is_purged_by_the_time_a_store_was_down_but_what_is_due(world: World) -> None:
    ended = await world.cancel(await world.enqueue())
    waiting = await world.enqueue()
    await world.close()
    world.clock.pass_ms(KEEP_MS)
    world.open()
    assert await world.sweep() == (0, 0, 1)
    assert await world.is_gone(ended)
    assert ids(await world.claim()) == [waiting.id]


async def test_time_goes_on_from_the_newest_event_when_the_clock_was_set_back_before_a_restart(world: World) -> None:
    """(13.4) In all shards, though only one has the newest event."""
    held = [await world.claim_one() for _ in await world.enqueue_many(6)]
    delayed = await world.enqueue("delayed", delay_ms=20_000)
    newest_ms = world.clock.now_ms
    await world.close()
    world.clock.now_ms -= 3_600_000
    world.open()
    assert world.store.now_ms() == newest_ms
    world.clock.pass_ms(RESTART_GRACE_MS - 1)
    assert await world.sweep() == (0, 0, 0), "no lease has ended early"
    world.clock.pass_ms(20_000 - RESTART_GRACE_MS + 1)
    assert ids(await world.claim("delayed")) == [delayed.id]
    world.clock.pass_ms(LEASE_MS)
    assert await world.sweep() == (0, len(held) + 1, 0)
