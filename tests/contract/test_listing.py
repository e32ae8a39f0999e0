"""Listing tasks, a bounded page at a time, and missing none."""

import pytest
from tests.contract.world import TENANT, World, ids

from codeq.domain import lifecycle
from codeq.domain.errors import InvalidRequest
from codeq.domain.ids import shard_of
from codeq.domain.queue import Index
from codeq.domain.requests import Filter
from codeq.domain.task import Status, Task
from codeq.usecases import queries


async def zoo(world: World) -> list[Task]:
    """Enqueues tasks of two commands, and moves some into every index."""
    for command in ("a", "b"):
        await world.enqueue_many(4, command, max_attempts=1)
        held = await world.claim(command, limit=4)
        await world.complete(held[0])
        await world.fail(held[1], "disk on fire")
        await world.nack(held[2], "no such host")
        await world.enqueue(command, delay_ms=1_000)
        await world.cancel(await world.enqueue(command, delay_ms=1_000))
        await world.enqueue_many(3, command)
        world.clock.pass_ms(1_000)
    found = await world.find_all()
    assert len(found) == 18
    return found


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(),
        Filter(command="a"),
        Filter(command="none"),
        *(Filter(status=status) for status in Status),
        *(Filter(index=index) for index in Index),
        *(Filter(index=index, command="b") for index in Index),
        Filter(error="fire"),
        Filter(error="host", index=Index.DEAD),
        Filter(error="MAX_ATTEMPTS"),
        Filter(created_from_ms=1_700_000_000_001),
        Filter(created_to_ms=1_700_000_000_001),
        Filter(created_from_ms=1_700_000_000_000, created_to_ms=1_700_000_000_000),
        Filter(command="a", status=Status.FAILED, index=Index.DEAD, error="no such"),
    ],
    ids=str,
)
async def test_a_filter_finds_exactly_what_matches_whatever_the_page_size(world: World, wanted: Filter) -> None:
    everything = await zoo(world)
    matching = {task.id for task in everything if _matches(task, wanted)}
    for limit in (1, 2, 5, 100):
        found = ids(await world.find_all(wanted, limit=limit))
        assert len(found) == len(set(found))
        assert set(found) == matching


def _matches(task: Task, wanted: Filter) -> bool:
    places = {
        Status.PENDING: Index.DELAYED if task.visible_ms else Index.PENDING,
        Status.IN_PROGRESS: Index.IN_PROGRESS,
        Status.FAILED: Index.NONE if task.move == "fail" else Index.DEAD,
    }
    return (
        wanted.command in (None, task.command)
        and wanted.status in (None, task.status)
        and wanted.index in (None, places.get(task.status, Index.NONE))
        and (wanted.error is None or wanted.error in f"{task.error} {task.last_error}")
        and wanted.created_from_ms <= task.created_ms < wanted.created_to_ms
    )


async def test_a_listing_is_newest_first(world: World) -> None:
    queued = await world.enqueue_many(20)
    found = await world.find_all(limit=3)
    for shard in range(world.store.shards):
        newest_first = [task.id for task in reversed(queued) if shard_of(task.id) == shard]
        assert [task.id for task in found if shard_of(task.id) == shard] == newest_first


async def test_a_full_last_page_has_no_cursor(world: World) -> None:
    await world.enqueue_many(6)
    page = await queries.find(world.core, TENANT, Filter(), limit=6)
    assert len(page.tasks) == 6
    while page.cursor is not None:
        page = await queries.find(world.core, TENANT, Filter(), cursor=page.cursor, limit=6)
        assert page.tasks == []


async def test_a_page_that_finds_nothing_still_ends(world: World) -> None:
    await world.enqueue_many(50)
    page = await queries.find(world.core, TENANT, Filter(status=Status.COMPLETED), limit=1)
    assert page.tasks == []
    assert page.cursor is None


async def test_a_page_looks_at_a_bounded_number_of_records(world: World) -> None:
    needle = await world.enqueue("needle")
    await world.enqueue_many(16_000, "hay")
    pages, found, cursor = 0, [], None
    while True:
        page = await queries.find(world.core, TENANT, Filter(command="needle"), cursor=cursor, limit=10)
        pages, cursor = pages + 1, page.cursor
        found += page.tasks
        if cursor is None:
            break
    assert pages > 1
    assert ids(found) == [needle.id]


async def test_tasks_that_come_and_go_between_pages_do_not_hide_the_others(world: World) -> None:
    queued = await world.enqueue_many(30)
    page = await queries.find(world.core, TENANT, Filter(), limit=10)
    seen = ids(page.tasks)
    for task in page.tasks[:5]:
        await world.purge(await world.cancel(task))
    await world.enqueue_many(10)
    while page.cursor is not None:
        page = await queries.find(world.core, TENANT, Filter(), cursor=page.cursor, limit=10)
        seen += ids(page.tasks)
    assert set(ids(queued)) <= set(seen)
    assert len(seen) == len(set(seen))


async def test_a_short_listing_ends_at_once_whatever_other_tenants_keep(world: World) -> None:
    mine = await world.enqueue_many(2, tenant="mmm")
    for neighbour in ("lll", "nnn"):
        for _ in range(20):
            await world.enqueue_many(1000, tenant=neighbour)
    found: list[Task] = []
    cursor: str | None = None
    for _ in range(world.store.shards):
        page = await queries.find(world.core, "mmm", Filter(), cursor=cursor, limit=10)
        found, cursor = found + page.tasks, page.cursor
        if cursor is None:
            break
    assert cursor is None
    assert sorted(ids(found)) == sorted(ids(mine))


async def test_the_dead_letter_queue_is_listed_by_command_and_as_a_whole(world: World) -> None:
    dead = [await world.dead(command) for command in ("a", "b", "a", "c", "a", "b")]
    assert sorted(ids(await world.find_all(Filter(index=Index.DEAD), limit=2))) == sorted(ids(dead))
    of_a = await world.find_all(Filter(index=Index.DEAD, command="a"), limit=1)
    assert sorted(ids(of_a)) == sorted(task.id for task in dead if task.command == "a")
    await world.replay(dead[0])
    await world.purge(dead[1])
    assert sorted(ids(await world.find_all(Filter(index=Index.DEAD)))) == sorted(ids(dead[2:]))


@pytest.mark.parametrize("cursor", ["", "x", "9999:", "0:zz", "-1:", "\x00", "1" * 500])
@pytest.mark.parametrize("wanted", [Filter(), Filter(index=Index.DEAD)], ids=["all", "dead"])
async def test_a_bad_cursor_is_refused_or_finds_nothing_new(world: World, cursor: str, wanted: Filter) -> None:
    await world.dead()
    try:
        page = await queries.find(world.core, TENANT, wanted, cursor=cursor, limit=10)
    except InvalidRequest:
        return
    assert len(page.tasks) <= 1


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_has_a_sensible_length(world: World, limit: int) -> None:
    with pytest.raises(InvalidRequest):
        await queries.find(world.core, TENANT, Filter(), limit=limit)


async def test_counting_every_tenant_s_queues_with_ages_while_one_has_just_emptied(world: World) -> None:
    for command in ("a", "b", "c"):
        await world.enqueue_many(3, command)
    await world.reopen()
    held = await world.claim("b", limit=3)
    now_ms = world.clock.now_ms
    await world.store.commit([lifecycle.cancel(task, now_ms, retention_ms=1_000) for task in held])
    counts = await world.store.counts(None, ages=True)
    assert {key.command: count.pending for key, count in counts.items()} == {"a": 3, "c": 3}
