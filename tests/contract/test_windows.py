"""Queues longer than their read-ahead in memory: still first in first out, none lost, none twice.

The limits of the engine's read-ahead are made small, so that a few tasks take every path that millions would.
"""

import random

import pytest
from tests.contract.world import TENANT, World, by_shard, ids

from codeq.domain.ids import shard_of
from codeq.domain.limits import WINDOW_TASKS_MAX
from codeq.domain.requests import Filter, NewTask
from codeq.domain.task import Status, Task
from codeq.store import codec
from codeq.store.rocksdb import pending
from codeq.usecases import cancel


@pytest.fixture(params=[(1, 1, 0), (2, 3, 8), (4, 9, 1 << 20), (3, 1000, 0)], ids=str)
def tiny(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks per window, tasks in all windows, payload bytes in all windows."""
    window, windows, body_bytes = request.param
    monkeypatch.setattr(pending, "WINDOW_TASKS_MAX", window)
    monkeypatch.setattr(pending, "WINDOWS_TASKS_MAX", windows)
    monkeypatch.setattr(pending, "WINDOW_BODY_BYTES_MAX", body_bytes)


async def test_a_queue_longer_than_its_window_is_served_in_order(world: World) -> None:
    queued = await world.enqueue_many(3 * world.store.shards * WINDOW_TASKS_MAX + 100)
    taken = await world.drain(limit=1000)
    assert by_shard(taken) == by_shard(queued)


async def test_a_long_queue_that_grows_while_it_is_drained_stays_in_order(world: World) -> None:
    queued = await world.enqueue_many(world.store.shards * (WINDOW_TASKS_MAX + 50))
    taken: list[Task] = []
    for number in range(40):
        queued += await world.enqueue_many(20)
        taken += await world.claim(limit=60 + number)
    assert (await world.counts())[0] == len(queued) - len(taken)
    taken += await world.drain(limit=777)
    assert by_shard(taken) == by_shard(queued)


async def test_tasks_cancelled_in_the_middle_of_a_long_queue_are_skipped(world: World) -> None:
    queued = await world.enqueue_many(world.store.shards * 2 * WINDOW_TASKS_MAX)
    gone = set(ids(queued[::7]) + ids(queued[-50:]))
    for task in queued:
        if task.id in gone:
            await world.cancel(task)
    taken = await world.drain(limit=500)
    assert by_shard(taken) == by_shard([task for task in queued if task.id not in gone])
    assert await world.counts() == (0, 0, len(queued) - len(gone), 0)


async def test_a_long_queue_survives_reopening_in_the_middle(world: World) -> None:
    queued = await world.enqueue_many(world.store.shards * 2 * WINDOW_TASKS_MAX)
    taken = await world.claim(limit=700)
    await world.reopen()
    queued += await world.enqueue_many(100)
    taken += await world.drain(limit=999)
    assert by_shard(taken) == by_shard(queued)


@pytest.mark.usefixtures("tiny")
async def test_a_tiny_window_keeps_the_order(world: World) -> None:
    queued = await world.enqueue_many(40)
    taken: list[Task] = []
    for number in range(30):
        queued.append(await world.enqueue())
        taken += await world.claim(limit=1 + number % 3)
    taken += await world.drain()
    assert by_shard(taken) == by_shard(queued)


@pytest.mark.usefixtures("tiny")
async def test_many_queues_that_crowd_each_other_out_of_memory_keep_their_order(world: World) -> None:
    commands = [f"c{number}" for number in range(8)]
    queued: list[Task] = []
    taken: list[Task] = []
    for number in range(30):
        queued += [await world.enqueue(command, priority=number % 3, payload=b"12345678") for command in commands]
        taken += await world.claim(commands[number % 8], limit=4)
        await world.store.counts(None, ages=True)
    taken += await world.drain(limit=5)
    assert sorted(ids(taken)) == sorted(ids(queued))
    assert await world.counts("c0") == (0, 0, 30, 0)


@pytest.mark.usefixtures("tiny")
async def test_crowded_queues_are_each_served_by_priority_and_then_in_order(world: World) -> None:
    commands = ["a", "b", "c"]
    queued = [await world.enqueue(command, priority=number % 2) for number in range(12) for command in commands]
    for command in commands:
        wanted = sorted([task for task in queued if task.command == command], key=lambda task: -task.priority)
        assert by_shard(await world.drain(command, limit=2)) == by_shard(wanted)


@pytest.mark.usefixtures("tiny")
async def test_a_claim_over_crowded_queues_takes_the_highest_priority_first(world: World) -> None:
    for number in range(10):
        for command in ("a", "b", "c"):
            await world.enqueue(command, priority=number)
    taken = await world.claim("a", "b", "c", limit=30)
    for shard in range(world.store.shards):
        of_shard = [task.priority for task in taken if shard_of(task.id) == shard]
        assert of_shard == sorted(of_shard, reverse=True)
    assert len(set(ids(taken))) == 30


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("seed", range(3))
async def test_any_mixture_of_calls_on_crowded_queues_loses_and_repeats_nothing(world: World, seed: int) -> None:
    mixture = Mixture(world, random.Random(seed))
    calls = [mixture.enqueue] * 4 + [mixture.claim] * 3 + [mixture.cancel, mixture.look, mixture.reopen]
    for _ in range(100):
        await mixture.dice.choice(calls)()
        await mixture.check_counts()
    for task in await world.drain(limit=3):
        assert mixture.line(task).pop(0) == task.id
    assert not any(mixture.waiting.values())
    assert await world.find_all(Filter(status=Status.PENDING)) == []


class Mixture:
    """Random calls, and the expected content of each queue after them."""

    commands = ("a", "b", "c", "d")

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.waiting: dict[tuple[str, int, int], list[str]] = {}

    def line(self, task: Task) -> list[str]:
        return self.waiting.setdefault((task.command, task.priority, shard_of(task.id)), [])

    async def enqueue(self) -> None:
        command, priority = self.dice.choice(self.commands), self.dice.randint(0, 2)
        for task in await self.world.enqueue_many(self.dice.randint(1, 4), command, priority=priority):
            self.line(task).append(task.id)

    async def claim(self) -> None:
        some = self.dice.sample(self.commands, self.dice.randint(1, 4))
        for task in await self.world.claim(*some, limit=self.dice.randint(1, 6)):
            assert self.line(task).pop(0) == task.id
            if self.dice.random() < 0.4:
                await self.world.abandon(task)
                self.line(task).append(task.id)
            else:
                await self.world.complete(task)

    async def cancel(self) -> None:
        lines = [line for line in self.waiting.values() if line]
        if lines:
            line = self.dice.choice(lines)
            gone = line.pop(self.dice.randrange(len(line)))
            await cancel.cancel(self.world.core, TENANT, [gone])

    async def look(self) -> None:
        await self.world.store.counts(TENANT, ages=True)

    async def reopen(self) -> None:
        if self.dice.random() < 0.5:
            await self.world.reopen()

    async def check_counts(self) -> None:
        counted = {key.command: counts.pending for key, counts in (await self.world.store.counts(TENANT)).items()}
        for command in self.commands:
            wanted = sum(len(line) for key, line in self.waiting.items() if key[0] == command)
            assert counted.get(command, 0) == wanted


async def test_claims_over_many_backlogged_queues_read_little_more_than_they_take(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(13.9) Each queue read 1,024 tasks ahead, and the next ones pushed them out of memory before they were used."""
    monkeypatch.setattr(pending, "WINDOWS_TASKS_MAX", 2_000)
    commands = [f"c{i}" for i in range(300)]
    for command in commands:
        await world.enqueue_all([NewTask(command=command) for _ in range(40)])
    await world.reopen()
    read = 0

    def counted(value: bytes) -> Task:
        nonlocal read
        read += 1
        return codec.decode_task(value)

    monkeypatch.setattr(pending, "decode_task", counted)
    claimed = [task for _ in range(5) for command in commands for task in await world.claim(command)]
    assert len(claimed) == 5 * len(commands)
    assert read < 8 * len(claimed) * world.store.shards
