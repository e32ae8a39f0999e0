"""The server's connections with handlers that echo: shows as which requests bytes are read, by us and by h11."""

import asyncio
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import h11
import msgspec
import uvloop
from tests.server.connections import Answer, Answers
from uvicorn.server import ServerState

from codeq.server.connection import Connection
from codeq.server.connection_limit import ConnectionLimit
from codeq.server.request import HttpRequest, HttpResponse
from codeq.server.request_reader import HEADER_BYTES_MAX
from codeq.server.response_head import ResponseHeads
from codeq.server.server_context import ServerContext
from codeq.server.settings import HttpSettings
from codeq.server.streams import read_body

BODY_MAX = 1 << 20


class Seen(NamedTuple):
    method: str
    target: str
    body: str


class Verdict(NamedTuple):
    """What a parser makes of bytes that a client sends before it closes its half."""

    requests: tuple[Seen, ...]
    """Accepted, with complete bodies."""
    is_refused: bool
    """Whether an error follows them."""


class EchoServer:
    """Answers every request with what was read of it, at once or after a few iterations of the loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._tasks: set[asyncio.Task[None]] = set()
        self.errors: list[Any] = []
        """What reached the loop's exception handler."""

    def __enter__(self) -> Self:
        self._runner.__enter__()
        loop = self._runner.get_loop()
        loop.set_exception_handler(lambda _, context: self.errors.append(context))
        http = HttpSettings(header_timeout_seconds=5, body_timeout_seconds=5, idle_timeout_seconds=5)
        context = ServerContext(self._begin, http, ResponseHeads(ServerState()), set(), ConnectionLimit(1000))
        self.connections = context.connections
        self._listening = self._runner.run(self._listen(context))
        self._address = self._listening.sockets[0].getsockname()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        self._runner.__exit__(kind, error, trace)

    def answers(self, *pieces: bytes) -> list[Answer]:
        """Sends the pieces, each when the one before has been read, and closes this half. Returns all answers."""
        return self._runner.run(self._exchange(pieces))

    def verdict(self, *pieces: bytes) -> Verdict:
        return _verdict(self.answers(*pieces))

    async def _listen(self, context: ServerContext) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(lambda: Connection(context), "127.0.0.1", 0)

    def _begin(self, request: HttpRequest) -> None:
        request.id = request.headers.get(b"x-request-id", b"none").decode("latin-1")
        task = asyncio.get_running_loop().create_task(self._respond(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, request: HttpRequest) -> None:
        for _ in range(len(request.path) % 3):
            await asyncio.sleep(0)
        if not request.is_complete:
            await read_body(request.connection, request, BODY_MAX)
        target = request.path + ("?" + request.query_string.decode() if request.query_string else "")
        seen = Seen(request.method, target, request.body.decode("latin-1"))
        request.connection.send(request, HttpResponse(200, msgspec.json.encode(seen)))

    async def _exchange(self, pieces: Sequence[bytes]) -> list[Answer]:
        loop = asyncio.get_running_loop()
        answers = Answers()
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, self._address)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(20):  # a hang, with a big margin
                receiving = loop.create_task(_receive(client, answers))
                try:
                    for piece in pieces:
                        await loop.sock_sendall(client, piece)
                        if len(pieces) > 1:
                            await asyncio.sleep(0)
                            await asyncio.sleep(0)
                    client.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # the server has refused and closed
                await receiving
                while self.connections:  # noqa: ASYNC110 - the server has no event for this
                    await asyncio.sleep(0)
        return [answer for answer in answers.whole if answer.status != 100]


async def _receive(client: socket.socket, answers: Answers) -> None:
    loop = asyncio.get_running_loop()
    try:
        while piece := await loop.sock_recv(client, 65_536):
            answers.feed(piece)
    except ConnectionError:
        pass


def _verdict(answers: Sequence[Answer]) -> Verdict:
    requests = [msgspec.json.decode(answer.body, type=Seen) for answer in answers if answer.status == 200]
    statuses = [answer.status for answer in answers]
    assert statuses[: len(requests)] == [200] * len(requests), statuses
    assert len(statuses) <= len(requests) + 1, statuses
    return Verdict(tuple(requests), len(statuses) > len(requests))


def h11_verdict(data: bytes, *, skips_blank_lines: bool = True) -> Verdict:
    """Returns what h11 makes of the bytes. It refuses blank lines before a request, which RFC 9112, section 2.2, has a
    server skip; they are skipped here."""
    requests: list[Seen] = []
    while True:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
        if skips_blank_lines:
            data = data.lstrip(b"\r\n")
        connection.receive_data(data)
        if data:
            connection.receive_data(b"")
        try:
            seen = _next_request(connection)
        except h11.RemoteProtocolError:
            return Verdict(tuple(requests), is_refused=True)
        if seen is None:
            return Verdict(tuple(requests), is_refused=False)
        requests.append(seen)
        connection.send(h11.Response(status_code=200 if seen.method != "CONNECT" else 501, headers=[]))
        connection.send(h11.EndOfMessage())
        if connection.our_state is h11.MUST_CLOSE:
            return Verdict(tuple(requests), is_refused=False)
        data = connection.trailing_data[0]


def _next_request(connection: h11.Connection) -> Seen | None:
    head, body = None, b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return Seen(head.method.decode(), head.target.decode(), body.decode("latin-1"))
        else:
            return None
