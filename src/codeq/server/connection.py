"""One client connection: uvicorn's HTTP protocol, with bounds on what a slow, dead or hostile client can hold."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEADER_BYTES_MAX = 16 * 1024
HEADERS_MAX = 100


class Cork:
    """A transport that sends a response's head and body in one piece: half the system calls, one packet."""

    __slots__ = ("_parts", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 100"):
            self._transport.write(data)  # the client waits for this before it sends more
        else:
            self._parts.append(data)

    def flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    header_timeout_s = 5.0
    connections_max = 20_000

    waiting: "asyncio.Task[Any] | None" = None
    """The call that waits for something to happen; ended when the client hangs up."""
    is_lost = False
    _in_headers = True
    _header_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = Cork(transport)  # type: ignore[assignment]
        if len(self.connections) > self.connections_max:
            self._refuse(503, b'{"error":"too many connections","code":"busy"}')
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and not self.is_lost:
            if self._header_bytes > HEADER_BYTES_MAX:
                self._refuse(431, b'{"error":"the headers are too large","code":"too-large"}')
            elif self._deadline is None:
                self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self.scope["codeq"] = self  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        self._unwatch()
        size = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
        if size > HEADER_BYTES_MAX or len(self.headers) > HEADERS_MAX:
            self._refuse(431, b'{"error":"the headers are too large","code":"too-large"}')
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.cycle is not None:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()

    def body_of(self, scope: Any) -> bytes | None:
        """The body of the request, if all of it has arrived; else None, and it must be awaited."""
        cycle = self.cycle
        if cycle is None or cycle.scope is not scope or cycle.more_body or cycle.waiting_for_100_continue:
            return None
        return bytes(cycle.body)

    def respond(self, scope: Any, status: int, headers: bytes, body: bytes) -> bool:
        """Answer in one write, past ASGI's two messages. False where that is not possible: then ASGI must be used."""
        cycle = self.cycle
        if cycle is None or cycle.scope is not scope or cycle.response_started or self.flow.write_paused:
            return False
        if cycle.disconnected:
            return True
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        if b"connection: close" in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            headers += b"connection: close\r\n"
        date = b"".join([b"%s: %s\r\n" % pair for pair in self.server_state.default_headers])
        self.transport.write(b"".join((STATUS_LINE[status], date, headers, b"\r\n", body)))
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._unwatch()
        super().connection_lost(exc)
        if self.waiting is not None:
            self.waiting.cancel()

    def timeout_keep_alive_handler(self) -> None:
        # A client that does not read would keep a closed connection alive with what it has not fetched.
        self.transport.abort()

    def _watch(self) -> None:
        self._deadline = self.loop.call_later(self.header_timeout_s, self._too_slow)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.is_lost:
            self._refuse(408, b'{"error":"the request did not arrive in time","code":"timeout"}')

    def _refuse(self, status: int, body: bytes) -> None:
        self._unwatch()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
