"""Connections that send much receive in turn: many of them bring no more into one iteration of the event loop."""

import asyncio
import socket
from collections import Counter
from pathlib import Path

import pytest
import uvloop
from tests.server.in_process_server import InProcessServer

from codeq.server.connection import Connection
from codeq.server.inflow import PIECE_BYTES
from codeq.wire import paths

CONNECTIONS = 16
BODY_BYTES = 4 << 20
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


class Received:
    """Counts bytes in each iteration of the event loop, after the first piece of each connection."""

    def __init__(self) -> None:
        self.by_iteration: Counter[int] = Counter()
        self._by_connection: Counter[int] = Counter()
        self._iteration = 0

    def noting(self, update: object) -> object:
        def buffer_updated(connection: Connection, nbytes: int) -> None:
            self._by_connection[id(connection)] += nbytes
            if self._by_connection[id(connection)] > PIECE_BYTES:
                self.by_iteration[self._iteration] += nbytes
            update(connection, nbytes)  # type: ignore[operator]

        return buffer_updated

    def tick(self) -> None:
        self._iteration += 1
        asyncio.get_running_loop().call_soon(self.tick)


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
