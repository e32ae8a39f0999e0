"""A dequeue that waits: woken at once, on time for delays, never longer than asked, and cancelled without a loss."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.priority.conftest import Site
from tests.redis_servers import wait_until

from codeq.domain.errors import InvalidRequest, StoreClosed
from codeq.priority import PriorityQueue


@pytest.fixture(autouse=True)
def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits looks again every second; here it does not, so that a wake-up that is missing shows."""
    monkeypatch.setattr("codeq.priority.queue.LOOK_EVERY_S", 50.0)


async def waiting(queue: PriorityQueue, site: Site) -> None:
    """Returns when a dequeue of this site blocks in Redis."""
    for _ in range(2000):
        if await asyncio.to_thread(_blocked, site):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("no call waits")


def _blocked(site: Site) -> int:
    if not site.is_cluster:
        return int(site.raw.info("clients")["blocked_clients"])
    node = site.raw.get_node_from_key(site.keys.wake)
    return int(site.raw.info("clients", target_nodes=node)["blocked_clients"])


def test_a_waiting_dequeue_gets_a_task_as_soon_as_it_is_enqueued(site: Site) -> None:
    async def run() -> None:
        async with site.async_queue() as worker, site.async_queue() as producer:
            call = asyncio.create_task(worker.dequeue(wait=60))
            await waiting(worker, site)
            assert await producer.enqueue("a")
            task = await asyncio.wait_for(call, 30)
            assert str(task) == "a"

    asyncio.run(run())


def test_each_of_many_waiting_calls_gets_one_of_many_tasks(site: Site) -> None:
    async def run() -> None:
        async with site.async_queue() as first, site.async_queue() as second, site.async_queue() as producer:
            calls = [asyncio.create_task(queue.dequeue(wait=60)) for queue in (first, second) for _ in range(5)]
            await waiting(first, site)
            await asyncio.gather(*(producer.enqueue(str(number)) for number in range(10)))
            tasks = await asyncio.wait_for(asyncio.gather(*calls), 30)
            assert sorted(map(str, tasks)) == [str(number) for number in range(10)]

    asyncio.run(run())


def test_a_waiting_dequeue_gets_a_delayed_task_when_it_is_due(site: Site) -> None:
    worker = site.queue()
    worker.enqueue("a")
    worker.dequeue()
    before_s = time.monotonic()
    worker.requeue_with_delay("a", 0.2)
    assert str(worker.dequeue(wait=30)) == "a"
    assert time.monotonic() - before_s >= 0.19


def test_a_waiting_dequeue_gets_the_task_of_a_worker_that_hands_it_back(site: Site) -> None:
    async def run() -> None:
        async with site.async_queue() as worker, site.async_queue() as other:
            await other.enqueue("a")
            held = await other.dequeue()
            assert held is not None
            call = asyncio.create_task(worker.dequeue(wait=60))
            await waiting(worker, site)
            await other.release_lock(held)
            assert str(await asyncio.wait_for(call, 30)) == "a"

    asyncio.run(run())


def test_a_dequeue_that_waited_in_vain_answers_nothing_after_that_time(site: Site) -> None:
    queue = site.queue()
    before_s = time.monotonic()
    assert queue.dequeue(wait=0.15) is None
    assert time.monotonic() - before_s >= 0.15


def test_a_cancelled_dequeue_leaves_no_task_locked(site: Site) -> None:
    async def run() -> None:
        async with site.async_queue() as worker:
            for steps in range(40):  # wherever in the call the cancellation strikes
                await worker.enqueue("a")
                call = asyncio.create_task(worker.dequeue(wait=60))
                for _ in range(steps):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                if call.cancelled():
                    assert not await worker.is_locked("a"), steps
                    task = await worker.dequeue()
                    assert task is not None
                    assert (task.task_id, task.attempts) == ("a", 1)  # what never arrived is no attempt
                await worker.complete("a")

    asyncio.run(run())


def test_a_cancelled_wait_takes_no_task_that_comes_later(site: Site) -> None:
    async def run() -> None:
        async with site.async_queue() as worker:
            call = asyncio.create_task(worker.dequeue(wait=60))
            await waiting(worker, site)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await worker.enqueue("a")
            assert not await worker.is_locked("a")
            assert str(await worker.dequeue()) == "a"

    asyncio.run(run())


def test_a_wait_that_is_cancelled_while_its_command_is_sent_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11's `wait_for` forgets such a cancellation; the call went on to the end of its wait."""

    async def run() -> None:
        async with site.async_queue() as worker:
            await worker.enqueue("a")
            await worker.complete(str(await worker.dequeue()))  # connections are open and scripts known
            sent: list[object] = []

            async def cancelled_when_done(sending: Awaitable[Any], timeout_s: float) -> Any:
                future = asyncio.ensure_future(sending)
                sent.append(future)
                if len(sent) == 2:  # the first command looks for a task, the second one waits for it
                    future.add_done_callback(lambda _: call.cancel())
                return await wait_for(future, timeout_s)

            monkeypatch.setattr(asyncio, "wait_for", cancelled_when_done)
            call = asyncio.create_task(worker.dequeue(wait=600))
            await asyncio.wait([call], timeout=20)
            monkeypatch.undo()
            assert len(sent) >= 2
            assert call.cancelled()

    wait_for = asyncio.wait_for
    asyncio.run(run())


def test_wake_ups_that_nobody_waits_for_stay_few(site: Site) -> None:
    queue = site.queue()
    for number in range(200):
        queue.enqueue(str(number))
    assert site.raw.llen(site.keys.wake) <= 64


def test_closing_a_blocking_queue_ends_a_call_that_waits_and_leaves_no_task_locked(site: Site) -> None:
    queue, other = site.queue(), site.queue()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(queue.dequeue, 60)
        wait_until(lambda: _blocked(site), "a call that waits")
        queue.close()
        with pytest.raises(StoreClosed):
            call.result(30)
    other.enqueue("a")
    assert str(other.dequeue()) == "a"


def test_a_wait_that_is_no_number_is_refused(site: Site) -> None:
    with pytest.raises(InvalidRequest):
        site.queue().dequeue(wait=float("nan"))


def test_a_forked_process_is_told_to_make_a_queue_of_its_own(site: Site) -> None:
    queue = site.queue()
    queue.enqueue("a")
    child = os.fork()
    if child == 0:
        try:
            queue.queue_size()
        except StoreClosed:
            queue.close()  # returns, and leaves the parent's connections alone
            os._exit(7)
        os._exit(1)
    try:
        wait_until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), "the child", 10)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert queue.queue_size() == 1
