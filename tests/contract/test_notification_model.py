"""Every move of a queue's tasks in random order, against a model: each time it becomes non-empty is announced once."""

import random

import pytest
from tests.contract.test_notifications import listening, subscribe, told
from tests.contract.world import LEASE_MS, World, Worlds

from codeq.domain.queue import Index
from codeq.domain.requests import Filter
from codeq.domain.task import Task
from codeq.usecases.notify import ANNOUNCED_MS

STEPS = 300


class Model:
    """The moves, and what is known of the queue after each: whether it has been empty since it was announced."""

    def __init__(self, processes: list[World], seed: int) -> None:
        self.processes = processes
        self.cancels = [self.cancel_pending] if len(processes) == 1 else []  # elsewhere nobody knows what that empties
        self.dice = random.Random(seed)
        self.held: list[Task] = []
        self.is_announced = True
        self.announced_ms = 0
        self.depth = 0
        self.log: list[str] = []

    async def step(self) -> None:
        world = self.dice.choice(self.processes)
        moves = [
            self.enqueue, self.enqueue, self.enqueue_delayed, self.claim, self.claim, self.claim, self.abandon,
            self.nack, self.nack_delayed, self.cancel_delayed, self.cancel_held, self.promote, self.expire,
            self.complete, self.replay, *self.cancels,
        ]  # fmt: skip
        move = self.dice.choice(moves)
        await move(world)
        depth = (await world.counts())[0]
        if not depth:
            self.is_announced = True
        elif not self.depth:
            self.is_announced = False
        self.log.append(f"{self.processes.index(world)} {move.__name__}: {self.depth} -> {depth}")
        self.depth = depth

    def saw(self, found: list[str]) -> None:
        self.log += ["told"] * len(found)
        now_ms = self.processes[0].clock.now_ms
        for _ in found:
            assert self.depth, "announced while it is empty\n" + "\n".join(self.log[-25:])
            is_due_again = now_ms >= self.announced_ms + ANNOUNCED_MS
            assert not self.is_announced or is_due_again, "announced twice\n" + "\n".join(self.log[-25:])
            self.is_announced, self.announced_ms = True, now_ms

    def saw_all(self) -> None:
        assert self.is_announced, "not announced\n" + "\n".join(self.log[-25:])
        self.log.append("all have looked")

    def any_held(self) -> Task | None:
        return self.held.pop(self.dice.randrange(len(self.held))) if self.held else None

    async def any_stored(self, world: World, *, is_delayed: bool) -> Task | None:
        found = await world.find_all(Filter(command="work", index=Index.DELAYED if is_delayed else Index.PENDING))
        return self.dice.choice(found) if found else None

    async def enqueue(self, world: World) -> None:
        await world.enqueue(max_attempts=self.dice.choice((1, 3)))

    async def enqueue_delayed(self, world: World) -> None:
        await world.enqueue(delay_ms=self.dice.choice((10, 1_000_000)))

    async def claim(self, world: World) -> None:
        self.held += await world.claim("work", limit=self.dice.choice((1, 2, 5)))

    async def abandon(self, world: World) -> None:
        if task := self.any_held():
            await world.abandon(task)

    async def nack(self, world: World) -> None:
        if task := self.any_held():
            await world.nack(task, delay_ms=0)

    async def nack_delayed(self, world: World) -> None:
        if task := self.any_held():
            await world.nack(task, delay_ms=self.dice.choice((10, 1_000_000)))

    async def complete(self, world: World) -> None:
        if task := self.any_held():
            await world.complete(task)

    async def cancel_pending(self, world: World) -> None:
        if task := await self.any_stored(world, is_delayed=False):
            await world.cancel(task)

    async def cancel_delayed(self, world: World) -> None:
        if task := await self.any_stored(world, is_delayed=True):
            await world.cancel(task)

    async def cancel_held(self, world: World) -> None:
        if task := self.any_held():
            await world.cancel(task)

    async def promote(self, world: World) -> None:
        world.clock.pass_ms(10)
        await world.sweep()

    async def expire(self, world: World) -> None:
        if self.dice.random() < 0.1:
            world.clock.pass_ms(LEASE_MS)
            self.held.clear()
            await world.sweep()

    async def replay(self, world: World) -> None:
        dead = await world.find_all(Filter(command="work", index=Index.DEAD))
        if dead:
            await world.replay(self.dice.choice(dead))


async def follow(processes: list[World], seed: int) -> Model:
    model = Model(processes, seed)
    await subscribe(processes[0], ttl_ms=86_400_000)
    looks = [(process, await listening(process)) for process in processes]
    for _ in range(STEPS):
        await model.step()
        if model.dice.random() < 0.5:
            continue
        model.dice.shuffle(looks)
        for each, ready in looks:
            model.saw(await told(each, ready))
        model.saw_all()
    return model


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_moves_its_tasks_a_queue_is_announced_once_each_time_it_becomes_non_empty(
    world: World, seed: int
) -> None:
    model = await follow([world], seed)
    assert model.log.count("told") > 10, "this test is about announcements"


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
@pytest.mark.parametrize("seed", range(6))
async def test_and_one_of_several_processes_announces_it(worlds: Worlds, seed: int) -> None:
    model = await follow([worlds.open() for _ in range(3)], seed)
    assert model.log.count("told") > 10, "this test is about announcements"
