"""Tasks with large payloads and results: listed whole, read without their bodies, deleted without a rest."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.contract.engines import on_files
from tests.contract.world import TENANT, World, ids

from codeq.domain.limits import BATCH_BYTES_MAX, INLINE_BYTES_MAX, PAGE_BYTES_MAX, PAYLOAD_BYTES_MAX
from codeq.domain.queue import Index
from codeq.domain.requests import Filter, NewTask, Record
from codeq.domain.task import Task
from codeq.store.rocksdb import keys, records
from codeq.store.rocksdb.database import Database
from codeq.usecases import purge, queries

LARGE = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"'
TASKS = BATCH_BYTES_MAX // PAYLOAD_BYTES_MAX + 8


async def list_records(world: World, wanted: Filter | None = None) -> tuple[list[Record], int]:
    """Returns the records of all pages, and how many pages there were."""
    found: list[Record] = []
    cursor: str | None = None
    for pages in range(1, 100):
        page, cursor = await queries.find_records(world.core, TENANT, wanted or Filter(), cursor=cursor, limit=1000)
        assert sum(len(record.body.payload) for record in page) <= PAGE_BYTES_MAX + PAYLOAD_BYTES_MAX
        found += page
        if cursor is None:
            return found, pages
    raise AssertionError("the listing does not end")


async def enqueue_large(world: World, number: int, command: str = "work") -> list[Task]:
    return [await world.enqueue(command, payload=LARGE, max_attempts=1) for _ in range(number)]


async def test_a_list_shows_every_task_however_large(world: World) -> None:
    """A page ends where its bytes do, and the next one continues exactly there. (13.19)"""
    tasks = await enqueue_large(world, TASKS)
    records, pages = await list_records(world)
    assert sorted(ids(tasks)) == sorted(record.task.id for record in records)
    assert all(record.body.payload == LARGE for record in records)
    assert pages > 1


async def test_a_list_of_dead_tasks_shows_every_one_however_large(world: World) -> None:
    """(13.19)"""
    tasks = await enqueue_large(world, TASKS)
    for task in await world.drain("work", limit=8):
        await world.nack(task, "killed")
    for wanted in (Filter(index=Index.DEAD, error="killed"), Filter(index=Index.DEAD, command="work")):
        records, pages = await list_records(world, wanted)
        assert sorted(ids(tasks)) == sorted(record.task.id for record in records)
        assert pages > 1


@contextmanager
def counted_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts the bytes of every value that is read by key."""
    read: list[int] = []
    get, get_many = Database.get, Database.get_many

    def counting_get(self: Database, key: bytes) -> bytes | None:
        value = get(self, key)
        read.append(len(value or b""))
        return value

    def counting_get_many(self: Database, wanted: list[bytes]) -> list[bytes | None]:
        values = get_many(self, wanted)
        read.extend(len(value or b"") for value in values)
        return values

    with monkeypatch.context() as patch:
        patch.setattr(Database, "get", counting_get)
        patch.setattr(Database, "get_many", counting_get_many)
        yield read


async def test_states_lists_and_purges_do_not_read_payloads_and_results(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(13.16)"""
    [pending, _] = [await world.enqueue("wait", payload=LARGE, idempotency_key=f"k{i}") for i in range(2)]
    await world.enqueue("work", payload=LARGE, idempotency_key="key")
    done = (await world.complete(await world.claim_one("work"), result=LARGE)).task
    await world.reopen()
    with counted_bytes(monkeypatch) as read:
        await world.load(pending)
        await world.cancel(pending)
        assert len(await world.find_all()) == 3
        world.clock.pass_ms(1 << 40)
        assert (await world.sweep())[2] == 2
        assert await world.is_gone(done)
    assert sum(read) < PAYLOAD_BYTES_MAX // 2


@on_files
async def test_a_purged_task_leaves_nothing_behind(world: World) -> None:
    """(13.16)"""
    await world.enqueue("work", payload=LARGE, idempotency_key="key")
    done = (await world.complete(await world.claim_one("work"), result=LARGE)).task
    assert (await world.get(done)).result == LARGE
    await world.purge(done)
    for key in (keys.body, keys.current_record, keys.large_payload, keys.large_result):
        assert stored(world, key(TENANT, done.id)) == {None}
    assert stored(world, keys.idempotency(TENANT, "key")) == {None}


def stored(world: World, key: bytes) -> set[bytes | None]:
    return {shard._buffer.get(key) for shard in getattr(world.store, "_shards", [world.store])}


async def test_large_tasks_of_the_version_before_are_served_and_purged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stored every payload and every result inside the task's record. (13.16)"""
    with monkeypatch.context() as before:
        before.setattr(records, "INLINE_BYTES_MAX", 1 << 40)
        await world.enqueue("work", payload=LARGE, idempotency_key="key")
        done = (await world.complete(await world.claim_one("work"), result=LARGE)).task
        waiting = await world.enqueue("wait", payload=LARGE)
    await world.reopen()
    record = await world.get(done)
    assert (record.body.payload, record.result) == (LARGE, LARGE)
    assert len((await list_records(world))[0]) == 2
    [claimed] = await world.claim("wait")
    assert (await world.get(claimed)).body.payload == LARGE
    assert claimed.id == waiting.id
    await world.purge(done)
    assert (await world.enqueue("work", idempotency_key="key")).id != done.id


@pytest.mark.parametrize("extra", [-1, 0, 1])
async def test_contents_around_the_limit_of_a_record_are_kept(world: World, extra: int) -> None:
    """(13.16)"""
    content = b'"' + b"x" * (INLINE_BYTES_MAX - 2 + extra) + b'"'
    task = await world.enqueue("work", payload=content)
    await world.reopen()
    await world.complete(await world.claim_one("work"), result=content)
    await world.reopen()
    record = await world.get(task)
    assert (record.body.payload, record.result) == (content, content)


async def test_a_batch_of_large_tasks_is_stored_in_parts_and_whole(world: World) -> None:
    """Other calls run while 32 MB are stored. (13.16)"""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(count_turns())
    answers = await world.enqueue_all([NewTask(command="work", payload=LARGE)] * 30)
    others.cancel()
    assert turns >= 2
    assert sorted(ids([answer.task for answer in answers])) == sorted(ids(await world.find_all()))  # type: ignore[union-attr]


async def test_cleanup_deletes_by_the_time_of_the_purge(world: World) -> None:
    """Only what is ripe, only of the tenant, and up to the limit; a cursor spans entries of the index. (13.16)"""
    await world.enqueue_many(700)
    for task in await world.drain("work", limit=350):
        await world.complete(task)
    other = await world.enqueue("work", tenant="other")
    [claimed] = await world.claim("work", tenant="other")
    await world.complete(claimed)
    world.clock.pass_ms(1000)
    await world.enqueue("work")
    late = (await world.complete(await world.claim_one("work"))).task
    pending = await world.enqueue("work")
    before_ms = late.purge_ms - 1
    assert await purge.purge_before(world.core, TENANT, world.clock.now_ms, limit=1000) == 0
    assert await purge.purge_before(world.core, TENANT, before_ms, limit=300) == 300
    assert await purge.purge_before(world.core, TENANT, before_ms, limit=100_000) == 400
    assert sorted(ids(await world.find_all())) == sorted([late.id, pending.id])
    assert not await world.is_gone(other)
    assert await purge.purge_before(world.core, TENANT, before_ms + 1, limit=1) == 1


async def test_cleanup_with_nothing_ripe_reads_no_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """(13.16)"""
    await world.enqueue_many(2000)
    for task in (await world.claim("work", limit=1000))[:200]:
        await world.complete(task)
    await world.reopen()
    with counted_bytes(monkeypatch) as read:
        assert await purge.purge_before(world.core, TENANT, world.clock.now_ms, limit=1000) == 0
    assert len(read) == 0


async def test_a_bulk_operation_that_matches_nothing_lets_other_calls_run(world: World) -> None:
    """(13.16)"""
    await world.enqueue_many(3000, max_attempts=1)
    for task in await world.drain("work", limit=1000):
        await world.nack(task, "killed")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(count_turns())
    await asyncio.sleep(0)
    turns = 0
    result = await purge.purge(world.core, TENANT, Filter(error="nothing like it"), limit=10_000)
    others.cancel()
    assert result.matched == 0
    assert turns >= 1
