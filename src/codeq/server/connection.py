"""One client connection: HTTP/1.1 in and out, with bounds on what a slow, dead or hostile client can hold.

A connection serves one request at a time and answers in the order of asking. What a client sends ahead waits in the
socket: of a pipelining client at most one slice is parsed, of a body that nobody has asked for at most a piece is kept.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httptools

from codeq.server.request import HttpRequest, HttpResponse
from codeq.server.response_head import ResponseHeads
from codeq.server.settings import Http
from codeq.server.state import request_id

HEADER_BYTES_MAX = 16 * 1024
HEADERS_MAX = 100
SLICE_BYTES = HEADER_BYTES_MAX
"""What is parsed at once: bounds how many requests sent ahead are in memory."""
BODY_AHEAD_BYTES = 64 * 1024
"""What is kept of a body before its request has been let in."""

_NEVER = float("inf")
_BETWEEN, _HEAD, _BODY = range(3)
"""Where in a message the parser stands."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What all connections of a server share."""

    begin: Callable[[HttpRequest], None]
    """Sees to it that the call is answered, now or later, by `response`. Must not raise."""
    http: Http
    heads: ResponseHeads
    connections: set[Any]
    """Those that are open."""


class Connection(asyncio.Protocol):
    __slots__ = (
        "_arriving", "_behind", "_body_bytes", "_body_max", "_body_ready", "_current", "_deadline_s", "_head_bytes",
        "_headers", "_is_closing", "_is_going_on", "_is_head_split", "_is_read_paused", "_is_stopping",
        "_is_write_paused", "_last_words", "_loop", "_parser", "_pieces", "_repeated", "_serving", "_stage", "_timed",
        "_timer", "_transport", "_unparsed", "_url", "is_lost", "waiting",
    )  # fmt: skip

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self.waiting: asyncio.Task[Any] | None = None
        """The call that waits for something to happen; ended when the client hangs up."""
        self.is_lost = False
        self._current: HttpRequest | None = None
        """The request that is being answered."""
        self._behind: deque[HttpRequest] = deque()
        """Whole requests that wait for their turn."""
        self._arriving: HttpRequest | None = None
        """The request whose body is not whole yet. It may be the current one."""
        self._unparsed = memoryview(b"")
        self._stage = _BETWEEN
        self._head_bytes = 0
        self._is_head_split = False
        self._pieces: list[bytes] = []
        self._body_bytes = 0
        self._body_max = BODY_AHEAD_BYTES
        self._body_ready: asyncio.Future[None] | None = None
        self._last_words: bytes | None = None
        """What is said once all requests before it have been answered; then the connection is closed."""
        self._is_closing = False
        self._is_stopping = False
        self._is_going_on = False
        self._is_read_paused = False
        self._is_write_paused = False
        self._deadline_s = _NEVER
        self._timed = _HEAD
        """What the deadline is for: the rest of a head, the rest of a body, or the next request."""
        self._timer: asyncio.TimerHandle | None = None

    # -- from the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._serving.connections.add(self)
        if len(self._serving.connections) > self._serving.http.connections_max:
            self._refuse(503, b'{"error":"too many connections","code":"busy"}')
            self._go_on()
        else:
            self._give(self._serving.http.header_timeout_seconds)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_lost = self._is_closing = True
        self._serving.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._body_ready is not None:
            self._body_ready.cancel()
        if self.waiting is not None:
            self.waiting.cancel()
        self._parser = None  # it refers to this object

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if len(data) <= SLICE_BYTES and not self._unparsed:
            self._parse(data)
        else:
            self._unparsed = memoryview(bytes(self._unparsed) + data)
        self._go_on()

    def eof_received(self) -> None:
        self._is_closing = True  # the client has gone, or will not know better: the transport closes now

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._go_on()

    # -- from the server and the app -----------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Close as soon as the request under way, if there is one, has been answered."""
        self._is_stopping = True
        if self._current is None:
            self._close()

    def abort(self) -> None:
        self._is_closing = True
        self._transport.abort()

    def response(self, request: HttpRequest, response: HttpResponse) -> None:
        """Answer the current call, in one write, and turn to the next."""
        if self._is_closing:
            return
        is_unread = self._arriving is request
        is_last = (
            response.closes or self._is_stopping or not request.keeps_alive or (is_unread and request.expects_continue)
        )
        head = self._serving.heads.head(response, request.request_id, closes=is_last)
        self._transport.write(head if request.method == "HEAD" else head + response.body)
        self._current = None
        if is_unread:  # the rest of the body is passed over
            self._forget_body()
        if is_last:
            self._close()
        else:
            self._go_on()

    async def body(self, request: HttpRequest, most: int) -> bytes | None:
        """The body of the current call, as soon as all of it is there; None if it is longer than `most`."""
        if self.is_lost:
            raise asyncio.CancelledError
        if self._arriving is request:
            if request.expects_continue:
                request.expects_continue = False
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._body_max = most
            ready = self._body_ready = self._loop.create_future()
            self._go_on()
            await ready
            if self._arriving is request:
                return None
        return request.body if len(request.body) <= most else None

    # -- from the parser -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._stage = _HEAD
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._repeated: list[bytes] = []
        self._is_head_split = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self._headers:
            self._repeated.append(name)
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        self._stage = _BODY
        self._head_bytes = 0
        headers, parser = self._headers, self._parser
        if self._is_closing or self._last_words is not None:
            return
        if len(headers) + len(self._repeated) > HEADERS_MAX or (self._is_head_split and self._is_head_large()):
            self._refuse(431, b'{"error":"the headers are too large","code":"too-large"}')
            return
        if b"upgrade" in headers and parser.should_upgrade() and _has_body(headers):
            # The parser takes what follows for the other protocol; read as HTTP, a body could pass for a request.
            self._refuse(400, b'{"error":"a request that offers an upgrade has no body","code":"invalid"}')
            return
        path, query = _split(self._url)
        # A client of HTTP/1.0 that asks to keep the connection says so in a header; we do not keep it all the same.
        keeps = parser.should_keep_alive() and (b"connection" not in headers or parser.get_http_version() != "1.0")
        request = self._arriving = HttpRequest(parser.get_method().decode(), path, headers, query)
        request.connection = self
        request.keeps_alive = keeps
        if b"expect" in headers:
            request.expects_continue = headers[b"expect"].lower() == b"100-continue"
        if self._repeated:
            request.repeated = self._repeated

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None:
            self._pieces.append(body)
            self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        self._stage = _BETWEEN
        request = self._arriving
        if request is None:
            return
        pieces = self._pieces
        if pieces:
            request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        request.is_whole = True
        if self._body_ready is not None and not self._body_ready.done():
            self._body_ready.set_result(None)
        if request is not self._current:
            self._behind.append(request)
        self._forget_body()

    # -- inside --------------------------------------------------------------------------------------------------

    def _parse(self, data: bytes | memoryview) -> None:
        if self._stage != _BODY:
            self._is_head_split = self._stage == _HEAD
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # we speak nothing else, so what follows is HTTP again
            self._unparsed = memoryview(bytes(data[upgrade.args[0] :]) + bytes(self._unparsed))
        except httptools.HttpParserError:
            self._refuse(400, b'{"error":"this is not HTTP","code":"invalid"}')
        if self._stage == _HEAD and self._head_bytes > HEADER_BYTES_MAX:
            self._refuse(431, b'{"error":"the headers are too large","code":"too-large"}')
        ready = self._body_ready
        if ready is not None and self._body_bytes > self._body_max and not ready.done():
            ready.set_result(None)  # it is too long, which its reader will see

    def _go_on(self) -> None:
        """Parse on while no request waits, begin what may begin, and read as long as that stays bounded."""
        if self._is_going_on:
            return  # this is an answer given at once: the loop below goes on by itself
        self._is_going_on = True
        while not self._is_closing:
            if self._unparsed and not self._behind and not self._is_ahead():
                piece, self._unparsed = self._unparsed[:SLICE_BYTES], self._unparsed[SLICE_BYTES:]
                self._parse(piece)
            elif self._current is not None or self._is_write_paused:
                break
            elif self._behind or (self._arriving is not None and self._last_words is None):
                request = self._current = self._behind.popleft() if self._behind else self._arriving
                self._deadline_s, self._timed = _NEVER, _BETWEEN
                self._serving.begin(request)  # type: ignore[arg-type]
            elif self._last_words is not None:
                self._transport.write(self._last_words)
                self._close()
            else:
                break
        self._is_going_on = False
        if not self._is_closing:
            self._set_bounds()

    def _set_bounds(self) -> None:
        is_ahead = bool(self._unparsed or self._behind or self._last_words) or self._is_write_paused or self._is_ahead()
        if is_ahead != self._is_read_paused:
            self._is_read_paused = is_ahead
            if is_ahead:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if self._current is not None:
            return
        http, stage = self._serving.http, _BETWEEN if self._is_write_paused else self._stage
        if stage == _BETWEEN:
            self._give(http.idle_timeout_seconds)
        elif stage != self._timed:  # else it runs already, and a drop now and then does not prolong it
            self._give(http.header_timeout_seconds if stage == _HEAD else http.body_timeout_seconds)
        self._timed = stage

    def _is_ahead(self) -> bool:
        """Whether there is more of a body than may be there before it is asked for."""
        return self._body_bytes > BODY_AHEAD_BYTES and self._body_ready is None

    def _is_head_large(self) -> bool:
        size = len(self._url) + sum([len(name) + len(value) for name, value in self._headers.items()])
        return size > HEADER_BYTES_MAX

    def _forget_body(self) -> None:
        self._arriving = None
        self._pieces = []
        self._body_bytes = 0
        self._body_max = BODY_AHEAD_BYTES
        self._body_ready = None

    def _refuse(self, status: int, body: bytes) -> None:
        """Say so and close, once everything before has been answered."""
        if self._last_words is None:
            self._last_words = self._serving.heads.head(HttpResponse(status, body), request_id(), closes=True) + body
            self._unparsed = memoryview(b"")
            if self._arriving is self._current:
                self._current = None  # its body will never be whole, so this is its answer
            else:
                self._forget_body()

    def _close(self) -> None:
        self._is_closing = True
        self._behind.clear()
        self._give(self._serving.http.idle_timeout_seconds)  # for the client to fetch what is under way to it
        self._transport.close()

    def _give(self, seconds: float) -> None:
        """Set the time by which the client must have done its part.

        The timer is left running while the deadline moves on: it looks again when it fires, and requests in quick
        succession cost no timer each.
        """
        self._deadline_s = deadline_s = self._loop.time() + seconds
        timer = self._timer
        if timer is None:
            self._timer = self._loop.call_at(deadline_s, self._look)
        elif timer.when() > deadline_s:
            timer.cancel()
            self._timer = self._loop.call_at(deadline_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.is_lost or self._deadline_s == _NEVER:
            return
        if self._deadline_s > self._loop.time() + 0.001:
            self._timer = self._loop.call_at(self._deadline_s, self._look)
        elif self._timed == _HEAD and not self._is_closing:
            self._refuse(408, b'{"error":"the request did not arrive in time","code":"timeout"}')
            self._go_on()
        else:
            # Not closed: a client that does not read would keep the connection alive with what it has not fetched.
            self.abort()


def _has_body(headers: dict[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _split(url: bytes) -> tuple[str, bytes]:
    """Path and query of what was asked for."""
    if url[:1] == b"/":
        raw, _, query = url.partition(b"#")[0].partition(b"?")
    else:
        parsed = httptools.parse_url(url)
        raw, query = parsed.path or b"/", parsed.query or b""
    path = raw.decode("ascii")
    return unquote(path) if "%" in path else path, query
