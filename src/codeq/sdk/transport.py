"""HTTP/1.1 for a client: one exchange at a time on a kept-alive connection, awaited or blocking.

A general client library costs several times what the request itself does (see ADR 8), and users feel that when they
enqueue one by one. Parsing is httptools', which is also what answers on the other side.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections import deque
from typing import Protocol
from urllib.parse import urlsplit

import httptools
from msgspec import Struct

from codeq.domain.errors import InvalidRequest
from codeq.wire.errors import Unreachable

CONNECT_S_MAX = 5.0
IDLE_MAX = 64
IDLE_S_MAX = 4.0
"""Less than the server keeps an idle connection, so that a request rarely meets one that is being closed."""
READ_BYTES = 256 * 1024


class Address(Struct, frozen=True):
    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    """What comes before every path, for a server behind a proxy."""


class Answer:
    """A response while it arrives."""

    __slots__ = ("body", "headers", "is_complete", "keep_alive", "parser", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.is_complete = False
        self.keep_alive = False
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body = self.body + body if self.body else body

    def on_message_complete(self) -> None:
        self.status = self.parser.get_status_code()
        if self.status == 100:
            return
        self.keep_alive = self.parser.should_keep_alive()
        self.is_complete = True

    def feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as fault:
            raise Unreachable(f"what answers is not an HTTP server: {fault}") from None


class Transport(Protocol):
    async def exchange(self, request: bytes, timeout_s: float) -> Answer:
        """Send one request and read its answer. Raises Unreachable: then it may or may not have been carried out."""

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


class Stale(Unreachable):
    """A kept connection broke before a byte of the answer: the server had closed it, so a new one is tried at once."""


class BlockingTransport:
    """Awaits nothing: its coroutines run to their end at the first step. For any number of threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[tuple[socket.socket, float]] = deque()
        self._pid = os.getpid()

    async def exchange(self, request: bytes, timeout_s: float) -> Answer:
        kept = self._kept()
        if kept is not None:
            with contextlib.suppress(Stale):
                return self._exchange(kept, request, timeout_s)
        return self._exchange(self._connect(), request, timeout_s)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop under this one

    async def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()

    def _exchange(self, link: socket.socket, request: bytes, timeout_s: float) -> Answer:
        answer = Answer()
        deadline_s = time.monotonic() + timeout_s
        has_begun = False
        try:
            link.settimeout(timeout_s)
            link.sendall(request)
            while not answer.is_complete:
                data = link.recv(READ_BYTES)
                if not data:
                    raise ConnectionResetError("closed by the server")
                answer.feed(data)
                has_begun = True
                if not answer.is_complete:
                    link.settimeout(max(0.001, deadline_s - time.monotonic()))
        except BaseException as fault:
            link.close()
            if isinstance(fault, TimeoutError):
                raise Unreachable(f"no answer within {timeout_s:.0f} s") from None
            if isinstance(fault, OSError):
                raise (Unreachable if has_begun else Stale)(f"the connection broke: {fault}") from None
            raise
        if answer.keep_alive and len(self._idle) < IDLE_MAX:
            self._idle.append((link, time.monotonic()))
        else:
            link.close()
        return answer

    def _kept(self) -> socket.socket | None:
        if self._pid != os.getpid():  # a forked child must not speak on its parent's connections
            self._idle, self._pid = deque(), os.getpid()
        while True:
            try:
                link, since_s = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since_s < IDLE_S_MAX:
                return link
            link.close()

    def _connect(self) -> socket.socket:
        at = self._address
        try:
            link = socket.create_connection((at.host, at.port), CONNECT_S_MAX)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return at.tls.wrap_socket(link, server_hostname=at.host) if at.tls else link
        except OSError as fault:
            raise Unreachable(f"cannot reach {at.host}:{at.port}: {fault}") from None


class AsyncTransport:
    """On the running event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[tuple[Link, float]] = deque()

    async def exchange(self, request: bytes, timeout_s: float) -> Answer:
        kept = self._kept()
        if kept is not None:
            with contextlib.suppress(Stale):
                return await self._exchange(kept, request, timeout_s)
        return await self._exchange(await self._connect(), request, timeout_s)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].drop()

    async def _exchange(self, link: "Link", request: bytes, timeout_s: float) -> Answer:
        try:
            answer = await link.exchange(request, timeout_s)
        except BaseException:
            link.drop()
            raise
        if answer.keep_alive and len(self._idle) < IDLE_MAX and not link.is_lost:
            self._idle.append((link, time.monotonic()))
        else:
            link.drop()
        return answer

    def _kept(self) -> "Link | None":
        while self._idle:
            link, since_s = self._idle.pop()
            if not link.is_lost and time.monotonic() - since_s < IDLE_S_MAX:
                return link
            link.drop()
        return None

    async def _connect(self) -> "Link":
        at = self._address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                _, link = await loop.create_connection(lambda: Link(loop), at.host, at.port, ssl=at.tls)
        except OSError as fault:  # TimeoutError is one
            raise Unreachable(f"cannot reach {at.host}:{at.port}: {fault or 'no answer'}") from None
        return link


class Link(asyncio.Protocol):
    """One connection of an `AsyncTransport`, in the middle of one exchange or of none."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._done: asyncio.Future[Answer] | None = None
        self._has_begun = False
        self.is_lost = False

    async def exchange(self, request: bytes, timeout_s: float) -> Answer:
        if self._transport is None or self.is_lost:
            raise Stale("the connection was closed")
        self._has_begun = False
        self._answer = Answer()
        done = self._done = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._fail, Unreachable(f"no answer within {timeout_s:.0f} s"))
        self._transport.write(request)
        try:
            answer: Answer = await done
            return answer
        finally:
            timer.cancel()
            self._done = None

    def drop(self) -> None:
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        answer, done = self._answer, self._done
        if answer is None or done is None or done.done():
            self.drop()  # nobody asked
            return
        self._has_begun = True
        try:
            answer.feed(data)
        except Unreachable as fault:
            self._fail(fault)
        else:
            if answer.is_complete:
                done.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        kind = Unreachable if self._has_begun else Stale
        self._fail(kind(f"the connection broke: {exc or 'closed by the server'}"))

    def _fail(self, fault: Unreachable) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(fault)


def address_of(url: str, ca_file: str | None = None) -> Address:
    """Raises InvalidRequest for what is no http or https address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as fault:
        raise InvalidRequest(f"{url!r} is not an address: {fault}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidRequest(f"a server's address is like http://127.0.0.1:8080, not {url!r}")
    is_tls = parts.scheme == "https"
    tls = ssl.create_default_context(cafile=ca_file) if is_tls else None
    return Address(parts.hostname, port or (443 if is_tls else 80), tls, parts.path.rstrip("/"))
