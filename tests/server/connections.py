"""HTTP as bytes: connections that send arbitrary bytes and read responses one by one."""

import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httptools
import msgspec

from codeq.wire import paths


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]


class Answers:
    """Parses bytes into responses."""

    def __init__(self) -> None:
        self.whole: deque[Answer] = deque()
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.whole.append(Answer(self._parser.get_status_code(), self._headers, self._body))


class RawConnection:
    """A connection to a server."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._answers = Answers()

    def send(self, *pieces: bytes, every_s: float = 0) -> None:
        for piece in pieces:
            self.socket.sendall(piece)
            time.sleep(every_s)

    def answer(self) -> Answer:
        while not self._answers.whole:
            piece = self.socket.recv(65_536)
            assert piece, "the server hung up"
            self._answers.feed(piece)
        return self._answers.whole.popleft()

    def close(self) -> None:
        self.socket.close()

    def is_closed(self) -> bool:
        """Returns whether the server closes now, after everything was read."""
        assert not self._answers.whole
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


@contextmanager
def connect(port: int, *, within_s: float = 20) -> Iterator[RawConnection]:
    with socket.create_connection(("127.0.0.1", port), timeout=within_s) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield RawConnection(connection)


def head(method: str, path: str, *lines: str, version: str = "1.1", token: str = "dev-token") -> bytes:
    """Returns a request's head with its empty line."""
    first = [f"{method} {path} HTTP/{version}", "Host: localhost", f"Authorization: Bearer {token}", *lines]
    return ("\r\n".join(first) + "\r\n\r\n").encode()


def create(*lines: str, body: bytes = b'{"command":"pipes","payload":1}', **rest: str) -> bytes:
    return head("POST", paths.TASKS, f"Content-Length: {len(body)}", *lines, **rest) + body


def look(*lines: str, path: str = paths.HEALTHZ, **rest: str) -> bytes:
    return head("GET", path, *lines, **rest)
