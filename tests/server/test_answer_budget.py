"""The memory that answers take which clients do not read: bounded per tenant and overall."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from tests.server.connections import head
from tests.server.in_process_server import InProcessServer, until
from tests.server.server_process import Server, answered, eventually, start_server

from codeq.domain.limits import PAGE_BYTES_MAX
from codeq.server.page_reads import TENANT_PAGES_MAX
from codeq.wire import paths

MB = 1 << 20
BUDGET = {"http": {"answers_bytes_max": 128 * MB, "tenant_answers_bytes_max": 64 * MB}}
CLIENTS = 64
"""Far more than the budget: what the kernel holds for each does not count."""


@pytest.fixture(scope="module")
def frugal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("frugal"), settings=BUDGET) as running:
        yield running


def status_of(client: socket.socket) -> int:
    return int(client.recv(12)[9:])


def unread(held: ExitStack, server: Server, request: bytes) -> list[int]:
    """Sends the request on many connections, and reads nothing but the status of each answer."""
    clients: list[socket.socket] = []
    for _ in range(CLIENTS):
        client = held.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", server.port))
        client.sendall(request)
        clients.append(client)
    return [status_of(client) for client in clients]


def test_the_unread_answers_of_a_tenant_have_a_budget(frugal: Server) -> None:
    """(13.17)"""
    acme, globex = frugal.tenant(), frugal.tenant()
    for tenant in (acme, globex):
        tasks = [{"command": "large", "payload": "x" * (MB - 2)}] * 8
        answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": tasks}), 200)
    with ExitStack() as held:
        statuses = unread(held, frugal, head("GET", paths.TASKS, token=acme.producer.token))
        assert set(statuses) == {200, 503}
        assert acme.create()["id"]  # small answers are not counted
        assert len(globex.producer.get(paths.TASKS).content) > PAGE_BYTES_MAX
    eventually(lambda: acme.producer.get(paths.TASKS).status_code == 200)
    for _ in range(CLIENTS):  # what was read is not counted
        answered(acme.producer.get(paths.TASKS), 200)


def test_a_claim_whose_answer_is_refused_returns_its_tasks(frugal: Server) -> None:
    """(13.17)"""
    acme = frugal.tenant()
    for _ in range(CLIENTS // 4):
        tasks = [{"command": "large", "payload": "x" * (MB - 2)}] * 32
        answered(acme.producer.post(paths.TASKS_BATCH, {"tasks": tasks}), 200)
    body = json.dumps({"commands": ["large"], "count": 100}).encode()
    claim = head("POST", paths.CLAIM_BATCH, f"Content-Length: {len(body)}", token=acme.worker.token) + body
    with ExitStack() as held:
        statuses = unread(held, frugal, claim)
        assert set(statuses) == {200, 503}
        eventually(lambda: in_progress(frugal, acme.name) == 8 * statuses.count(200))


def in_progress(server: Server, tenant: str) -> int:
    found = answered(server.tenant(tenant).producer.get(paths.QUEUES), 200)["queues"]
    return next(int(each["inProgress"]) for each in found if each["command"] == "large")


def test_nothing_is_counted_of_clients_that_are_gone(tmp_path: Path) -> None:
    """(13.17) Whether they leave after their answer, or before it is written."""

    async def story() -> None:
        server = InProcessServer(tmp_path)
        async with server.running():
            [reader] = await server.callers("acme")
            reader.create("large", payload="x" * 400_000)
            assert (await reader.answer()).status == 202
            reader.send("GET", paths.TASKS)
            assert (await reader.answer()).status == 200
            assert len(server.answers.unread) == 1
            leaving = server.stranger("acme")
            async with AsyncExitStack() as pages:
                for _ in range(TENANT_PAGES_MAX):
                    await pages.enter_async_context(server.state.page_reads.held("acme"))
                leaving.send("GET", paths.TASKS)
                await until(lambda: any(each.current is not None for each in server.connections))
                leaving.reset()
                reader.disconnect()
                await until(lambda: not server.connections)
            await until(lambda: not server.tasks)
            assert not server.answers.unread

    asyncio.run(story())
