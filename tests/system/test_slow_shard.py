"""One shard's slow disk delays the calls that use this shard, and no others (13.6)."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import codeq
from codeq.domain.ids import shard_of, shard_of_key
from codeq.domain.queue import QueueKey
from codeq.domain.requests import Filter
from codeq.store.rocksdb.database import Database
from codeq.usecases.queries import find

SLOW, QUICK = 1, 0
WORK = QueueKey("default", "work")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds every fsync of shard 1, from when the event is cleared until it is set again."""
    go = threading.Event()
    go.set()
    flush = Database.flush

    def slow_flush(database: Database) -> int:
        if database.path.parent.name == "shard-0001":
            go.wait(20)
        return flush(database)

    monkeypatch.setattr(Database, "flush", slow_flush)
    yield go
    go.set()


def key_of(shard: int) -> str:
    return next(f"k{i}" for i in range(100) if shard_of_key("default", f"k{i}", 2) == shard)


def test_a_slow_shard_delays_no_call_of_another(tmp_path: Path, held: threading.Event) -> None:
    asyncio.run(_use_the_quick_shard(tmp_path, held))


def test_a_slow_shard_delays_no_sweeper_of_another(tmp_path: Path, held: threading.Event) -> None:
    asyncio.run(_wait_for_a_delayed_task_of_the_quick_shard(tmp_path, held))


async def _use_the_quick_shard(tmp_path: Path, held: threading.Event) -> None:
    async with await codeq.open_async(tmp_path / "data", shards=2) as queue:
        held.clear()
        stuck = asyncio.create_task(queue.enqueue("slow", idempotency_key=key_of(SLOW)))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            task = await queue.enqueue("work", idempotency_key=key_of(QUICK))
            assert shard_of(task.id) == QUICK
            [job] = await queue.claim("work")
            await queue.complete(job)
            assert not await queue.claim("nothing")
        assert not stuck.done()
        held.set()
        assert shard_of((await stuck).id) == SLOW


async def _wait_for_a_delayed_task_of_the_quick_shard(tmp_path: Path, held: threading.Event) -> None:
    async with await codeq.open_async(tmp_path / "data", shards=2) as queue:
        delayed = await queue.enqueue("work", delay=0.3, idempotency_key=key_of(QUICK))
        held.clear()
        stuck = asyncio.create_task(queue.enqueue("slow", delay=0.1, idempotency_key=key_of(SLOW)))
        async with asyncio.timeout(10):
            while not (counts := (await queue.core.store.counts("default")).get(WORK)) or not counts.pending:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert not stuck.done()
        held.set()
        await stuck
        assert shard_of(delayed.id) == QUICK


def test_a_list_shows_nothing_that_is_not_on_disk(tmp_path: Path, held: threading.Event) -> None:
    """(13.19) It returns once everything it shows would survive a power loss."""
    asyncio.run(_list_while_the_disk_is_slow(tmp_path, held))


async def _list_while_the_disk_is_slow(tmp_path: Path, held: threading.Event) -> None:
    async with await codeq.open_async(tmp_path / "data", shards=2) as queue:
        held.clear()
        stuck = asyncio.create_task(queue.enqueue("slow", idempotency_key=key_of(SLOW)))
        await asyncio.sleep(0.05)
        listing = asyncio.create_task(find(queue.core, "default", Filter()))
        await asyncio.sleep(0.2)
        assert not listing.done()
        held.set()
        assert [task.id for task in (await listing).tasks] == [(await stuck).id]
