"""Waiting claims are woken by the event, first come first served, and hold nothing once their caller disconnects."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest
from tests.server.server_process import Server, Tenant, answered, at, eventually, start_server

from codeq.wire import paths

CLAIM = {"commands": ["work"], "waitSeconds": 20}
Waiting = list["asyncio.Task[httpx.Response]"]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    with start_server(tmp_path) as running:
        yield running


async def waiting_claims(server: Server, tenant: Tenant, number: int) -> tuple[httpx.AsyncClient, Waiting]:
    """Starts that many waiting workers, in order."""
    client = httpx.AsyncClient(
        base_url=server.base, timeout=40, trust_env=False, limits=httpx.Limits(max_connections=None)
    )
    headers = {"Authorization": f"Bearer {tenant.worker.token}"}
    waiting = []
    for _ in range(number):
        waiting.append(asyncio.create_task(client.post(paths.CLAIM, json=CLAIM, headers=headers)))
        await asyncio.sleep(0.005)  # so that they arrive in this order; nothing is asserted about the time
    await asyncio.sleep(0.2)
    return client, waiting


def test_each_enqueue_wakes_exactly_one_waiting_worker_in_the_order_they_came(server: Server) -> None:
    tenant = server.tenant()

    async def story() -> None:
        client, waiting = await waiting_claims(server, tenant, 20)
        async with aclosing(client):
            for place in range(20):
                made = await asyncio.to_thread(tenant.create, payload=place)
                answer = await asyncio.wait_for(waiting[place], 10)
                assert answered(answer, 200)["id"] == made["id"]
                assert [task.done() for task in waiting] == [True] * (place + 1) + [False] * (19 - place)

    asyncio.run(story())


def test_a_worker_that_hangs_up_while_it_waits_loses_no_task(server: Server) -> None:
    tenant = server.tenant()

    async def story() -> None:
        client, waiting = await waiting_claims(server, tenant, 2)
        async with aclosing(client):
            waiting[0].cancel()
            await asyncio.gather(waiting[0], return_exceptions=True)
            await asyncio.sleep(0.2)
            made = await asyncio.to_thread(tenant.create)
            answer = await asyncio.wait_for(waiting[1], 10)
            assert answered(answer, 200)["id"] == made["id"]
            assert answered(answer, 200)["leaseToken"] == 1

    asyncio.run(story())


def test_hanging_up_again_and_again_costs_no_task_its_turn(server: Server) -> None:
    """Workers disconnect at random moments around the enqueue; in the end every task can be claimed once."""
    tenant = server.tenant()

    async def story() -> None:
        for round_ in range(30):
            client, waiting = await waiting_claims(server, tenant, 1)
            made = asyncio.create_task(asyncio.to_thread(tenant.create, payload=round_))
            await asyncio.sleep(0.0005 * (round_ % 12))
            waiting[0].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await made
            await client.aclose()

    asyncio.run(story())
    eventually(lambda: tenant.counts()["ready"] + tenant.counts()["inProgress"] == 30)
    counts = tenant.counts()
    # Those still in progress were leased before their worker disconnected; the worker got them, or the lease will end.
    assert counts["ready"] + counts["inProgress"] == 30


def test_a_result_that_is_waited_for_comes_as_soon_as_it_is_there(server: Server) -> None:
    tenant = server.tenant()
    task = tenant.held()

    async def story() -> None:
        async with httpx.AsyncClient(base_url=server.base, timeout=40, trust_env=False) as client:
            headers = {"Authorization": f"Bearer {tenant.producer.token}"}
            url = at(paths.RESULT, task["id"])
            waiting = asyncio.create_task(client.get(url, params={"waitSeconds": 30}, headers=headers))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            outcome = {"status": "COMPLETED", "result": {"n": 1}, "leaseToken": task["leaseToken"]}
            await asyncio.to_thread(tenant.worker.post, url, outcome)
            assert answered(await asyncio.wait_for(waiting, 10), 200)["result"]["result"] == {"n": 1}

    asyncio.run(story())


def test_a_wait_may_outlast_the_time_that_headers_are_given(tmp_path: Path) -> None:
    with start_server(tmp_path, settings={"http": {"header_timeout_seconds": 0.3}}) as server:
        tenant = server.tenant()
        assert tenant.worker.post(paths.CLAIM, {"waitSeconds": 1.5}).status_code == 204
        task = tenant.held()
        answer = tenant.producer.get(at(paths.RESULT, task["id"]), waitSeconds=1)
        assert answer.status_code == 404


def test_a_stopping_server_sends_those_who_wait_home_and_exits_with_zero(own_server: Server) -> None:
    tenant = own_server.tenant()

    async def story() -> None:
        client, waiting = await waiting_claims(own_server, tenant, 5)
        async with aclosing(client):
            own_server.process.terminate()
            for answer in await asyncio.wait_for(asyncio.gather(*waiting), 15):
                assert answer.status_code == 204

    asyncio.run(story())
    assert own_server.process.wait(20) == 0


@pytest.mark.slow
def test_many_idle_long_polls_are_held_and_one_enqueue_wakes_one(own_server: Server) -> None:
    tenant = own_server.tenant()

    async def story() -> None:
        client, waiting = await waiting_claims(own_server, tenant, 500)
        async with aclosing(client):
            started_s = time.monotonic()
            for done in range(1, 11):
                await asyncio.to_thread(tenant.create)
                await asyncio.wait_for(waiting[done - 1], 10)
                assert sum(task.done() for task in waiting) == done
            assert time.monotonic() - started_s < 20
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(story())
