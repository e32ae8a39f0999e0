"""Connections that send much, pipeline many requests, or are many go on in turn: they bring no more into one iteration
of the event loop."""

import asyncio
import socket
from collections import Counter
from pathlib import Path

import pytest
import uvloop
from tests.server.in_process_server import InProcessServer, until

from codeq.server import admission
from codeq.server.admission import CROWD, FEW
from codeq.server.connection import Connection
from codeq.server.connection_bounds import FEW_STEPS_MAX, STEPS_MAX
from codeq.server.inflow import PIECE_BYTES
from codeq.wire import paths

CONNECTIONS = 16
BODY_BYTES = 4 << 20
PIPELINED = 300
STRANGERS = 90
PIECES_MAX = 4
"""In one iteration: the one whose turn it is, and what others had not received of theirs."""


def test_what_arrives_in_one_iteration_does_not_grow_with_the_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = Received()
    monkeypatch.setattr(Connection, "buffer_updated", received.noting(Connection.buffer_updated))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(send_all(tmp_path, received))
    whole = CONNECTIONS * BODY_BYTES
    assert sum(received.by_iteration.values()) >= whole - CONNECTIONS * PIECE_BYTES
    assert max(received.by_iteration.values()) <= PIECES_MAX * PIECE_BYTES


def test_what_is_begun_in_one_iteration_grows_little_with_the_connections_that_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    monkeypatch.setattr(Connection, "_step", steps.noting(Connection._step))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(pipeline_all(tmp_path, steps))
    assert sum(steps.by_iteration.values()) >= CONNECTIONS * PIPELINED
    assert max(steps.by_iteration.values()) <= STEPS_MAX + CONNECTIONS * FEW_STEPS_MAX


def test_what_is_begun_in_one_iteration_does_not_grow_with_the_connections_if_another_tenant_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Begun()
    monkeypatch.setattr(Connection, "_begin", begun.noting(Connection._begin))
    monkeypatch.setattr(admission, "SHARED_S", 60.0)  # a machine may be slow
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(call_beside_strangers(tmp_path, begun))
    assert sum(begun.by_iteration.values()) >= STRANGERS
    assert max(begun.by_iteration.values()) <= CROWD + FEW
    assert begun.tenants.index("quiet") < STRANGERS, "it has waited for all of them"


class ByIteration:
    """Counts in each iteration of the event loop."""

    def __init__(self) -> None:
        self.by_iteration: Counter[int] = Counter()
        self._iteration = 0

    def tick(self) -> None:
        self._iteration += 1
        asyncio.get_running_loop().call_soon(self.tick)


class Steps(ByIteration):
    """Counts what connections parse and begin."""

    def noting(self, step: object) -> object:
        def noted(connection: Connection) -> bool:
            has_stepped: bool = step(connection)  # type: ignore[operator]
            self.by_iteration[self._iteration] += has_stepped
            return has_stepped

        return noted


class Begun(ByIteration):
    """Counts requests."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants: list[str] = []
        """Of each request, in order."""

    def noting(self, begin: object) -> object:
        def noted(connection: Connection, request: object) -> None:
            self.by_iteration[self._iteration] += 1
            self.tenants.append(connection.tenant)
            begin(connection, request)  # type: ignore[operator]

        return noted


class Received(ByIteration):
    """Counts bytes, after the first piece of each connection."""

    def __init__(self) -> None:
        super().__init__()
        self._by_connection: Counter[int] = Counter()

    def noting(self, update: object) -> object:
        def buffer_updated(connection: Connection, nbytes: int) -> None:
            self._by_connection[id(connection)] += nbytes
            if self._by_connection[id(connection)] > PIECE_BYTES:
                self.by_iteration[self._iteration] += nbytes
            update(connection, nbytes)  # type: ignore[operator]

        return buffer_updated


async def send_all(folder: Path, received: Received) -> None:
    body = b'{"tasks":["' + b"x" * BODY_BYTES + b'"]}'
    server = InProcessServer(folder)
    async with server.running():
        callers = await server.callers(*[f"loud/{number}" for number in range(CONNECTIONS)])
        received.tick()
        for caller in callers:
            caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BODY_BYTES)
        await asyncio.gather(*[asyncio.to_thread(caller.send, "POST", paths.TASKS_BATCH, body) for caller in callers])
        assert {(await caller.answer()).status for caller in callers} == {200}


async def pipeline_all(folder: Path, steps: Steps) -> None:
    server = InProcessServer(folder)
    async with server.running():
        strangers = [server.stranger("") for _ in range(CONNECTIONS)]
        await until(lambda: server.open_connections == CONNECTIONS)
        steps.tick()
        for stranger in strangers:
            stranger.socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: codeq\r\n\r\n" * PIPELINED)
        for stranger in strangers:
            assert {(await stranger.answer()).status for _ in range(PIPELINED)} == {200}


async def call_beside_strangers(folder: Path, begun: Begun) -> None:
    server = InProcessServer(folder)
    async with server.running():
        [quiet] = await server.callers("quiet")
        strangers = [server.stranger("") for _ in range(STRANGERS)]
        await until(lambda: server.open_connections == STRANGERS + 1)
        begun.tick()
        quiet.create()
        assert (await quiet.answer()).status == 202
        begun.tenants.clear()
        for stranger in strangers:
            stranger.socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: codeq\r\n\r\n")
        quiet.create()
        assert (await quiet.answer()).status == 202
        assert {(await stranger.answer()).status for stranger in strangers} == {200}
