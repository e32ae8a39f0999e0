"""HTTP/1.1 for a client: one exchange at a time on a kept-alive connection, awaited or blocking.

A general client library costs several times what the request itself does (see ADR 8), and users feel that when they
enqueue one by one. Parsing is httptools', which is also what answers on the other side.
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
from typing import Protocol
from urllib.parse import quote, urlsplit

import httptools
from msgspec import Struct

from codeq.domain.errors import InvalidRequest, StoreClosed
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
        if self.is_complete:  # a second answer, which nobody asked for: what comes next cannot be trusted to be ours
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
        if self.status < 200:  # a word in between; the answer itself is still to come
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
        """The connection has ended. True if that is the end of the answer too: it did not say how long it would be."""
        is_measured = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        if self.status >= 200 and not self.is_complete and not is_measured:
            self.is_complete = True
            self.body = b"".join(self._parts)
        return self.is_complete


class Transport(Protocol):
    async def exchange(self, request: bytes, timeout_s: float) -> Answer:
        """Send one request and read its answer. Raises Unreachable: then it may or may not have been carried out."""

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


class Stale(Unreachable):
    """A kept connection broke before a byte of the answer: the server had closed it, so a new one is tried at once."""


class Untrusted(Unreachable):
    """The server's certificate is not one to trust. Asking again would not change it."""


class BlockingTransport:
    """Awaits nothing: its coroutines run to their end at the first step. For any number of threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[tuple[socket.socket, float]] = deque()
        self._pid = os.getpid()
        self._is_closed = False

    async def exchange(self, request: bytes, timeout_s: float) -> Answer:
        if self._is_closed:
            raise StoreClosed("this client was closed")
        kept = self._details()
        if kept is not None:
            with contextlib.suppress(Stale):
                return self._exchange(kept, request, timeout_s)
        return self._exchange(self._connect(timeout_s), request, timeout_s)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop under this one

    async def close(self) -> None:
        self._is_closed = True
        self._drop_idle()

    def _exchange(self, link: socket.socket, request: bytes, timeout_s: float) -> Answer:
        answer = Answer()
        deadline_s = time.monotonic() + timeout_s
        has_begun = False
        try:
            link.settimeout(timeout_s)
            link.sendall(request)
            while not answer.is_complete:
                link.settimeout(_left(deadline_s))
                data = link.recv(READ_BYTES)
                if data:
                    answer.feed(data)
                    has_begun = True
                elif not answer.end():
                    raise ConnectionResetError("closed by the server")
        except BaseException as fault:
            link.close()
            if isinstance(fault, TimeoutError):
                raise Unreachable(f"no answer within {timeout_s:g} s") from None
            if isinstance(fault, OSError):
                raise (Unreachable if has_begun else Stale)(f"the connection broke: {fault}") from None
            raise
        if answer.keep_alive and len(self._idle) < IDLE_MAX:
            self._idle.append((link, time.monotonic()))
            if self._is_closed:  # meanwhile, by another thread
                self._drop_idle()
        else:
            link.close()
        return answer

    def _details(self) -> socket.socket | None:
        if self._pid != os.getpid():  # a forked child must not speak on its parent's connections
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
    """On the running event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[tuple[Link, float]] = deque()
        self._is_closed = False

    async def exchange(self, request: bytes, timeout_s: float) -> Answer:
        if self._is_closed:
            raise StoreClosed("this client was closed")
        kept = self._details()
        if kept is not None:
            with contextlib.suppress(Stale):
                return await self._exchange(kept, request, timeout_s)
        return await self._exchange(await self._connect(timeout_s), request, timeout_s)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        self._is_closed = True
        while self._idle:
            self._idle.pop()[0].drop()

    async def _exchange(self, link: "Link", request: bytes, timeout_s: float) -> Answer:
        try:
            answer = await link.exchange(request, timeout_s)
        except BaseException:
            link.drop()
            raise
        if answer.keep_alive and len(self._idle) < IDLE_MAX and not link.is_lost and not self._is_closed:
            self._idle.append((link, time.monotonic()))
        else:
            link.drop()
        return answer

    def _details(self) -> "Link | None":
        while self._idle:
            link, since_s = self._idle.pop()
            if link.is_usable() and time.monotonic() - since_s < IDLE_S_MAX:
                return link
            link.drop()
        return None

    async def _connect(self, timeout_s: float) -> "Link":
        at = self._address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(min(CONNECT_S_MAX, timeout_s)):
                _, link = await loop.create_connection(lambda: Link(loop), at.host, at.port, ssl=at.tls)
        except OSError as fault:  # TimeoutError is one
            raise _unreached(at, fault) from None
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
        timer = self._loop.call_later(timeout_s, self._fail, Unreachable(f"no answer within {timeout_s:g} s"))
        self._transport.write(request)
        try:
            answer: Answer = await done
            return answer
        finally:
            timer.cancel()
            self._done = None

    def is_usable(self) -> bool:
        """Not lost, and of the event loop that runs now: a client may outlive the loop it was first used on."""
        return not self.is_lost and self._loop is asyncio.get_running_loop()

    def drop(self) -> None:
        self.is_lost = True
        if self._transport is not None and not self._loop.is_closed():
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
        if exc is None and self._answer is not None and self._done is not None and self._answer.end():
            if not self._done.done():
                self._done.set_result(self._answer)
            return
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
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError as fault:
        raise InvalidRequest(f"{url!r} is not an address: {fault}") from None
    is_tls = parts.scheme == "https"
    is_odd = parts.username is not None or parts.query or parts.fragment or port == 0 or _ODD.search(url)
    if parts.scheme not in ("http", "https") or not host or is_odd:
        raise InvalidRequest(f"a server's address is like http://127.0.0.1:8080, not {url!r}")
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
    return kind(f"cannot reach {at.host}:{at.port}: {str(fault) or 'no answer in time'}")


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _is_readable(link: socket.socket) -> bool:
    """Nothing should arrive while nobody asks: it is the end, or an answer that would be taken for the next one."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(0))
