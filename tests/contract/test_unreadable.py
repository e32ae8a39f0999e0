"""A record that cannot be read is set aside and reported; every other task goes on (13.2)."""

import asyncio
import contextlib
import random

import pytest
from tests.contract.engines import FakeClock
from tests.contract.world import LEASE_MS, TENANT, World, ids

from codeq.cli import machine_checks
from codeq.domain.errors import NotOwner, StoreBusy
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

    def get(self, key: bytes) -> bytes:
        return self._database.get(key) or b""

    def delete(self, key: bytes) -> None:
        change = batch()
        change.delete(key)
        self._database.write(change)

    def close(self) -> None:
        self._database.close()


async def damaged(world: World, prefix: bytes, place: int = 0, *, events: bool = False, value: bytes = BROKEN) -> None:
    """Closes the store, overwrites one entry, with `events` the events as well, and opens it again."""
    await world.close()
    files = Files(world)
    files.put(files.keys(prefix)[place], value)
    for key in files.keys(keys.EVENTS) if events else ():
        files.put(key)
    files.close()
    world.open()


async def aside(world: World, prefix: bytes = b"") -> list[bytes]:
    """Returns the keys that were set aside or reported."""
    await world.close()
    files = Files(world)
    found = files.keys(keys.UNREADABLE + prefix)
    files.close()
    world.open()
    return found


async def test_one_delayed_task_that_cannot_be_read_spares_the_others(world: World) -> None:
    for _ in range(3):
        await world.enqueue(delay_ms=1_000)
    other = await world.enqueue(delay_ms=1_000, tenant="other")
    await damaged(world, keys.delayed_prefix(WORK), events=True)
    world.clock.now_ms += 2_000
    promoted, _, _ = await world.sweep()
    assert promoted == 3
    assert len(await world.claim("work", limit=5)) == 2
    assert ids(await world.claim("work", tenant="other")) == [other.id]
    assert await world.counts() == (0, 0, 2, 0)
    assert len(await aside(world, keys.DELAYED)) == 1


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
    await damaged(world, keys.pending_prefix(WORK, 0), 1, events=True)
    assert len(await world.claim("work", limit=5)) == 2
    assert await world.counts() == (0, 0, 2, 0)
    assert len(await aside(world, keys.PENDING)) == 1


async def test_a_task_without_a_readable_body_is_not_delivered_and_stops_no_claim(world: World) -> None:
    for _ in range(3):
        await world.enqueue()
    await damaged(world, keys.body(TENANT, ""), 1)
    assert len(await world.claim("work", limit=5)) == 2


async def test_entries_that_cannot_be_read_are_restored_from_their_events(world: World) -> None:
    later = [(await world.enqueue(delay_ms=1_000)).id for _ in range(2)]
    pending = [(await world.enqueue()).id for _ in range(3)]
    await damaged(world, keys.pending_prefix(WORK, 0), 1)
    await damaged(world, keys.delayed_prefix(WORK), 1)
    assert ids(await world.claim("work", limit=5)) == pending
    world.clock.now_ms += 2_000
    assert await world.sweep() == (2, 0, 0)
    assert ids(await world.claim("work", limit=5)) == later
    assert len(await aside(world)) == 2


@pytest.mark.parametrize("value", [BROKEN, b"\x90", codec.joined([b"\xc0"])])
async def test_a_claim_that_cannot_be_read_is_restored_from_its_events(world: World, value: bytes) -> None:
    for _ in range(5):
        await world.enqueue()
    [first, second, third] = await world.claim("work", limit=3)
    other = await world.claim_one("work")
    await world.complete(second)
    await damaged(world, keys.CLAIM_BATCHES, value=value)
    assert await world.counts() == (1, 0, 3, 0)
    await world.complete(first)
    world.clock.now_ms += 10 * LEASE_MS
    assert await world.sweep() == (0, 2, 0)
    world.clock.now_ms += 10 * LEASE_MS
    await world.sweep()
    assert set(ids(await world.claim("work", limit=5))) >= {third.id, other.id}
    assert len(await aside(world)) == 1


async def test_tasks_of_a_claim_of_which_nothing_can_be_read_expire_like_any_lease(world: World) -> None:
    """Neither the claim nor its events: the tasks are found by their records."""
    for _ in range(3):
        await world.enqueue()
    await world.claim("work", limit=2)
    await damaged(world, keys.CLAIM_BATCHES, events=True)
    assert await world.counts() == (1, 0, 2, 0)
    world.clock.now_ms += 10 * LEASE_MS
    assert await world.sweep() == (0, 2, 0)


async def test_the_holder_of_a_lost_claim_is_refused(world: World) -> None:
    """Its lease token is not given to another delivery."""
    await world.enqueue()
    lost = await world.claim_one("work")
    await damaged(world, keys.CLAIM_BATCHES, events=True)
    with pytest.raises(NotOwner):
        await world.complete(lost)
    world.clock.now_ms += 10 * LEASE_MS
    await world.sweep()
    world.clock.now_ms += 10 * LEASE_MS
    await world.sweep()
    assert (await world.claim_one("work")).lease_token > lost.lease_token


async def test_a_claim_of_which_one_task_cannot_be_read_is_restored_with_its_request_id(world: World) -> None:
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
        assert ids(await world.claim("work", limit=3, request_id="again")) == ids(claimed)
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


WRONG_COUNTS = codec.encode([0, 0, 0, [], 0])
OF_ANOTHER_QUEUE = codec.with_checksum(keys.counts(QueueKey(TENANT, "other")), WRONG_COUNTS)


@pytest.mark.parametrize("value", [WRONG_COUNTS, OF_ANOTHER_QUEUE, b"\x94\0\0\0\x90"])
async def test_wrong_counts_that_decode_hide_no_task(world: World, value: bytes) -> None:
    for priority in (0, 0, 5):
        await world.enqueue(priority=priority)
    await world.enqueue(delay_ms=1_000)
    await damaged(world, keys.COUNTS, value=value)
    assert await world.counts() == (3, 1, 0, 0)
    assert len(await world.claim("work", limit=9)) == 3
    assert len(await aside(world)) == 1


async def test_counts_that_were_counted_again_are_stored(world: World) -> None:
    await world.enqueue()
    await damaged(world, keys.COUNTS)
    await world.close()
    files = Files(world)
    [key] = files.keys(keys.COUNTS)
    codec.without_checksum(key, files.get(key))
    files.close()
    world.open()


async def test_the_counts_of_the_second_format_are_taken_over(world: World) -> None:
    await world.enqueue()
    await world.close()
    files = Files(world)
    [key] = files.keys(keys.COUNTS)
    files.put(key, files.get(key)[:-4])
    files.put(keys.FORMAT, keys.number(2))
    files.close()
    world.open()
    assert await world.counts() == (1, 0, 0, 0)
    assert await aside(world) == []


@pytest.mark.parametrize("value", [BROKEN, b"\x90", codec.joined([b"\xc0", b"\xc0"])])
async def test_last_events_that_cannot_be_read_stop_nothing(world: World, value: bytes) -> None:
    """No number that one of them may have had is used again, and readers get what is before and behind."""
    first = await world.enqueue()
    await world.store.flush()
    lost = await world.enqueue()
    await damaged(world, keys.EVENTS, 1, value=value)
    later = await world.enqueue()
    assert later.version > lost.version
    read = await world.store.events(0, 1, 10)
    assert (read.start, ids(read.events)) == (1, [first.id])
    read = await world.store.events(0, 2, 10)
    assert (read.start, ids(read.events)) == (later.version, [later.id])
    assert ids(await world.claim("work", limit=5)) == [first.id, lost.id, later.id]
    world.clock.now_ms += 1 << 40
    await world.store.trim(before_ms=world.clock.now_ms, keep_max=1 << 40)
    assert len(await aside(world)) == 1


async def test_one_event_that_cannot_be_read_stops_its_readers_once(world: World) -> None:
    """Events are returned as they are stored. Who decodes them finds the one; the next read leaves its key out."""
    for _ in range(3):
        await world.enqueue()
        await world.store.flush()
    await damaged(world, keys.EVENTS, 1, value=codec.joined([b"\xc0"]))
    with pytest.raises(StoreBusy):
        _ = (await world.store.events(0, 1, 10)).events
    assert [task.version for task in (await world.store.events(0, 1, 10)).events] == [1]
    assert [task.version for task in (await world.store.events(0, 2, 10)).events] == [3]


async def test_the_first_number_of_the_log_is_found_again(world: World) -> None:
    await world.enqueue()
    await world.close()
    files = Files(world)
    files.put(keys.EVENTS_FIRST, keys.number(1 << 60))
    files.close()
    world.open()
    assert (await world.store.events(0, 1, 10)).first == 1
    assert (await world.enqueue()).version == 2


async def test_a_repair_finds_every_task_whatever_is_lost_but_its_record(world: World) -> None:
    """Pending, delayed, running, dead and ended tasks, counts and sums; and the doctor has nothing left to name."""
    await world.dead()
    ended = await world.enqueue()
    await world.complete(await world.claim_one("work"))
    for _ in range(2):
        await world.enqueue()
    running = await world.claim_one("work")
    await world.heartbeat(running)
    await world.enqueue(delay_ms=1_000)
    before = await world.counts()
    usage = await world.store.tenant_usage(TENANT)
    await world.sweep()
    await world.close()
    files = Files(world)
    for prefix in (keys.PENDING, keys.DELAYED, keys.DEAD, keys.CLAIM_BATCHES, keys.ENDED, keys.COUNTS, keys.USAGE):
        for key in files.keys(prefix):
            files.delete(key)
    files.put(keys.UNREADABLE + b"p/something", b"")
    files.close()
    found = await asyncio.to_thread(machine_checks.repair, world.path)
    assert (found.state, found.detail.split("; ")[1]) == ("ok", "4 tasks put back into a queue")
    assert machine_checks.records(world.path).state == "ok"
    world.open()
    assert await world.store.tenant_usage(TENANT) == usage
    pending, delayed, in_progress, dead = await world.counts()
    assert (pending + in_progress, delayed, dead) == (before[0] + before[2], before[1], before[3])
    await world.complete(running)
    world.clock.now_ms += 1 << 40
    assert (await world.sweep())[2] >= 3
    assert await world.is_gone(ended)


async def test_a_repair_counts_the_tasks_of_a_queue_that_has_no_counts(world: World) -> None:
    await world.enqueue()
    await world.enqueue("other", delay_ms=1_000)
    await world.close()
    files = Files(world)
    for key in files.keys(keys.COUNTS):
        files.delete(key)
    files.close()
    await asyncio.to_thread(machine_checks.repair, world.path)
    world.open()
    assert await world.counts() == (1, 0, 0, 0)
    assert await world.counts("other") == (0, 1, 0, 0)
    assert len(await world.claim("work")) == 1


async def test_a_delayed_task_outlives_its_record(world: World) -> None:
    """Its entry in the index has all that the record had."""
    await world.enqueue()
    task = await world.nack(await world.claim_one("work"), "again", delay_ms=1_000)
    await damaged(world, keys.current_record(TENANT, ""))
    world.clock.now_ms += 2_000
    assert await world.sweep() == (1, 0, 0)
    assert ids(await world.claim("work")) == [task.id]
    assert (await world.load(task)).attempts == 1


async def test_the_record_of_another_task_is_not_taken_for_the_tasks_own(world: World) -> None:
    first, second = await world.enqueue(payload=b"1"), await world.enqueue(payload=b"2")
    await world.close()
    files = Files(world)
    files.put(keys.body(TENANT, first.id), files.get(keys.body(TENANT, second.id)))
    files.close()
    world.open()
    assert await world.is_gone(first)
    assert ids(await world.claim("work", limit=2)) == [second.id]


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_an_entry_that_names_another_task_is_restored_from_its_event(world: World, is_claimed: bool) -> None:
    task = await world.enqueue(delay_ms=0 if is_claimed else 1_000)
    if is_claimed:
        await world.claim_one("work")
    prefix = keys.CLAIM_BATCHES if is_claimed else keys.DELAYED
    await world.close()
    files = Files(world)
    [key] = files.keys(prefix)
    changed = ("0" if task.id[-6] != "0" else "1") + task.id[-5:]
    files.put(key, files.get(key).replace(task.id.encode(), (task.id[:-6] + changed).encode()))
    files.close()
    world.open()
    world.clock.now_ms += 10 * LEASE_MS
    for _ in range(2):
        await world.sweep()
        world.clock.now_ms += 10 * LEASE_MS
    assert ids(await world.claim("work")) == [task.id]
    assert len(await aside(world)) == 1


async def busy_store(world: World) -> None:
    """Fills every kind of record."""
    await world.enqueue(idempotency_key="k")
    await world.enqueue(payload=b'"%b"' % (b"x" * 40_000))
    for delay_ms in (1_000, 2_000):
        await world.enqueue(delay_ms=delay_ms)
    await world.dead("other")
    for _ in range(3):
        await world.enqueue("other")
    [first, second, _] = await world.claim("other", limit=3)
    await world.complete(first, b'"%b"' % (b"x" * 40_000))
    await world.heartbeat(second)
    await world.sweep()
    await world.set_policy("work", QueuePolicy(max_attempts=7))


@pytest.mark.parametrize("prefix", [bytes([letter]) + b"/" for letter in b"btlripwhqxecyu"])
@pytest.mark.parametrize("kind", ["bit", "cut", "noise", "other"])
async def test_whatever_becomes_of_one_record_nothing_stops(world: World, prefix: bytes, kind: str) -> None:
    await busy_store(world)
    await world.close()
    files, randomness = Files(world), random.Random(f"{prefix!r} {kind}")
    stored = files.keys(prefix)
    key = randomness.choice(stored)
    files.put(key, spoiled(files.get(key), kind, randomness, files.get(randomness.choice(stored))))
    files.close()
    for _ in range(2):
        world.open()
        await world.store.counts(None, ages=True)
        await world.find_all()
        await read_all_events(world)
        await world.drain("work", "other")
        world.clock.now_ms += 10 * LEASE_MS
        await world.sweep()
        await world.store.trim(before_ms=world.clock.now_ms - 1, keep_max=3)
        await world.enqueue("more")
        await world.close()


def spoiled(value: bytes, kind: str, randomness: random.Random, other: bytes) -> bytes:
    if kind == "bit":
        place = randomness.randrange(len(value)) if value else 0
        return (
            value[:place]
            + bytes([(value[place : place + 1] or b"x")[0] ^ 1 << randomness.randrange(8)])
            + value[place + 1 :]
        )
    return {"cut": value[: len(value) // 2], "noise": randomness.randbytes(30), "other": other}[kind]


async def read_all_events(world: World) -> None:
    at = 1
    for _ in range(100):
        with contextlib.suppress(StoreBusy):
            read = await world.store.events(0, at, 5)
            at = read.start + len(read.events)
            if not read.records:
                return
    raise AssertionError("the events have no end")
