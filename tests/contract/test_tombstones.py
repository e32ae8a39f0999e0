"""No scan passes what was processed or deleted before: deleted keys cost it as much as living ones (13.10)."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from rocksdict import Options
from tests.contract.world import World, ids

from codeq.domain.requests import NewTask
from codeq.store.rocksdb import database, keys
from codeq.store.rocksdb.database import Database
from codeq.usecases import sweep

pytestmark = pytest.mark.parametrize("engine", ["rocksdb"], indirect=True)


async def test_promoting_tasks_of_one_time_starts_where_the_last_sweep_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [NewTask(command="work", run_at_ms=world.clock.now_ms + 1_000) for _ in range(500)]
    await world.enqueue_all(tasks)
    world.clock.now_ms += 2_000
    starts: list[bytes] = []
    scan = Database.scan

    def noted(opened: Database, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        if start.startswith(b"w/"):
            starts.append(start)
        return scan(opened, start, end)

    monkeypatch.setattr(Database, "scan", noted)
    while await sweep.promote_due(world.core, 50):
        pass
    passed = [(b - a) for a, b in zip(map(version, starts), map(version, starts[1:]), strict=False)]
    assert len(passed) >= 9
    assert min(passed[1:9]) >= 50, "a sweep began where an earlier one had begun"


def version(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


async def test_a_listing_ends_before_what_another_tenant_has_purged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.enqueue(tenant="b")
    seen: list[bytes] = []
    scan_back = Database.scan_back

    def noted(opened: Database, start: bytes, end: bytes) -> Iterator[bytes]:
        for key in scan_back(opened, start, end):
            seen.append(key)
            yield key

    monkeypatch.setattr(Database, "scan_back", noted)
    assert len(await world.find_all(tenant="b")) == 1
    assert seen[-1] == keys.BODIES + keys.name("b"), "nothing stops the scan before the tenant's first task"


class Skipped:
    """Counts the deleted keys that RocksDB's iterators pass, by its own statistics."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make = database._options

        def counting(**given: Any) -> Options:
            self._options = make(**given)
            self._options.enable_statistics()
            return self._options

        monkeypatch.setattr(database, "_options", counting)

    @property
    def keys(self) -> int:
        found = re.search(r"rocksdb\.number\.iter\.skip COUNT : (\d+)", self._options.get_statistics() or "")
        assert found is not None
        return int(found[1])


async def test_a_list_of_one_tenant_costs_the_same_after_another_was_purged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = Skipped(monkeypatch)
    await world.reopen()
    wanted = await world.enqueue_many(3, tenant="b")
    for task in await world.enqueue_many(2_000, tenant="a"):
        await world.cancel(task)
    world.clock.now_ms += 1 << 40
    while (await world.sweep())[2]:
        pass
    assert await world.find_all(tenant="a") == []
    before = skipped.keys
    assert sorted(ids(await world.find_all(tenant="b"))) == sorted(ids(wanted))
    assert skipped.keys - before < 100, "the list has passed what the other tenant has deleted"
