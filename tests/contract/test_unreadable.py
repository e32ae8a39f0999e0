"""A record that cannot be read is set aside and reported; every other task goes on (13.2)."""

import pytest
from tests.contract.engines import FakeClock
from tests.contract.world import LEASE_MS, TENANT, World, ids

from codeq.cli import machine_checks
from codeq.domain.queue import QueueKey, QueuePolicy
from codeq.store import codec
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database, batch

WORK = QueueKey(TENANT, "work")
pytestmark = pytest.mark.parametrize("engine", ["rocksdb"], indirect=True)
BROKEN = b"\xc1 no record"


class Files:
    """The stored keys of a closed store of one shard."""

    def __init__(self, world: World) -> None:
        self._database = Database(world.path / "shard-0000" / "rocksdb")

    def keys(self, prefix: bytes) -> list[bytes]:
        return [key for key, _ in self._database.scan(prefix, keys.after(prefix))]

    def put(self, key: bytes, value: bytes = BROKEN) -> None:
        change = batch()
        change.put(key, value)
        self._database.write(change)

    def move(self, key: bytes, target: bytes) -> None:
        change = batch()
        change.put(target, self._database.get(key) or b"")
        change.delete(key)
        self._database.write(change)

    def close(self) -> None:
        self._database.close()


async def damaged(world: World, prefix: bytes, place: int = 0) -> None:
    """Closes the store, overwrites one entry, and opens it again."""
    await world.close()
    files = Files(world)
    files.put(files.keys(prefix)[place])
    files.close()
    world.open()


async def aside(world: World) -> list[bytes]:
    await world.close()
    files = Files(world)
    found = files.keys(keys.UNREADABLE)
    files.close()
    world.open()
    return found


async def test_one_delayed_task_that_cannot_be_read_spares_the_others(world: World) -> None:
    for _ in range(3):
        await world.enqueue(delay_ms=1_000)
    other = await world.enqueue(delay_ms=1_000, tenant="other")
    await damaged(world, keys.delayed_prefix(WORK))
    world.clock.now_ms += 2_000
    promoted, _, _ = await world.sweep()
    assert promoted == 3
    assert len(await world.claim("work", limit=5)) == 2
    assert ids(await world.claim("work", tenant="other")) == [other.id]
    assert await world.counts() == (0, 0, 2, 0)
    assert len(await aside(world)) == 1


async def test_a_delayed_entry_with_another_task_is_set_aside(world: World) -> None:
    await world.enqueue(delay_ms=1_000)
    await world.close()
    files = Files(world)
    [key] = files.keys(keys.delayed_prefix(WORK))
    files.move(key, keys.delayed(WORK, world.clock.now_ms + 1_500, 77))
    files.close()
    world.open()
    await world.enqueue(delay_ms=1_000)
    world.clock.now_ms += 2_000
    assert await world.sweep() == (1, 0, 0)
    assert len(await aside(world)) == 1


async def test_one_pending_task_that_cannot_be_read_spares_the_others(world: World) -> None:
    for _ in range(3):
        await world.enqueue()
    await damaged(world, keys.pending_prefix(WORK, 0), 1)
    assert len(await world.claim("work", limit=5)) == 2
    assert await world.counts() == (0, 0, 2, 0)
    assert len(await aside(world)) == 1


async def test_a_task_without_a_readable_body_is_not_delivered_and_stops_no_claim(world: World) -> None:
    for _ in range(3):
        await world.enqueue()
    await damaged(world, keys.body(TENANT, ""), 1)
    assert len(await world.claim("work", limit=5)) == 2


async def test_one_claim_that_cannot_be_read_spares_the_others(world: World) -> None:
    for _ in range(2):
        await world.enqueue()
        await world.claim("work")
    await damaged(world, keys.CLAIM_BATCHES)
    world.clock.now_ms += 10 * LEASE_MS
    _, expired, _ = await world.sweep()
    assert expired == 1


async def test_one_task_of_a_claim_that_cannot_be_read_spares_the_others_and_their_request_id(world: World) -> None:
    for _ in range(3):
        await world.enqueue()
    claimed = await world.claim("work", limit=3, request_id="again")
    await world.close()
    files = Files(world)
    [key] = files.keys(keys.CLAIM_BATCHES)
    items = [codec.encode(claimed[0]), codec.encode("no task"), codec.encode(claimed[2])]
    files.put(key, codec.claim_record(codec.joined(items), "again"))
    files.close()
    world.open()
    assert len(await aside(world)) == 1
    for _ in range(2):
        assert ids(await world.claim("work", limit=3, request_id="again")) == ids([claimed[0], claimed[2]])
        await world.reopen()


async def test_leases_of_a_store_of_the_format_before_request_ids_are_restored(world: World) -> None:
    await world.enqueue_many(2)
    held = await world.claim("work", limit=2)
    await world.close()
    files = Files(world)
    [key] = files.keys(keys.CLAIM_BATCHES)
    files.put(key, codec.joined([codec.encode(task) for task in held]))
    files.put(keys.FORMAT, keys.number(2))
    files.close()
    world.open()
    for task in held:
        await world.complete(task)


async def test_one_retention_entry_that_cannot_be_read_spares_the_others(world: World) -> None:
    for _ in range(3):
        await world.complete((await world.enqueue(), await world.claim_one("work"))[1])
    await damaged(world, keys.ENDED)
    world.clock.now_ms += 1 << 40
    assert (await world.sweep())[2] == 2
    assert len(await aside(world)) == 1


async def test_one_ended_task_that_cannot_be_read_spares_the_others(world: World) -> None:
    for _ in range(3):
        await world.complete((await world.enqueue(), await world.claim_one("work"))[1])
    await damaged(world, keys.current_record(TENANT, ""))
    world.clock.now_ms += 1 << 40
    assert (await world.sweep())[2] == 2
    assert (await world.sweep())[2] == 0


async def test_a_store_of_the_first_format_is_brought_to_the_present_one(world: World, clock: FakeClock) -> None:
    """Format 1 kept the delayed tasks of all queues in one order."""
    waiting = [await world.enqueue(command, delay_ms=delay) for command, delay in (("a", 9), ("b", 5), ("a", 7))]
    await world.close()
    files = Files(world)
    for key in files.keys(b"w/"):
        files.move(key, keys.DELAYED_FORMAT_1 + key[-16:])
    files.put(keys.FORMAT, keys.number(1))
    files.close()
    world.open()
    clock.now_ms += 10
    assert (await world.sweep())[0] == 3
    assert sorted(ids(await world.drain("a", "b"))) == sorted(ids(waiting))
    await world.close()
    files = Files(world)
    assert files.keys(keys.DELAYED_FORMAT_1) == []
    assert files._database.get(keys.FORMAT) == keys.number(codec.FORMAT)
    files.close()
    world.open()


async def test_the_doctor_names_what_was_set_aside(world: World) -> None:
    """While the store is open, and after."""
    assert machine_checks.records(world.path).state == "ok"
    await world.enqueue(delay_ms=1_000)
    await damaged(world, keys.delayed_prefix(WORK))
    world.clock.now_ms += 2_000
    await world.sweep()
    found = machine_checks.records(world.path)
    assert (found.state, found.detail.split(":")[0]) == ("problem", "1 or more could not be read and were set aside")
    assert keys.delayed_prefix(WORK).hex() in found.detail


async def test_counts_that_cannot_be_read_are_counted_again(world: World) -> None:
    for priority in (0, 0, 5):
        await world.enqueue(priority=priority)
    await world.enqueue(delay_ms=1_000)
    await world.dead()
    await world.claim("work")
    expected = await world.counts()
    await damaged(world, keys.COUNTS)
    assert await world.counts() == expected
    assert len(await world.claim("work", limit=9)) == 2
    world.clock.now_ms += 2_000
    assert len(await world.claim("work", limit=9)) == 1


async def test_a_policy_that_cannot_be_read_is_set_aside(world: World) -> None:
    await world.set_policy("work", QueuePolicy(max_attempts=7))
    await world.enqueue()
    await damaged(world, keys.POLICIES)
    assert world.store.policies() == {}
    assert len(await world.claim("work")) == 1


async def test_an_idempotency_key_whose_record_cannot_be_read_is_free_again(world: World) -> None:
    first = await world.enqueue(idempotency_key="k")
    await damaged(world, b"i/")
    again = await world.enqueue(idempotency_key="k")
    assert again.id != first.id
