"""Long calls take turns: one piece per iteration of the event loop, tenants in turn, short calls of others first."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter

from codeq.domain.limits import LOOP_HOLD_MS, LOOP_SHARED_HOLD_MS, LOOP_SHARED_PAUSES
from codeq.usecases.turns import Turns

PIECE_S = 0.002


def run(test: Callable[[Turns], Awaitable[None]]) -> None:
    async def started() -> None:
        async with asyncio.timeout(20):
            await test(Turns())

    asyncio.run(started())


def work() -> None:
    """Uses the event loop for one piece."""
    until_s = perf_counter() + PIECE_S
    while perf_counter() < until_s:
        pass


async def call(turns: Turns, tenant: str, pieces: int, log: list[str]) -> None:
    for _ in range(pieces):
        until_s = await turns.wait(tenant)
        log.append(tenant)
        while perf_counter() < until_s:  # uses all the time that it has
            pass


def test_a_tenant_with_many_calls_gets_no_more_turns_than_one_with_a_single_call() -> None:
    async def test(turns: Turns) -> None:
        log: list[str] = []
        async with asyncio.TaskGroup() as calls:
            for _ in range(8):
                calls.create_task(call(turns, "greedy", 4, log))
            calls.create_task(call(turns, "modest", 4, log))
        assert log[:9].count("modest") == 4
        assert len(log) == 36

    run(test)


def test_one_long_call_continues_in_each_iteration_of_the_event_loop() -> None:
    async def test(turns: Turns) -> None:
        log: list[str] = []
        calls = [asyncio.create_task(call(turns, f"tenant-{i}", 5, log)) for i in range(8)]
        while not all(task.done() for task in calls):
            before = len(log)
            await asyncio.sleep(0)
            assert len(log) <= before + 1
        assert len(log) == 40

    run(test)


def test_a_call_that_is_cancelled_while_it_waits_stops_no_other() -> None:
    async def test(turns: Turns) -> None:
        log: list[str] = []
        calls = [asyncio.create_task(call(turns, "acme", 3, log)) for _ in range(4)]
        await asyncio.sleep(0)
        calls[1].cancel()
        calls[3].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert log == ["acme"] * 6
        await call(turns, "acme", 1, log)

    run(test)


def test_the_short_calls_of_others_make_pieces_short_and_have_most_of_the_time() -> None:
    async def test(turns: Turns) -> None:
        turns.note_short_call("quiet", perf_counter())
        assert await turns.wait("loud") < perf_counter() + LOOP_SHARED_HOLD_MS / 1000
        work()
        ended_s = perf_counter()
        await asyncio.sleep(0)
        turns.note_short_call("loud", perf_counter())
        turns.note_short_call("quiet", perf_counter())
        turns.note_short_call("loud", perf_counter())
        await turns.wait("loud")
        assert perf_counter() - ended_s > LOOP_SHARED_PAUSES * PIECE_S / 2

    run(test)


def test_several_calls_of_one_iteration_share_a_piece() -> None:
    """So that many batches of moderate size do not wait for each other."""

    async def test(turns: Turns) -> None:
        first_s = await turns.wait("acme")
        assert await turns.wait("acme") == await turns.wait("other") == first_s

    run(test)


def test_a_tenant_does_not_wait_for_short_calls_of_its_own() -> None:
    async def test(turns: Turns) -> None:
        for _ in range(10):
            turns.note_short_call("acme", perf_counter())
            began_s = perf_counter()
            assert await turns.wait("acme") > began_s + LOOP_HOLD_MS / 1000
            work()
            await asyncio.sleep(0)

    run(test)
