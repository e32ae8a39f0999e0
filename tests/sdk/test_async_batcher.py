"""The batcher on an event loop: none lost, none doubled, in order, and each gets its own answer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.clients import token_for
from tests.sdk.proxy import Proxy, answer, lose_answer
from tests.server.server_process import Server

import codeq
from codeq import AsyncClient, CodeqError, NewTask, Task
from codeq.errors import InvalidRequest, Unreachable
from codeq.sdk.backend import Send
from codeq.sdk.batcher import BATCHES_WAITING_MAX, Answers, AsyncBatcher
from codeq.sdk.verbs import Verbs

Open = Callable[[], AbstractAsyncContextManager[Verbs]]


@pytest.fixture(params=["AsyncClient", "open_async", "open, awaited"])
def queue(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Open:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Verbs]:
        if request.param == "AsyncClient":
            async with AsyncClient(server.base, token_for(server)) as client:
                yield client
        elif request.param == "open_async":
            async with await codeq.open_async(tmp_path) as inside:
                yield inside
        else:
            with codeq.open(tmp_path) as plain:
                yield plain.as_async()

    return opened


async def drained(queue: Verbs) -> list[Any]:
    found: list[Any] = []
    while jobs := await queue.claim("work", limit=1000):
        found += [job.payload for job in jobs]
    return found


class Door:
    """Where a batcher sends its batches: notes them, and can be kept shut."""

    def __init__(self) -> None:
        self.batches: list[list[NewTask]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    def prepare(self, tasks: Sequence[NewTask]) -> Send:
        return partial(self, tasks)

    async def __call__(self, tasks: Sequence[NewTask], *, retry: bool = True) -> Answers:  # noqa: ARG002
        self.batches.append(list(tasks))
        async with asyncio.timeout(30):
            await self.is_open.wait()
        return [InvalidRequest(task.command) for task in tasks]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


async def settled(waits: Callable[[], bool]) -> None:
    """Let the others go on until it is so."""
    for _ in range(100_000):
        if waits():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never was so")


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def test_what_is_put_in_comes_out_in_order_once(queue: Open) -> None:
    async def main() -> None:
        async with queue() as opened:
            async with opened.batcher(size=64) as batcher:
                tickets = [await batcher.enqueue("work", n) for n in range(1000)]
            assert batcher.sent == 1000
            assert all(ticket.is_done for ticket in tickets)
            assert len({(await ticket).id for ticket in tickets}) == 1000
            assert await drained(opened) == list(range(1000))

    run(main())


def test_a_refused_task_leaves_the_others_alone_and_is_reported(queue: Open) -> None:
    async def main() -> None:
        async with queue() as opened:
            batcher = opened.batcher(size=10)
            with pytest.raises(InvalidRequest, match="command"):
                async with batcher:
                    tickets = [await batcher.enqueue("not a command" if n == 13 else "work", n) for n in range(30)]
            with pytest.raises(InvalidRequest, match="command"):
                await tickets[13]
            assert [type(fault) for fault in batcher.refusals] == [InvalidRequest]
            assert await drained(opened) == [n for n in range(30) if n != 13]

    run(main())


def test_flush_returns_when_all_so_far_are_there(queue: Open) -> None:
    async def main() -> None:
        async with queue() as opened, opened.batcher(size=1000, linger=60) as batcher:
            tickets = [await batcher.enqueue("work", n) for n in range(10)]
            assert not tickets[0].is_done
            await batcher.flush()
            assert (await opened.queues())["work"].pending == 10
            assert all(ticket.is_done for ticket in tickets)
            await batcher.flush()

    run(main())


def test_what_waits_is_sent_when_the_block_ends_whatever_ends_it(queue: Open) -> None:
    async def main() -> None:
        async with queue() as opened:
            batcher = opened.batcher(size=1000, linger=60)
            await batcher.enqueue("work", 1)
            await batcher.enqueue("not a command", 2)
            with pytest.raises(ZeroDivisionError):
                async with batcher:
                    raise ZeroDivisionError
            assert await drained(opened) == [1]
            with pytest.raises(InvalidRequest, match="closed"):
                await batcher.enqueue("work", 2)

    run(main())


def test_what_lingers_is_sent_by_itself(queue: Open) -> None:
    async def main() -> None:
        async with queue() as opened, opened.batcher(size=1000, linger=0.01) as batcher:
            assert (await (await batcher.enqueue("work", 1))).command == "work"
            assert (await (await batcher.enqueue("work", 2))).command == "work"

    run(main())


def test_coroutines_share_a_batcher(queue: Open) -> None:
    async def main() -> None:
        async with queue() as opened, opened.batcher(size=50) as batcher:

            async def produce(number: int) -> list[Task]:
                return [await ticket for ticket in [await batcher.enqueue("work", [number, n]) for n in range(100)]]

            made = await asyncio.gather(*[produce(number) for number in range(8)])
            assert len({task.id for tasks in made for task in tasks}) == 800
            found = await drained(opened)
            for number in range(8):
                assert [payload for payload in found if payload[0] == number] == [[number, n] for n in range(100)]

    run(main())


def test_a_batch_is_sent_when_it_is_full_and_not_before() -> None:
    async def main() -> None:
        door = Door()
        batcher = AsyncBatcher(door.prepare, size=7, linger_s=60)
        for n in range(20):
            await batcher.enqueue("work", n)
        await settled(lambda: door.sizes == [7, 7])
        await batcher.close()
        assert door.sizes == [7, 7, 6]

    run(main())


def test_whoever_enqueues_faster_than_the_queue_takes_must_wait() -> None:
    async def main() -> None:
        door = Door()
        door.is_open.clear()
        batcher = AsyncBatcher(door.prepare, size=2, linger_s=60)
        put: list[int] = []

        async def produce() -> None:
            for n in range(100):
                await batcher.enqueue("work", n)
                put.append(n)

        producing = asyncio.create_task(produce())
        await settled(lambda: len(put) == 2 * BATCHES_WAITING_MAX)
        for _ in range(100):
            await asyncio.sleep(0)
        assert (door.sizes, len(put)) == ([2], 2 * BATCHES_WAITING_MAX)
        door.is_open.set()
        await producing
        await batcher.close()
        assert [int(task.payload) for batch in door.batches for task in batch] == list(range(100))

    run(main())


def test_many_who_had_to_wait_share_the_next_batch() -> None:
    async def main() -> None:
        door = Door()
        door.is_open.clear()
        batcher = AsyncBatcher(door.prepare, size=10, linger_s=0.01)
        puts = [asyncio.create_task(batcher.enqueue("work", n)) for n in range(10 * BATCHES_WAITING_MAX + 30)]
        await settled(lambda: sum(put.done() for put in puts) == 10 * BATCHES_WAITING_MAX)
        door.is_open.set()
        await asyncio.gather(*puts)
        await batcher.close()
        assert door.sizes == [10] * (BATCHES_WAITING_MAX + 3)

    run(main())


def test_a_failure_that_nobody_foresaw_reaches_those_who_wait_and_stops_nothing() -> None:
    async def main() -> None:
        faults = [ZeroDivisionError("unforeseen"), None]

        async def send(tasks: Sequence[NewTask], *, retry: bool = True) -> Answers:
            if fault := faults.pop(0):
                raise fault
            return [InvalidRequest("second")] * len(tasks)

        batcher = AsyncBatcher(lambda tasks: partial(send, tasks), size=1, linger_s=60)
        first, second = await batcher.enqueue("work", 1), await batcher.enqueue("work", 2)
        with pytest.raises(ZeroDivisionError, match="unforeseen"):
            await first
        with pytest.raises(InvalidRequest, match="second"):
            await second
        await batcher.close()
        assert [type(fault) for fault in batcher.refusals] == [ZeroDivisionError, InvalidRequest]

    run(main())


def test_a_loop_that_ends_tells_those_who_wait() -> None:
    async def main() -> None:
        door = Door()
        door.is_open.clear()
        batcher = AsyncBatcher(door.prepare, size=1, linger_s=60)
        ticket = await batcher.enqueue("work", 1)
        await settled(lambda: door.sizes == [1])
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "AsyncBatcher._send" in repr(task):
                task.cancel()
        with pytest.raises(CodeqError, match="before the batch was acknowledged"):
            await ticket

    run(main())


def test_a_server_that_is_away_for_a_while_costs_nothing_but_time(server: Server, proxy: Proxy) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url, token_for(server), timeout=0.5) as client:
            async with client.batcher(size=20, linger=0.001) as batcher:
                for n in range(300):
                    if n == 100:
                        proxy.script(lose_answer, answer(503), lose_answer)
                    if n == 200:
                        proxy.down()
                        asyncio.get_running_loop().call_later(0.5, proxy.up)
                    await batcher.enqueue("work", n)
            assert batcher.sent == 300
            assert await drained(client) == list(range(300))

    run(main())


def test_a_batch_that_could_not_be_sent_tells_each_of_its_tickets(server: Server, proxy: Proxy) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url, token_for(server), retry_for=0) as client:
            batcher = client.batcher(size=5, linger=60)
            proxy.down()
            for ticket in [await batcher.enqueue("work", n) for n in range(5)]:
                with pytest.raises(Unreachable):
                    await ticket
            proxy.up()
            await batcher.enqueue("work", "later")
            await batcher.close()
            assert [type(fault) for fault in batcher.refusals] == [Unreachable]
            assert (batcher.sent, await drained(client)) == (1, ["later"])

    run(main())
