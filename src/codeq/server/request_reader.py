"""Turns the bytes of one connection into requests, with bounds, and refuses what is not acceptable as HTTP.

Of pipelined requests at most one slice is parsed; of a body that no handler reads yet at most a piece is buffered.
"""

import asyncio
from collections import deque
from enum import IntEnum
from typing import Any, NamedTuple
from urllib.parse import unquote

import httptools

from codeq.server.request import HttpRequest

HEADER_BYTES_MAX = 16 * 1024
HEADERS_MAX = 100
SLICE_BYTES = HEADER_BYTES_MAX
"""Bytes that are parsed at once: bounds how many pipelined requests are in memory. A head that arrives in one slice
cannot be too large."""
BODY_AHEAD_BYTES = 64 * 1024
"""Bytes of a body that are buffered before a handler reads it."""


class Stage(IntEnum):
    """Which part of a message the parser is in."""

    BETWEEN = 0
    HEAD = 1
    BODY = 2


class Refusal(NamedTuple):
    """A response to a request that cannot be served, after which the connection closes."""

    status: int
    body: bytes


NOT_HTTP = Refusal(400, b'{"error":"this is not HTTP","code":"invalid"}')
HEAD_TOO_LARGE = Refusal(431, b'{"error":"the headers are too large","code":"too-large"}')
UPGRADE_WITH_BODY = Refusal(400, b'{"error":"a request that offers an upgrade has no body","code":"invalid"}')
TOO_SLOW = Refusal(408, b'{"error":"the request did not arrive in time","code":"timeout"}')
TOO_MANY_CONNECTIONS = Refusal(503, b'{"error":"too many connections","code":"busy"}')

_BETWEEN, _HEAD, _BODY = Stage


class RequestReader:
    """Parses requests, until the first refusal."""

    __slots__ = (
        "_head_bytes", "_headers", "_is_head_split", "_parser", "_pieces", "_repeated", "_url", "arriving",
        "body_bytes", "body_max", "body_ready", "complete", "connection", "refusal", "stage", "unparsed",
    )  # fmt: skip

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.stage = _BETWEEN
        self.complete: deque[HttpRequest] = deque()
        """Requests with a complete body that wait for their predecessors' responses."""
        self.arriving: HttpRequest | None = None
        """The request whose body is not complete yet. It may be in process already."""
        self.body_bytes = 0
        self.body_max = BODY_AHEAD_BYTES
        self.body_ready: asyncio.Future[None] | None = None
        """Done when the body of `arriving` is complete, or longer than `body_max`."""
        self.refusal: Refusal | None = None
        self.unparsed = memoryview(b"")
        self._parser: Any = httptools.HttpRequestParser(self)
        self._head_bytes = 0
        self._is_head_split = False
        self._pieces: list[bytes] = []

    @property
    def is_ahead(self) -> bool:
        """Whether more of a body has arrived than may be buffered before a handler reads it."""
        return self.body_bytes > BODY_AHEAD_BYTES and self.body_ready is None

    def feed(self, data: bytes | memoryview) -> None:
        """Parses at most `SLICE_BYTES`."""
        if self.stage is not _BODY:
            self._is_head_split = self.stage is _HEAD
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # no other protocol is supported, so HTTP follows
            if self.refusal is None:
                self.unparsed = memoryview(bytes(data[upgrade.args[0] :]) + bytes(self.unparsed))
        except httptools.HttpParserError:
            self.refuse(NOT_HTTP)
        if self.stage is _HEAD and self._head_bytes > HEADER_BYTES_MAX:
            self.refuse(HEAD_TOO_LARGE)
        ready = self.body_ready
        if ready is not None and self.body_bytes > self.body_max and not ready.done():
            ready.set_result(None)  # it is too long, which its reader checks

    def refuse(self, refusal: Refusal) -> None:
        """Stops with this refusal; a later one is ignored."""
        if self.refusal is None:
            self.refusal = refusal
            self.unparsed = memoryview(b"")

    def drop_body(self) -> None:
        """Skips the rest of the arriving body."""
        self.arriving = None
        self._pieces = []
        self.body_bytes = 0
        self.body_max = BODY_AHEAD_BYTES
        self.body_ready = None

    def close(self) -> None:
        if self.body_ready is not None:
            self.body_ready.cancel()
        self._parser = self.connection = None  # which refer to this object: without them no cycle is left to collect

    # -- from the parser -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.stage = _HEAD
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
        self.stage = _BODY
        self._head_bytes = 0
        if self.refusal is None:
            refusal = self._refusal_of_head()
            if refusal is not None:
                self.refuse(refusal)
            else:
                self.arriving = self._request()

    def on_body(self, body: bytes) -> None:
        if self.arriving is not None:
            self._pieces.append(body)
            self.body_bytes += len(body)

    def on_message_complete(self) -> None:
        self.stage = _BETWEEN
        request = self.arriving
        if request is None:
            return
        pieces = self._pieces
        if pieces:
            request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        request.is_complete = True
        if self.body_ready is not None and not self.body_ready.done():
            self.body_ready.set_result(None)
        if request is not self.connection.current:
            self.complete.append(request)
        self.drop_body()

    # -- private -------------------------------------------------------------------------------------------------

    def _refusal_of_head(self) -> Refusal | None:
        """Returns the refusal of a head. Every rule about heads is here: a refused request reaches no handler."""
        headers = self._headers
        if len(headers) + len(self._repeated) > HEADERS_MAX:
            return HEAD_TOO_LARGE
        if self._is_head_split and self._is_head_large():
            return HEAD_TOO_LARGE
        if b"upgrade" in headers and self._parser.should_upgrade() and _has_body(headers):
            # The parser treats what follows as the other protocol; parsed as HTTP, a body could pass for a request.
            return UPGRADE_WITH_BODY
        return None

    def _is_head_large(self) -> bool:
        size = len(self._url) + sum([len(name) + len(value) for name, value in self._headers.items()])
        return size > HEADER_BYTES_MAX

    def _request(self) -> HttpRequest:
        headers, parser = self._headers, self._parser
        path, query = _split(self._url)
        request = HttpRequest(parser.get_method().decode(), path, headers, query)
        request.connection = self.connection
        # An HTTP/1.0 client requests to keep the connection open in a header; it is closed all the same.
        request.keeps_alive = parser.should_keep_alive() and (
            b"connection" not in headers or parser.get_http_version() != "1.0"
        )
        if b"expect" in headers:
            request.expects_continue = headers[b"expect"].lower() == b"100-continue"
        if self._repeated:
            request.repeated = self._repeated
        return request


def _has_body(headers: dict[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _split(url: bytes) -> tuple[str, bytes]:
    """Returns path and query of the request target."""
    if url[:1] == b"/":
        raw, _, query = url.partition(b"#")[0].partition(b"?")
    else:
        parsed = httptools.parse_url(url)
        raw, query = parsed.path or b"/", parsed.query or b""
    path = raw.decode("ascii")
    return unquote(path) if "%" in path else path, query
