"""HTTP/1.1 for a client: one request at a time per kept-alive connection, on an event loop or blocking.

A general client library costs several times what the request itself does (see ADR 8), which is noticed by programs that
enqueue one by one. Responses are parsed by httptools, as requests are in the server.
"""

import asyncio
import contextlib
import os
import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit

import httptools
from msgspec import Struct

from codeq.domain.errors import InvalidRequest, StoreClosed
from codeq.wire.errors import Unreachable
from codeq.wire.paths import BASE

T = TypeVar("T")

CONNECT_S_MAX = 5.0
IDLE_MAX = 64
IDLE_S_MAX = 4.0
"""Less than the server keeps an idle connection open, so that a request is rarely sent on one that is being closed."""
READ_BYTES = 256 * 1024


class Address(Struct, frozen=True):
    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    """Precedes every path, for a server behind a proxy."""


class Response:
    """A response, parsed while it arrives."""

    __slots__ = ("_parts", "body", "headers", "is_complete", "keep_alive", "parser", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.is_complete = False
        self.keep_alive = False
        self.parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []

    def on_message_begin(self) -> None:
        if self.is_complete:  # a second, unrequested one: the connection is not used again
            self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_complete:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if not self.is_complete:
            self.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self.is_complete:
            return
        if self.status < 200:  # an interim response; the final one is still to come
            self.headers.clear()
            return
        self.keep_alive = self.parser.should_keep_alive()
        self.is_complete = True
        self.body = b"".join(self._parts)

    def feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as fault:
            raise Unreachable(f"what answers is not an HTTP server: {fault}") from None

    def end(self) -> bool:
        """Notes the end of the connection. True if that completes the response, because it states no length."""
        is_measured = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        if self.status >= 200 and not self.is_complete and not is_measured:
            self.is_complete = True
            self.body = b"".join(self._parts)
        return self.is_complete


class Transport(Protocol):
    async def exchange(self, request: bytes, timeout_s: float) -> Response:
        """Sends one request and reads its response. Raises Unreachable: the request may have been executed or not."""

    async def sleep(self, seconds: float) -> None: ...

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function that blocks: in a thread, if others use the event loop."""

    async def close(self) -> None: ...


class Stale(Unreachable):
    """An idle connection broke before a byte of the response: the server had closed it, so a new one is opened."""


class Untrusted(Unreachable):
    """The server's certificate is not trusted. A repeated request would fail in the same way."""


class BlockingTransport:
    """Blocks: its coroutines never suspend and run to their end in one step. For any number of threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[tuple[socket.socket, float]] = deque()
        self._pid = os.getpid()
        self._is_closed = False

    async def exchange(self, request: bytes, timeout_s: float) -> Response:
        if self._is_closed:
            raise StoreClosed("this client was closed")
        idle = self._take_idle()
        if idle is not None:
            with contextlib.suppress(Stale):
                return self._exchange(idle, request, timeout_s)
        return self._exchange(self._connect(timeout_s), request, timeout_s)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop under this one

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        return function(*args)

    async def close(self) -> None:
        self._is_closed = True
        self._drop_idle()

    def _exchange(self, link: socket.socket, request: bytes, timeout_s: float) -> Response:
        response = Response()
        deadline_s = time.monotonic() + timeout_s
        has_begun = False
        try:
            link.settimeout(timeout_s)
            link.sendall(request)
            while not response.is_complete:
                link.settimeout(_left(deadline_s))
                data = link.recv(READ_BYTES)
                if data:
                    response.feed(data)
                    has_begun = True
                elif not response.end():
                    raise ConnectionResetError("closed by the server")
        except BaseException as fault:
            link.close()
            if isinstance(fault, TimeoutError):
                raise Unreachable(f"no answer within {timeout_s:g} s") from None
            if isinstance(fault, OSError):
                raise (Unreachable if has_begun else Stale)(f"the connection broke: {fault}") from None
            raise
        if response.keep_alive and len(self._idle) < IDLE_MAX:
            self._idle.append((link, time.monotonic()))
            if self._is_closed:  # meanwhile, by another thread
                self._drop_idle()
        else:
            link.close()
        return response

    def _take_idle(self) -> socket.socket | None:
        if self._pid != os.getpid():  # a forked child must not use its parent's connections
            self._pid = os.getpid()
            self._drop_idle()
        while True:
            try:
                link, since_s = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since_s < IDLE_S_MAX and not _is_readable(link):
                return link
            link.close()

    def _drop_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop()[0].close()

    def _connect(self, timeout_s: float) -> socket.socket:
        at = self._address
        link = None
        try:
            link = socket.create_connection((at.host, at.port), min(CONNECT_S_MAX, timeout_s))
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return at.tls.wrap_socket(link, server_hostname=at.host) if at.tls else link
        except OSError as fault:
            if link is not None:
                link.close()
            raise _unreached(at, fault) from None


class AsyncTransport:
    """Runs on the current event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[tuple[ClientConnection, float]] = deque()
        self._is_closed = False

    async def exchange(self, request: bytes, timeout_s: float) -> Response:
        if self._is_closed:
            raise StoreClosed("this client was closed")
        idle = self._take_idle()
        if idle is not None:
            with contextlib.suppress(Stale):
                return await self._exchange(idle, request, timeout_s)
        return await self._exchange(await self._connect(timeout_s), request, timeout_s)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(function, *args)

    async def close(self) -> None:
        self._is_closed = True
        while self._idle:
            self._idle.pop()[0].drop()

    async def _exchange(self, link: "ClientConnection", request: bytes, timeout_s: float) -> Response:
        try:
            response = await link.exchange(request, timeout_s)
        except BaseException:
            link.drop()
            raise
        if response.keep_alive and len(self._idle) < IDLE_MAX and not link.is_lost and not self._is_closed:
            self._idle.append((link, time.monotonic()))
        else:
            link.drop()
        return response

    def _take_idle(self) -> "ClientConnection | None":
        while self._idle:
            link, since_s = self._idle.pop()
            if link.is_usable() and time.monotonic() - since_s < IDLE_S_MAX:
                return link
            link.drop()
        return None

    async def _connect(self, timeout_s: float) -> "ClientConnection":
        at = self._address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(min(CONNECT_S_MAX, timeout_s)):
                _, link = await loop.create_connection(lambda: ClientConnection(loop), at.host, at.port, ssl=at.tls)
        except OSError as fault:  # TimeoutError is one
            raise _unreached(at, fault) from None
        return link


class ClientConnection(asyncio.Protocol):
    """A connection of an `AsyncTransport`, with at most one request under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._done: asyncio.Future[Response] | None = None
        self._has_begun = False
        self.is_lost = False

    async def exchange(self, request: bytes, timeout_s: float) -> Response:
        if self._transport is None or self.is_lost:
            raise Stale("the connection was closed")
        self._has_begun = False
        self._response = Response()
        done = self._done = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._fail, Unreachable(f"no answer within {timeout_s:g} s"))
        self._transport.write(request)
        try:
            response: Response = await done
            return response
        finally:
            timer.cancel()
            self._done = None

    def is_usable(self) -> bool:
        """Whether it is open and of the current event loop: a client may outlive the loop it was first used on."""
        return not self.is_lost and self._loop is asyncio.get_running_loop()

    def drop(self) -> None:
        self.is_lost = True
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        response, done = self._response, self._done
        if response is None or done is None or done.done():
            self.drop()  # there was no request
            return
        self._has_begun = True
        try:
            response.feed(data)
        except Unreachable as fault:
            self._fail(fault)
        else:
            if response.is_complete:
                done.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if exc is None and self._response is not None and self._done is not None and self._response.end():
            if not self._done.done():
                self._done.set_result(self._response)
            return
        kind = Unreachable if self._has_begun else Stale
        self._fail(kind(f"the connection broke: {exc or 'closed by the server'}"))

    def _fail(self, fault: Unreachable) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(fault)


def address_of(url: str, ca_file: str | None = None) -> Address:
    """Raises InvalidRequest for anything but an http or https address."""
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError as fault:
        raise InvalidRequest(f"{url!r} is not an address: {fault}") from None
    is_tls = parts.scheme == "https"
    is_odd = parts.username is not None or parts.query or parts.fragment or port == 0 or _ODD.search(url)
    if parts.scheme not in ("http", "https") or not host or is_odd:
        raise InvalidRequest(f"a server's address is like http://127.0.0.1:8080, not {url!r}")
    if parts.path.rstrip("/").endswith(BASE):
        raise InvalidRequest(f"a server's address ends before {BASE}, which every call adds: {url!r}")
    prefix = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
    return Address(host, port or (443 if is_tls else 80), _trust(ca_file) if is_tls else None, prefix)


_ODD = re.compile(r"[\x00-\x20\x7f]")


def _trust(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as fault:  # of files, and of ssl
        raise InvalidRequest(f"{ca_file!r} cannot be read as certificates: {fault}") from None


def _unreached(at: Address, fault: OSError) -> Unreachable:
    kind = Untrusted if isinstance(fault, ssl.SSLCertVerificationError) else Unreachable
    reason = str(fault) or "no answer in time"
    if isinstance(fault, ssl.SSLError) and fault.reason == "WRONG_VERSION_NUMBER":
        reason = "what answers there does not speak TLS; its address may begin with http:// instead of https://"
    return kind(f"cannot reach {at.host}:{at.port}: {reason}")


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _is_readable(link: socket.socket) -> bool:
    """Whether anything arrived on an idle connection: its end, or bytes that would be read as the next response."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(0))
