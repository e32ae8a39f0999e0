"""The service in the test's own process: requests of several callers can arrive in the same event-loop iteration."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tests.server.connections import Answer, Answers
from uvicorn.server import ServerState

from codeq.clock import SteadyClock
from codeq.server.app import App
from codeq.server.auth.claims import Claims
from codeq.server.auth.principal import Authenticator
from codeq.server.backups import Backups
from codeq.server.connection import Connection
from codeq.server.connection_limit import ConnectionLimit
from codeq.server.durability import DurabilityInForce
from codeq.server.metrics import Metrics
from codeq.server.ratelimit import RateLimiter
from codeq.server.response_head import ResponseHeads
from codeq.server.routes import ROUTES
from codeq.server.server_context import ServerContext
from codeq.server.settings import Settings
from codeq.server.state import AppState
from codeq.server.tracing import Tracing
from codeq.store.data_dir import back_up, open_rocksdb
from codeq.usecases.core import make_core
from codeq.usecases.waiters import Waiters
from codeq.wire import paths
from codeq.wire.errors import Unauthenticated


class AcceptAll:
    """Accepts every token, read as `<tenant>` or `<tenant>/<name>`, except `nobody`. With `@<command>` at its end it is
    limited to that command."""

    is_ready = True
    revision = 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def validate(self, token: str) -> Claims:
        if token == "nobody":
            raise Unauthenticated("the token is not accepted")
        scopes = frozenset({"codeq:create", "codeq:cancel", "codeq:result", "codeq:claim", "codeq:heartbeat"})
        name, _, command = token.partition("@")
        tenant = name.partition("/")[0]
        return Claims(subject=token, scopes=scopes, event_types=(command or "*",), raw={"tid": tenant})


class InProcessServer:
    """A server on a free port. `failures` counts how often its store reported a failure."""

    def __init__(
        self,
        folder: Path,
        *,
        tracing: Tracing | None = None,
        limiter: RateLimiter | None = None,
        connections_max: int = 1000,
    ) -> None:
        waiters = Waiters()
        metrics = Metrics()
        self.store = open_rocksdb(
            folder / "data",
            clock=SteadyClock(),
            shards=1,
            fsync=False,
            grace_ms=0,
            listeners=[waiters, metrics],
        )
        self.failures = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.state = AppState(
            core=make_core(self.store, waiters, Settings().policy(), randomness=random.Random()),
            settings=Settings(),
            authenticator=Authenticator(AcceptAll(), AcceptAll(), producers_may_work=False),
            limiter=limiter or RateLimiter({}, {}),
            metrics=metrics,
            tracing=tracing or Tracing(),
            backups=Backups("", partial(back_up, self.store)),
            durability=DurabilityInForce(Settings().store),
        )
        app = App(self.state, ROUTES, tasks=self.tasks, on_failure=self._failed)
        self.answers = app._answers
        self._context = ServerContext(
            app.begin,
            Settings().http,
            ResponseHeads(ServerState()),
            set(),
            ConnectionLimit(connections_max),
            lost=app.connection_lost,
        )
        self._callers: list[Caller] = []
        self._address: Any = None

    @property
    def connections(self) -> list[Connection]:
        return list(self._context.connections)

    @property
    def open_connections(self) -> int:
        return len(self._context.connections)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        listening = await asyncio.get_running_loop().create_server(lambda: Connection(self._context), "127.0.0.1", 0)
        self._address = listening.sockets[0].getsockname()
        try:
            async with listening:
                yield
        finally:
            for caller in self._callers:
                caller.disconnect()
            await until(lambda: not self.open_connections)
            await self.store.close()

    def stranger(self, token: str) -> "Caller":
        """Returns a caller whose token the server has not seen."""
        caller = Caller(self._address, token)
        self._callers.append(caller)
        return caller

    async def callers(self, *tokens: str) -> list["Caller"]:
        """Returns one caller per token, each with its own connection and a token that the server has cached."""
        made = [self.stranger(token) for token in tokens]
        for caller in made:
            for path in (paths.TASKS, paths.CLAIM):
                caller.send("POST", path, b"nothing")
                assert (await caller.answer()).status == 400
        return made

    def _failed(self) -> None:
        self.failures += 1


class Caller:
    """Sends without yielding to the server: what several callers send one after the other arrives together."""

    def __init__(self, address: Any, token: str) -> None:
        self.token = token
        self.socket = socket.create_connection(address)
        self._answers = Answers()

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = [f"{method} {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {self.token}", *lines]
        self.socket.sendall("\r\n".join([*head, f"content-length: {len(body)}"]).encode() + b"\r\n\r\n" + body)

    def create(self, command: str = "work", payload: Any = 1, **fields: Any) -> None:
        self.send("POST", paths.TASKS, msgspec.json.encode({"command": command, "payload": payload, **fields}))

    def submit(self, task: dict[str, Any], result: Any = 1, **fields: Any) -> None:
        body = {"status": "COMPLETED", "result": result, **fields}
        self.send("POST", paths.RESULT.replace("{id}", task["id"]), msgspec.json.encode(body))

    async def held(self) -> dict[str, Any]:
        """Returns a new task that this caller has claimed."""
        self.create()
        assert (await self.answer()).status == 202
        self.send("POST", paths.CLAIM, b'{"commands":["work"]}')
        task: dict[str, Any] = (await self.answer()).json
        return task

    async def answer(self) -> Answer:
        loop = asyncio.get_running_loop()
        self.socket.setblocking(False)
        try:
            async with asyncio.timeout(10):
                while not self._answers.whole:
                    piece = await loop.sock_recv(self.socket, 65_536)
                    assert piece, "the server hung up"
                    self._answers.feed(piece)
        finally:
            self.socket.setblocking(True)
        return self._answers.whole.popleft()

    def has_answer(self) -> bool:
        """Returns whether a byte of a response has arrived."""
        self.socket.setblocking(False)
        try:
            return bool(self._answers.whole) or bool(self.socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self.socket.setblocking(True)

    def disconnect(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Leaves without reading: the server gets a reset rather than an end of file."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the server has no event for this
            await asyncio.sleep(0.001)
