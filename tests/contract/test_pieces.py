"""Large batches are stored, claimed and moved in pieces, between which other calls run. Callers see no difference."""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from time import perf_counter

import msgspec
import pytest
from tests.contract.world import LEASE_MS, TENANT, World, accepted, ids

from codeq.domain.errors import CodeqError
from codeq.domain.limits import (
    BATCH_PIECE_MAX,
    BATCH_TASKS_MAX,
    CLAIM_COMMANDS_MAX,
    LOOP_SHARED_HOLD_MS,
    PIECE_BYTES_MAX,
    SHORT_BATCH_MAX,
    WORKERS_MAX,
)
from codeq.domain.queue import QueueKey
from codeq.domain.requests import Claim, Delivery, NewTask
from codeq.domain.workers import WorkerStatus
from codeq.store.interface import ClaimRequest, Registration
from codeq.usecases import claim as claiming
from codeq.usecases import events, queries
from codeq.usecases.enqueue import Enqueued
from codeq.usecases.worker_registry import KIND

MANY = 3 * BATCH_PIECE_MAX


async def test_other_calls_run_while_a_large_batch_is_stored(world: World) -> None:
    """(13.16)"""
    world.core.turns.note_short_call("other", perf_counter() + 60)  # so that pieces are short
    storing = asyncio.create_task(world.enqueue_many(BATCH_TASKS_MAX, "large"))
    await asyncio.sleep(0)
    await world.enqueue("small")
    assert not storing.done()
    assert len(await storing) == BATCH_TASKS_MAX


async def test_a_tenant_with_many_reads_of_events_reads_no_faster_than_one_with_a_single_read(world: World) -> None:
    """(13.21)"""
    await world.enqueue_many(60)
    pieces: list[str] = []

    async def scan(tenant: str) -> None:
        async def note(found: events.Events) -> int:
            pieces.append(tenant)
            return len(found.records)

        await events.scan(world.core, 0, 1, 60, each=note, tenant=tenant, piece=4)

    async with asyncio.TaskGroup() as readers:
        for _ in range(8):
            readers.create_task(scan("greedy"))
        readers.create_task(scan("modest"))
    read = pieces.count("modest")
    assert read > 2
    last = len(pieces) - pieces[::-1].index("modest")
    assert last <= 2 * read + 8, "the greedy tenant had more than every other piece, after the first looks"


async def test_a_cancelled_read_of_events_lets_the_next_one_read(world: World) -> None:
    async with asyncio.TaskGroup() as readers, world.core.event_reads.held("first"):
        waiting = [readers.create_task(world.core.event_reads.held("second").__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    async with asyncio.timeout(5):
        await waiting[1]


async def test_many_who_look_for_events_do_so_one_after_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(13.16)"""
    await world.enqueue_many(20)
    world.core.turns.note_short_call("other", perf_counter() + 60)  # so that pieces are short
    looks: Counter[int] = Counter()
    iteration = 0
    look = world.core.store.events

    async def note(*wanted: int) -> events.Events:
        looks[iteration] += 1
        until_s = perf_counter() + LOOP_SHARED_HOLD_MS / 1000
        while perf_counter() < until_s:  # a look at a long log takes about as long
            pass
        return await look(*wanted)

    monkeypatch.setattr(type(world.core.store), "events", lambda _, *wanted: note(*wanted))
    calls = [asyncio.create_task(events.first_at(world.core, 0, 1 << 60, tenant="greedy")) for _ in range(8)]
    calls += [asyncio.create_task(events.read(world.core, 0, 1, 20, tenant="greedy")) for _ in range(8)]  # type: ignore[arg-type]
    while not all(call.done() for call in calls):
        iteration += 1
        await asyncio.sleep(0)
    assert max(looks.values()) == 1


async def test_the_answers_to_a_large_batch_are_in_its_order(world: World) -> None:
    """(13.16)"""
    new_tasks = [NewTask(command=f"work-{i}" if i % 7 else "no such name!", payload=b"%d" % i) for i in range(MANY)]
    answers = await world.enqueue_all(new_tasks)
    for place, answer in enumerate(answers):
        if place % 7:
            assert isinstance(answer, Enqueued)
            assert answer.body.payload == b"%d" % place
        else:
            assert isinstance(answer, CodeqError)


async def test_a_key_that_a_large_batch_repeats_makes_one_task(world: World) -> None:
    """The repeats are in other pieces of the batch. (13.16)"""
    new_tasks = [NewTask(command="work", payload=b"%d" % i, idempotency_key=f"key-{i % 100}") for i in range(MANY)]
    answers = [accepted(answer) for answer in await world.enqueue_all(new_tasks)]
    assert [answer.is_replay for answer in answers] == [place >= 100 for place in range(MANY)]
    assert all(answer.task.id == answers[place % 100].task.id for place, answer in enumerate(answers))
    assert await world.counts() == (100, 0, 0, 0)


async def test_a_large_claim_is_in_order_and_complete(world: World) -> None:
    """(13.16)"""
    tasks = await world.enqueue_many(MANY, priority=1)
    first = await world.enqueue_many(MANY, priority=2)
    claimed = await world.claim("work", limit=2 * MANY)
    assert set(ids(claimed[:MANY])) == set(ids(first))
    assert set(ids(claimed[MANY:])) == set(ids(tasks))


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_large_claim_takes_short_pieces_while_others_make_calls_where_each_costs_no_round_trip(
    world: World, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    """(13.16)"""
    await world.enqueue_many(MANY)
    if is_shared:
        world.core.turns.note_short_call("other", perf_counter() + 60)
    limits: list[int] = []
    store = world.core.store
    take = store.take

    def counted(request: ClaimRequest) -> Awaitable[list[Delivery]]:
        limits.append(request.limit)
        return take(request)

    monkeypatch.setattr(store, "take", counted)
    assert len(await world.claim("work", limit=MANY)) == MANY
    assert max(limits) == (SHORT_BATCH_MAX if store.is_local and is_shared else BATCH_PIECE_MAX)


async def test_a_large_claim_is_also_cut_into_pieces_by_its_bytes(world: World) -> None:
    """(13.16)"""
    payload = b'"' + b"x" * (PIECE_BYTES_MAX // 2) + b'"'
    tasks = await world.enqueue_many(9, payload=payload)
    assert set(ids(await world.claim("work", limit=1000))) == set(ids(tasks))


async def test_a_claim_whose_caller_leaves_between_two_pieces_hands_everything_back(world: World) -> None:
    """(13.16)"""
    await world.enqueue_many(BATCH_TASKS_MAX)
    world.core.turns.note_short_call("other", perf_counter() + 60)  # so that pieces are short
    claiming = asyncio.create_task(world.claim("work", limit=BATCH_TASKS_MAX))
    while (taken := (await world.counts())[2]) <= BATCH_PIECE_MAX:  # noqa: ASYNC110 - there is no event for this
        await asyncio.sleep(0)
    assert taken < BATCH_TASKS_MAX
    claiming.cancel()
    await asyncio.wait([claiming])
    assert claiming.cancelled()
    while (await world.counts())[2]:  # noqa: ASYNC110 - on Redis a piece that is under way returns a moment later
        await asyncio.sleep(0)
    assert await world.counts() == (BATCH_TASKS_MAX, 0, 0, 0)
    assert all(task.attempts == 0 for task in await world.claim("work", limit=BATCH_TASKS_MAX))


async def test_a_large_claim_that_is_sent_again_gets_all_of_its_pieces_and_no_others(world: World) -> None:
    """(13.16)"""
    await world.enqueue_many(MANY + 10)
    first = await world.claim("work", limit=MANY, request_id="again")
    assert len(set(ids(first))) == MANY
    for _ in range(2):
        again = await world.claim("work", limit=MANY, request_id="again")
        assert sorted(ids(again)) == sorted(ids(first))
        assert await world.counts() == (10, 0, MANY, 0)
        await world.reopen()


async def test_a_claim_that_got_one_piece_takes_no_further_ones_when_it_is_sent_again(world: World) -> None:
    """(13.16)"""
    await world.enqueue_many(BATCH_PIECE_MAX)
    first = await world.claim("work", limit=MANY, request_id="again")
    await world.enqueue_many(10)
    again = await world.claim("work", limit=MANY, request_id="again")
    assert sorted(ids(again)) == sorted(ids(first))
    assert await world.counts() == (10, 0, BATCH_PIECE_MAX, 0)


async def test_a_large_claim_is_handed_back_except_for_leases_that_were_extended(world: World) -> None:
    """(13.16)"""
    await world.enqueue_many(MANY)
    first = await claiming.claim(world.core, TENANT, Claim(worker="worker", limit=MANY))
    world.clock.pass_ms(LEASE_MS // 2)
    extended = [await world.heartbeat(delivery.task) for delivery in first[::7]]
    await claiming.hand_back(world.core, TENANT, claiming.leases_of(first))
    assert await world.counts() == (MANY - len(extended), 0, len(extended), 0)
    for task in extended:
        await world.complete(task)


async def test_a_large_claim_is_handed_back_whole_even_if_that_is_interrupted(world: World) -> None:
    """(13.16)"""
    await world.enqueue_many(MANY)
    first = await claiming.claim(world.core, TENANT, Claim(worker="worker", limit=MANY))
    world.core.turns.note_short_call("other", perf_counter() + 60)  # so that it waits for its turn
    returning = asyncio.create_task(claiming.hand_back(world.core, TENANT, claiming.leases_of(first)))
    while not (await world.counts())[0]:  # noqa: ASYNC110 - there is no event for this
        await asyncio.sleep(0)
    assert not returning.done()
    returning.cancel()
    await returning
    assert await world.counts() == (MANY, 0, 0, 0)


@pytest.mark.parametrize("engine", ["rocksdb"], indirect=True)
async def test_other_calls_run_while_the_workers_of_a_tenant_are_counted(world: World) -> None:
    """(13.16) A thousand workers, each with as many commands as it may have: whoever reads a queue counts them."""
    commands = tuple(f"{place:02}".ljust(64, "c") for place in range(CLAIM_COMMANDS_MAX))
    value = msgspec.msgpack.encode(WorkerStatus(name="worker", subject="token", commands=commands))
    until_ms = world.clock.now_ms + 60_000
    await world.store.registry.put(
        [
            Registration(kind=KIND, tenant=TENANT, name=f"{place} token", value=value, expires_ms=until_ms)
            for place in range(WORKERS_MAX)
        ]
    )
    world.core.turns.note_short_call("other", perf_counter() + 60)  # so that pieces are short
    reading = asyncio.create_task(queries.queue(world.core, QueueKey(TENANT, commands[0])))
    iterations = 0
    while not reading.done():
        await asyncio.sleep(0)
        iterations += 1
    assert (await reading).workers == WORKERS_MAX
    assert iterations > 10
