"""A proxy between a client and a server that follows a script, one step per request.

    with Proxy(server.port) as proxy:
        proxy.script(lose_answer, answer(503, retry_after="1"), hang)   # what happens to the next three requests
        client = Client(proxy.url, token)

What is not in the script is passed on. `proxy.requests` holds all that arrived, `proxy.accepted` counts connections.
"""

import contextlib
import re
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self


class Request(NamedTuple):
    line: str
    headers: dict[str, str]
    raw: bytes
    arrived_s: float


class Hung(Exception):
    """The connection is to be closed now."""


Fault = Callable[["Exchange"], bytes | None]
"""Given an exchange: the bytes to answer; None to close without a word."""


class Exchange:
    """One request that has arrived, and what can be done with it."""

    def __init__(self, proxy: "Proxy", request: Request, upstream: "Upstream") -> None:
        self.proxy = proxy
        self.request = request
        self._upstream = upstream

    def pass_on(self) -> bytes:
        """The server's answer, head and body."""
        return self._upstream.exchange(self.request.raw)


def pass_on(exchange: Exchange) -> bytes:
    return exchange.pass_on()


def lose_request(_: Exchange) -> None:
    """The server never sees it."""


def lose_answer(exchange: Exchange) -> None:
    """The server has executed it, and the answer is lost."""
    exchange.pass_on()


def cut_answer(after_bytes: int) -> Fault:
    def cut(exchange: Exchange) -> bytes:
        return exchange.pass_on()[:after_bytes] + CUT

    return cut


def hang(exchange: Exchange) -> None:
    """The request vanishes: no answer, no error, until the proxy is closed or told to `let_go`."""
    exchange.proxy.is_released.wait(60)


def answer(
    status: int, body: bytes = b"", *, kind: str = "text/html", retry_after: str | None = None, more: str = ""
) -> Fault:
    """Answer in the server's place."""
    head = f"HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}"
    if retry_after is not None:
        head += f"retry-after: {retry_after}\r\n"
    return raw(head.encode() + b"\r\n" + body)


def raw(said: bytes, *, then_close: bool = False) -> Fault:
    return lambda _: said + (CUT if then_close else b"")


CUT = b"\0cut\0"
"""At the end of what a fault answers: close the connection after this."""


class Proxy:
    """Listens on a free port of `host`. Without an upstream port, every request must be in the script."""

    def __init__(
        self,
        upstream: int | None = None,
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        prefix: str = "",
    ) -> None:
        self.upstream = upstream
        self.host = host
        self.tls = tls
        self.prefix = prefix
        self.requests: list[Request] = []
        self.accepted = 0
        self.cut_requests: deque[int] = deque()
        """For the next connections: after how many bytes of the request to close."""
        self.is_released = threading.Event()
        self._script: deque[Fault] = deque()
        self._lock = threading.Lock()
        self._links: set[socket.socket] = set()
        self._upstreams: list[Upstream] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self.port = 0
        self.up()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"

    def script(self, *faults: Fault) -> None:
        """What happens to the next requests, one fault each."""
        with self._lock:
            self._script.extend(faults)

    def script_is_done(self) -> bool:
        return not self._script

    def connections(self) -> int:
        """How many are open now."""
        with self._lock:
            return len(self._links)

    def up(self) -> None:
        """Listen, on the same port as before."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._start(self._accept, listener)

    def down(self) -> None:
        """Refuse new connections and close those that are open."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self.close_connections()

    def close_connections(self) -> None:
        """As a server that has waited long enough."""
        with self._lock:
            links = list(self._links)
        for link in links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def say(self, unasked: bytes) -> None:
        """Send this on every open connection, though nobody asked."""
        with self._lock:
            for link in self._links:
                link.sendall(unasked)

    def let_go(self) -> None:
        """Close what hangs."""
        self.is_released.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        self.let_go()
        self.down()
        for upstream in self._upstreams:
            upstream.hang_up()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _start(self, work: Callable[[socket.socket], None], link: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(link,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self.accepted += 1
                self._links.add(link)
            self._start(self._serve, link)

    def _serve(self, link: socket.socket) -> None:
        upstream = Upstream(self.upstream)
        self._upstreams.append(upstream)
        spoken = link
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is not None:
                # Not detached: `close_connections` shuts the one it knows.
                spoken = self.tls.wrap_socket(link.dup(), server_side=True)
            if self.cut_requests:
                spoken.recv(self.cut_requests.popleft())
                return
            self._serve_requests(spoken, upstream)
        except (OSError, Hung):
            pass
        finally:
            upstream.close()
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._links.discard(link)
            if spoken is not link:
                spoken.close()
            link.close()

    def _serve_requests(self, link: socket.socket, upstream: "Upstream") -> None:
        reader = Reader(link)
        while True:
            message = reader.message()
            request = _request(message, self.prefix)
            with self._lock:
                self.requests.append(request)
                fault = self._script.popleft() if self._script else pass_on
            said = fault(Exchange(self, request, upstream))
            if said is None:
                return
            link.sendall(said.removesuffix(CUT))
            if said.endswith(CUT):
                return


class Upstream:
    """A connection of the proxy's own to the server, made when it is first needed."""

    def __init__(self, port: int | None) -> None:
        self._port = port
        self._link: socket.socket | None = None

    def exchange(self, request: bytes) -> bytes:
        if self._link is None:
            self._link = socket.create_connection(("127.0.0.1", self._port or 0), 10)
            self._link.settimeout(70)
        self._link.sendall(request)
        return Reader(self._link).message()

    def hang_up(self) -> None:
        """Wake the thread that waits for an answer."""
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()


class Reader:
    """Reads messages with a content length, or with none for an empty body."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._left = bytearray()

    def message(self) -> bytes:
        """One message, head and body. Raises Hung when the other side has closed."""
        while b"\r\n\r\n" not in self._left:
            self._more()
        head, _, _ = self._left.partition(b"\r\n\r\n")
        found = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
        length = len(head) + 4 + (int(found[1]) if found else 0)
        while len(self._left) < length:
            self._more()
        message = bytes(self._left[:length])
        del self._left[:length]
        return message

    def _more(self) -> None:
        data = self._link.recv(256 * 1024)
        if not data:
            raise Hung
        self._left += data


def _request(message: bytes, prefix: str) -> Request:
    head, _, body = message.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
    method, target, version = line.split(" ")
    assert target.startswith(prefix), f"{target} is not below {prefix}"
    passed = f"{method} {target.removeprefix(prefix)} {version}"
    return Request(
        line, headers, "\r\n".join([passed, *lines]).encode("latin-1") + b"\r\n\r\n" + body, time.monotonic()
    )
