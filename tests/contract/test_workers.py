"""Who works: workers are listed with what they hold, cheaply, and what they tell about themselves decides nothing."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.contract.world import TENANT, World, ids

from codeq.domain.errors import InvalidRequest, NotOwner
from codeq.domain.limits import WORKER_CHANGE_MS, WORKER_REFRESH_MS, WORKER_TTL_MS, WORKERS_MAX
from codeq.domain.requests import Claim, Delivery
from codeq.domain.task import Move, Task
from codeq.domain.workers import WorkerInfo, WorkerStatus
from codeq.store.interface import ClaimRequest, Registration, Store
from codeq.usecases import claim as claiming
from codeq.usecases import queries, workers
from codeq.usecases.worker_registry import KIND

ANN = WorkerInfo(name="ann@box:7", host="box", pid=7, version="1.2", slots=4, commands=("resize", "crop"))

on_redis = pytest.mark.parametrize("engine", ["redis", "redis-cluster"], indirect=True)


async def claim(world: World, info: WorkerInfo | None = ANN, *, subject: str = "token", lease_ms: int | None = None,
                commands: tuple[str, ...] | None = ("resize",), tenant: str = TENANT) -> list[Task]:  # fmt: skip
    wanted = Claim(worker=subject, commands=commands, limit=10, lease_ms=lease_ms, info=info)
    return [each.task for each in await claiming.claim(world.core, tenant, wanted)]


async def listed(world: World, tenant: str = TENANT) -> list[WorkerStatus]:
    found = await workers.list_workers(world.core, tenant)
    assert found.is_complete
    return found.workers


class CountedPuts:
    """Counts what is written to the registry."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        put = type(world.store.registry).put

        async def counted(registry: object, entries: list[Registration]) -> None:
            self.number += 1
            await put(registry, entries)  # type: ignore[arg-type]

        monkeypatch.setattr(type(world.store.registry), "put", counted)


async def test_a_worker_is_listed_with_what_it_tells_and_what_it_holds(world: World) -> None:
    task = await world.enqueue("resize")
    assert ids(await claim(world)) == [task.id]
    now_ms = world.clock.now_ms
    assert await listed(world) == [
        WorkerStatus(
            name="ann@box:7", subject="token", host="box", pid=7, version="1.2", slots=4, commands=("resize", "crop"),
            first_seen_ms=now_ms, last_seen_ms=now_ms, holds=1, tasks=(task.id,),
        )
    ]  # fmt: skip
    assert await listed(world, "other") == []


async def test_every_event_of_a_delivery_names_the_worker_until_the_next_delivery(world: World) -> None:
    task = await world.enqueue("resize", max_attempts=2)
    for info in (ANN, None):
        [held] = await claim(world, info)
        await world.nack(held, delay_ms=0)
    named = [(each.move, each.worker_name) for each in await queries.history(world.core, TENANT, task.id)]
    assert named == [
        (Move.ENQUEUE, None), (Move.CLAIM, "ann@box:7"), (Move.NACK, "ann@box:7"), (Move.CLAIM, None), (Move.NACK, None)
    ]  # fmt: skip


async def test_the_name_survives_a_restart_with_its_task(world: World) -> None:
    task = await world.enqueue("resize")
    await claim(world)
    await world.store.flush()
    await world.reopen()
    [found] = await listed(world)
    assert (found.name, found.tasks, found.slots) == ("ann@box:7", (task.id,), 4)


async def test_a_name_gives_no_right_to_a_task(world: World) -> None:
    await world.enqueue("resize")
    [task] = await claim(world)
    with pytest.raises(NotOwner):
        await world.nack(replace(task, worker="ann@box:7"))
    await world.nack(task)


async def test_claims_write_a_registration_now_and_then_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = CountedPuts(world, monkeypatch)
    for _ in range(50):
        await claim(world)
    assert writes.number == 1
    world.clock.pass_ms(WORKER_REFRESH_MS)
    for _ in range(50):
        await claim(world)
    assert writes.number == 2


async def test_a_worker_that_tells_something_else_each_time_writes_once_a_second(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = CountedPuts(world, monkeypatch)
    for number in range(20):
        await claim(world, replace(ANN, slots=number))
    assert writes.number == 1
    world.clock.pass_ms(WORKER_CHANGE_MS)
    await claim(world, replace(ANN, slots=99))
    assert [each.slots for each in await listed(world)] == [99]


async def test_a_worker_that_claims_one_command_after_the_other_works_on_all_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = CountedPuts(world, monkeypatch)
    for _ in range(3):
        for command in ("a", "b"):
            await claim(world, None, commands=(command,))
    [found] = await listed(world)
    assert (found.commands, writes.number) == (("a", "b"), 2)
    for number in range(100):
        await claim(world, None, commands=(f"c{number}",))
    [found] = await listed(world)
    assert (len(found.commands or ()), writes.number) == (64, 64)


async def test_a_silent_worker_is_forgotten_and_one_that_stops_at_once(world: World) -> None:
    await claim(world)
    await claim(world, replace(ANN, name="bob"))
    assert await workers.leave(world.core, TENANT, "token", "bob")
    assert not await workers.leave(world.core, TENANT, "token", "bob")
    assert not await workers.leave(world.core, TENANT, "another", "ann@box:7"), "another token's worker"
    assert [each.name for each in await listed(world)] == ["ann@box:7"]
    world.clock.pass_ms(WORKER_TTL_MS)
    assert await listed(world) == []
    await claim(world)
    assert [each.name for each in await listed(world)] == ["ann@box:7"]


async def test_heartbeats_keep_a_busy_worker_on_the_list(world: World) -> None:
    await world.enqueue("resize")
    [task] = await claim(world, lease_ms=60_000)
    first_ms = world.clock.now_ms
    for _ in range(10):
        world.clock.pass_ms(20_000)
        await world.heartbeat(task, extend_ms=60_000)
    [found] = await listed(world)
    assert (found.first_seen_ms, found.last_seen_ms) == (first_ms, world.clock.now_ms)
    assert (found.slots, found.commands) == (4, ("resize", "crop"))


async def test_a_worker_with_long_leases_may_be_silent_for_as_long(world: World) -> None:
    await world.enqueue("resize")
    await claim(world, lease_ms=3_600_000)
    world.clock.pass_ms(1_200_000)
    assert [each.holds for each in await listed(world)] == [1]


async def test_what_cannot_be_the_name_of_a_worker_is_not_remembered(world: World) -> None:
    """A path may have thousands of characters, and ten thousand names are remembered. (13.20)"""
    for number in range(100):
        assert not await workers.leave(world.core, TENANT, "worker", f"{number}" + "n" * 10_000)
    assert not any(place[1] for place in world.core.workers._left)


async def test_a_worker_that_is_gone_is_listed_while_it_holds_tasks(world: World) -> None:
    task = await world.enqueue("resize")
    await claim(world)
    assert await workers.leave(world.core, TENANT, "token", "ann@box:7")
    [found] = await listed(world)
    assert (found.name, found.subject, found.last_seen_ms, found.tasks) == ("ann@box:7", "token", 0, (task.id,))
    assert not found.works_on("resize")


async def test_a_worker_without_a_name_is_known_by_its_token(world: World) -> None:
    await claim(world, None, commands=None)
    [found] = await listed(world)
    assert (found.name, found.subject, found.commands) == ("", "token", None)


async def test_that_nobody_works_on_a_command_is_known(world: World) -> None:
    for command in ("resize", "crop", "mail"):
        await world.enqueue(command)

    async def counts() -> dict[str, int]:
        return {each.key.command: each.workers for each in await queries.queues(world.core, TENANT)}

    assert await counts() == {"crop": 0, "mail": 0, "resize": 0}
    await claim(world)  # of one command, by a worker that knows two
    await claim(world, replace(ANN, name="bob"), tenant="other")
    assert await counts() == {"crop": 1, "mail": 0, "resize": 1}
    await claim(world, None, commands=None, subject="every")
    assert (await counts())["mail"] == 1
    world.clock.pass_ms(WORKER_TTL_MS)
    assert set((await counts()).values()) == {0}


async def test_two_tokens_may_use_the_same_name(world: World) -> None:
    await claim(world, subject="one")
    await claim(world, replace(ANN, slots=9), subject="two")
    assert [(each.subject, each.slots) for each in await listed(world)] == [("one", 4), ("two", 9)]


async def test_a_tenant_has_a_bounded_number_of_workers_and_others_still_work(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        Registration(kind=KIND, tenant=TENANT, name=f"w{n} token", value=b"", expires_ms=world.clock.now_ms + 10**6)
        for n in range(WORKERS_MAX - 1)
    ]
    await world.store.registry.put(entries)
    task = await world.enqueue("resize")
    await claim(world, replace(ANN, name="last"), commands=("crop",))
    assert ids(await claim(world)) == [task.id], "it is not listed, and gets its task"
    world.clock.pass_ms(WORKER_REFRESH_MS)
    await claim(world)
    assert len(await world.store.registry.entries(KIND, TENANT)) == WORKERS_MAX


async def test_a_heartbeat_does_not_list_a_worker_for_commands_that_it_did_not_name(world: World) -> None:
    """One that found no place on the list may find one later. Its heartbeats do not tell what it works on."""
    now_ms = world.clock.now_ms
    entries = [
        Registration(kind=KIND, tenant=TENANT, name=f"w{n} token", value=b"", expires_ms=now_ms + WORKER_REFRESH_MS)
        for n in range(WORKERS_MAX)
    ]
    await world.store.registry.put(entries)
    task = await world.enqueue("resize")
    [held] = await claim(world)
    world.clock.pass_ms(2 * WORKER_REFRESH_MS)
    await world.heartbeat(held)
    [found] = await listed(world)
    assert (found.name, found.commands, found.tasks) == (ANN.name, ("resize",), (task.id,))


async def test_the_largest_registration_is_small(world: World) -> None:
    long = WorkerInfo(
        name="n" * 100, host="h" * 100, pid=1 << 62, version="v" * 100, slots=100_000,
        commands=tuple(f"{n:02}" + "c" * 62 for n in range(64)),
    )  # fmt: skip
    await claim(world, long, commands=None)
    [entry] = await world.store.registry.entries(KIND, TENANT)
    assert len(entry.value) < 5000


@pytest.mark.parametrize(
    "bad",
    [
        WorkerInfo(name=""), WorkerInfo(name="two words"), WorkerInfo(name="line\n"), WorkerInfo(name="n" * 101),
        WorkerInfo(name="a", host="h" * 101), WorkerInfo(name="a", version="v\0"), WorkerInfo(name="a", pid=-1),
        WorkerInfo(name="a", slots=100_001), WorkerInfo(name="a", commands=("../x",)),
        WorkerInfo(name="a", commands=tuple(f"c{n}" for n in range(65))),
    ],
)  # fmt: skip
async def test_what_cannot_be_shown_is_refused(world: World, bad: WorkerInfo) -> None:
    with pytest.raises(InvalidRequest):
        await claim(world, bad)
    assert await listed(world) == []


async def test_a_call_that_began_before_its_worker_left_does_not_list_it_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await world.enqueue("resize")
    take = type(world.store).take

    async def leaves_meanwhile(store: Store, request: ClaimRequest) -> list[Delivery]:
        found = await take(store, request)
        await workers.leave(world.core, TENANT, "token", ANN.name)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(type(world.store), "take", leaves_meanwhile)
        [held] = await claim(world, lease_ms=60_000)
    assert held.id == task.id
    [gone] = await listed(world)
    assert gone.last_seen_ms == 0, "it is there for the task alone"
    await world.heartbeat(held, extend_ms=60_000)
    assert [each.last_seen_ms for each in await listed(world)] == [world.clock.now_ms], "it works on after all"


@on_redis  # on RocksDB nothing comes between a registration and its storing
async def test_a_registration_that_is_being_stored_is_removed_when_the_worker_leaves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = type(world.store.registry).put
    is_storing, go_on = asyncio.Event(), asyncio.Event()

    async def slow(registry: object, entries: list[Registration]) -> None:
        is_storing.set()
        await go_on.wait()
        await put(registry, entries)  # type: ignore[arg-type]

    monkeypatch.setattr(type(world.store.registry), "put", slow)
    claiming_now = asyncio.create_task(claim(world))
    await is_storing.wait()
    claiming_now.cancel()  # its caller disconnects
    await asyncio.gather(claiming_now, return_exceptions=True)
    leaving = asyncio.create_task(workers.leave(world.core, TENANT, "token", ANN.name))
    await asyncio.sleep(0)
    go_on.set()
    assert await leaving
    assert await listed(world) == []
    await claim(world)
    assert [each.name for each in await listed(world)] == [ANN.name]
