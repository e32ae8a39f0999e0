"""Risks of this engine alone: bounds of its scans, what reaches the disk, what stays in memory."""

import asyncio
import gc

import pytest
from tests.contract.engines import on_files
from tests.contract.world import KEEP_DEAD_MS, TENANT, World, Worlds, ids

from codeq.domain.requests import Filter, NewTask
from codeq.domain.task import Status
from codeq.store.rocksdb import database, pending
from codeq.store.rocksdb.leases import Leases
from codeq.store.rocksdb.pending import Window
from codeq.usecases import queries
from codeq.usecases.worker_registry import KIND

pytestmark = on_files


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the sequence numbers of the database at each fsync."""
    seen: list[int] = []
    flush = database.Database.flush

    def counted(self: database.Database) -> int:
        sequence = flush(self)
        seen.append(sequence)
        return sequence

    monkeypatch.setattr(database.Database, "flush", counted)
    return seen


async def test_a_scan_between_a_change_and_its_answer_does_not_hide_the_change_from_the_fsync(
    synced_world: World, flushes: list[int]
) -> None:
    world = synced_world
    task = await world.enqueue(delay_ms=1_000)
    held = len(flushes)
    [before] = await world.store.get_tasks(TENANT, [task.id])
    assert before is not None
    world.clock.pass_ms(1_000)
    await asyncio.gather(world.cancel(task), queries.find(world.core, TENANT, Filter()), world.store.flush())
    assert len(flushes) > held


async def test_readers_and_writers_at_once_are_all_answered(synced_world: World) -> None:
    world = synced_world
    for _ in range(20):
        await asyncio.gather(
            world.enqueue_all([NewTask(command="work")]),
            queries.find(world.core, TENANT, Filter()),
            queries.counts(world.core, TENANT),
            world.claim("work"),
            world.sweep(),
            queries.find(world.core, TENANT, Filter()),
        )
    assert len(await world.find_all()) == 20


async def test_request_ids_are_in_memory_for_as_long_as_their_leases(worlds: Worlds) -> None:
    gc.collect()
    others = [thing for thing in gc.get_objects() if isinstance(thing, Leases)]
    world = worlds.open("observed")
    await world.enqueue_many(60)
    for number in range(20):
        for task in await world.claim(limit=3, request_id=f"request {number}"):
            await world.complete(task)
    await world.enqueue()
    await world.claim(request_id="held")
    ours = [thing for thing in gc.get_objects() if isinstance(thing, Leases) and thing not in others]
    [leases] = [each for each in ours if each._requests]
    assert [request_id for _, _, request_id in leases._requests] == ["held"]
    assert sum(len(each._request_of) for each in ours) == 1


async def test_a_queue_that_is_kept_empty_leaves_nothing_in_memory(world: World) -> None:
    before = _windows()
    for _ in range(300):
        await world.enqueue()
        await world.complete(await world.claim_one())
    assert _windows() - before <= 10


async def test_queues_that_come_and_go_leave_nothing_in_memory(world: World) -> None:
    before = _windows()
    for number in range(300):
        await world.enqueue(f"command-{number}")
        await world.complete(await world.claim_one())
    assert _windows() - before <= 10


def _windows() -> int:
    gc.collect()
    return sum(isinstance(thing, Window) for thing in gc.get_objects())


async def test_what_a_new_database_holds_of_one_tenant_is_not_taken_for_another_s(world: World) -> None:
    """Scans must end at their own prefix: other names begin alike, or sort just before and after."""
    names = ["a", "a-", "a.", "aa", "b", "A", "a0", "a_", "az"]
    queued = {name: await world.enqueue_many(3, name, tenant=name) for name in names}
    await world.reopen()
    assert len(await world.store.counts(None)) == len(names)
    for name in names:
        assert sorted(ids(await world.find_all(tenant=name, limit=2))) == sorted(ids(queued[name]))
        assert sorted(ids(await world.drain(tenant=name))) == sorted(ids(queued[name]))


async def test_a_crash_after_any_write_leaves_counts_that_match_the_tasks(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch that reaches the database is copied as a killed process would leave it, and opened."""
    monkeypatch.setattr(pending, "WINDOW_TASKS_MAX", 2)
    monkeypatch.setattr(pending, "WINDOWS_TASKS_MAX", 3)
    world = worlds.open()
    crashes: list[str] = []
    write = database.Database.write

    def write_and_copy(self: database.Database, batch: object) -> None:
        write(self, batch)
        if world.path / "shard-0000" / "rocksdb" == self.path:
            crashes.append(f"crash-{len(crashes)}")
            worlds.engine.crash(world.path, worlds.folder / crashes[-1])

    monkeypatch.setattr(database.Database, "write", write_and_copy)
    for _ in range(3):
        for command in ("a", "b"):
            await world.enqueue_many(9, command)
            await world.enqueue_many(4, command, priority=5, delay_ms=10)
        world.clock.pass_ms(10)  # the claim promotes first, and must not write that while it pops tasks
        for task in await world.claim("a", "b", limit=8):
            await world.abandon(task) if task.lease_token == 1 else await world.complete(task)
        await world.claim("b", limit=5)
    monkeypatch.setattr(database.Database, "write", write)
    assert len(crashes) > 10
    for name in crashes:
        crashed = worlds.open(name)
        places = [(task.command, task.status) for task in await crashed.find_all()]
        for command in ("a", "b"):
            waiting, running = [places.count((command, status)) for status in (Status.PENDING, Status.IN_PROGRESS)]
            pending_, delayed, in_progress, _ = await crashed.counts(command)
            assert (pending_ + delayed, in_progress) == (waiting, running)
            assert len(await crashed.drain(command, limit=100)) == waiting
        await crashed.close()


async def test_nothing_is_left_on_disk_of_tasks_that_were_purged(world: World) -> None:
    for command in ("a", "b"):
        await world.enqueue_many(6, command, max_attempts=1)
        await world.enqueue(command, idempotency_key=f"k-{command}", delay_ms=10, max_attempts=1)
        world.clock.pass_ms(10)
        held = await world.claim(command, limit=7)
        await world.heartbeat(held[0])
        await world.sweep()
        ways = ("complete", "fail", "nack", "abandon", "cancel", "complete", "fail")
        for task, way in zip(held, ways, strict=True):
            await getattr(world, way)(task)
        await world.replay(held[2])
        for task in await world.claim(command, limit=7):
            await world.complete(task, b"1")
    world.clock.pass_ms(2 * KEEP_DEAD_MS)
    await world.sweep()
    await world.sweep()
    await world.store.trim(before_ms=0, keep_max=0)
    assert await world.store.registry.entries(KIND, TENANT) == [], "the registration of the worker has expired"
    await world.close()
    for shard in sorted(world.path.glob("shard-*")):
        files = database.Database(shard / "rocksdb")
        left = [key for key, _ in files.scan(b"\x00", b"\xff")]
        files.close()
        assert left == [b"m/events", b"m/format"]
