"""Turns the bytes of one connection into requests, with bounds, and refuses what is not acceptable as HTTP.

Of pipelined requests at most one slice is parsed; of a body that no handler reads yet at most a piece is buffered.
"""

import asyncio
import re
from collections import deque
from enum import IntEnum
from typing import Any, NamedTuple
from urllib.parse import unquote

import httptools

from codeq.server.request import HttpRequest, HttpResponse

HEADER_BYTES_MAX = 16 * 1024
HEADERS_MAX = 100
SLICE_BYTES = HEADER_BYTES_MAX
"""Bytes of a body that are parsed at once."""
HEAD_SLICE_BYTES = 2 * 1024
"""Bytes that are parsed at once where requests begin: a head with a long token, or some sixty of the shortest requests,
which are in memory then and take a third of a millisecond."""
BODY_AHEAD_BYTES = 64 * 1024
"""Bytes of a body that are buffered before a handler reads it."""
SKIP_BYTES_MAX = 256 * 1024
"""Bytes of an unwanted body that are skipped to keep the connection, as in Go; with more to come, or an unknown length,
the connection closes."""
BODY_PER_FRAMING_BYTE = 8
"""Chunk sizes, chunk extensions and trailers may take eight times the bytes of the body between them, and
`HEADER_BYTES_MAX` besides: chunks of one byte pass, extensions and trailers without end do not."""


class Stage(IntEnum):
    """What the client has to do next: send a request, the rest of a head, the rest of a body, or read a response.

    The first three are also where the parser is.
    """

    BETWEEN = 0
    HEAD = 1
    BODY = 2
    READING = 3


class RequestLine(NamedTuple):
    """What the first line of a request says."""

    method: str
    path: str
    query: bytes
    version: str


class Refusal(NamedTuple):
    """A response to a request that cannot be served, after which the connection closes."""

    status: int
    body: bytes

    @property
    def response(self) -> HttpResponse:
        return HttpResponse(self.status, self.body, headers=[(b"retry-after", b"1")] if self.status == 503 else [])


NOT_HTTP = Refusal(400, b'{"error":"a line of the request is not HTTP/1.1","code":"invalid"}')
NO_FIRST_LINE = Refusal(400, b'{"error":"the first line of a request is: METHOD /path HTTP/1.1","code":"invalid"}')
NO_VERSION = Refusal(400, b'{"error":"this server understands HTTP/1.1, no other version","code":"invalid"}')
NO_TLS = Refusal(400, b'{"error":"this port understands http, not https: TLS is up to a proxy","code":"invalid"}')
NO_HEADERS = Refusal(400, b'{"error":"a header line of the request is malformed","code":"invalid"}')
NO_CHUNKS = Refusal(400, b'{"error":"the chunks of the body are malformed","code":"invalid"}')
NO_HOST = Refusal(400, b'{"error":"a request has one valid Host header","code":"invalid"}')
NO_CODING = Refusal(501, b'{"error":"the only transfer coding is one chunked, in HTTP/1.1","code":"invalid"}')
NO_TUNNEL = Refusal(501, b'{"error":"this server is not a proxy: there is no CONNECT","code":"invalid"}')
FRAMING_TOO_LARGE = Refusal(400, b'{"error":"chunk extensions or trailers are too large","code":"too-large"}')
INCOMPLETE = Refusal(400, b'{"error":"the request ended before it was complete","code":"invalid"}')
HEAD_TOO_LARGE = Refusal(431, b'{"error":"the headers are too large","code":"too-large"}')
UPGRADE_WITH_BODY = Refusal(400, b'{"error":"a request that offers an upgrade has no body","code":"invalid"}')
TOO_SLOW = Refusal(408, b'{"error":"the request did not arrive in time","code":"timeout"}')
TOO_MANY_CONNECTIONS = Refusal(503, b'{"error":"too many connections","code":"busy"}')

_BETWEEN, _HEAD, _BODY, _ = Stage
_LINES: dict[bytes, RequestLine] = {}
"""The lines of the last valid requests, of all clients: most are sent again and again."""
_LINES_MAX = 256
_LINE_BYTES_MAX = 64
"""Of a line that is remembered. One with the id of a task is longer, and is not likely to come again."""
_FIRST_LINE = re.compile(rb"[A-Z]+ [!-~\x80-\xff]+ HTTP/[0-9.]+")
_FAULTS_OF_FIRST_LINE = (httptools.HttpParserInvalidMethodError, httptools.HttpParserInvalidURLError)
_TLS_HANDSHAKE = b"\x16"
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?")
"""`uri-host [":" port]` of RFC 9110, section 7.2."""


class RequestReader:
    """Parses requests, until the first refusal."""

    __slots__ = (
        "_framing_bytes", "_head_bytes", "_headers", "_host", "_parser", "_pieces", "_raw", "_raw_at", "_repeated",
        "_url", "arriving", "body_bytes", "body_max", "body_ready", "complete", "connection", "refusal",
        "stage", "taken_bytes", "unparsed",
    )  # fmt: skip

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.stage = _BETWEEN
        self.complete: deque[HttpRequest] = deque()
        """Requests with a complete body that wait for their predecessors' responses."""
        self.arriving: HttpRequest | None = None
        """The request whose body is not complete yet. It may be in process already."""
        self.body_bytes = 0
        """Of the arriving body, without what was taken."""
        self.taken_bytes = 0
        self.body_max = BODY_AHEAD_BYTES
        self.body_ready: asyncio.Future[None] | None = None
        """Done when the body of `arriving` is complete, or longer than `body_max`."""
        self.refusal: Refusal | None = None
        self.unparsed = bytearray()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._head_bytes = 0
        self._raw = b""
        """The slice that is being parsed, after those with the beginning of the same head."""
        self._raw_at = 0
        """Where in it the next request line may begin: after the last one, and not at 0 if a body is there."""
        self._host = b""
        """The last valid one: most clients always send the same."""
        self._framing_bytes = 0
        self._pieces: list[bytes] = []

    @property
    def is_ahead(self) -> bool:
        """Whether more of a body has arrived than may be buffered before a handler reads it."""
        return self.body_bytes > self.body_max

    @property
    def is_cut_off(self) -> bool:
        """Whether a request that nobody has answered is incomplete."""
        return self.stage is _HEAD or self.arriving is not None

    @property
    def can_skip(self) -> bool:
        """Whether the rest of the arriving body is short enough to be skipped."""
        length = self.arriving.headers.get(b"content-length") if self.arriving is not None else None
        return length is not None and int(length) - self.taken_bytes - self.body_bytes <= SKIP_BYTES_MAX

    @property
    def slice_bytes(self) -> int:
        """How much may be parsed at once here."""
        return SLICE_BYTES if self.stage is _BODY else HEAD_SLICE_BYTES

    def next_slice(self) -> bytes:
        """Returns what to parse next, and removes it from `unparsed`."""
        size = self.slice_bytes
        data = bytes(memoryview(self.unparsed)[:size])
        del self.unparsed[:size]
        return data

    def feed(self, data: bytes) -> None:
        """Parses at most `slice_bytes`."""
        if self.stage is _BODY:
            self._framing_bytes = max(self._framing_bytes, 0) + len(data)
            self._raw_at = 1
        else:
            self._head_bytes += len(data)
        self._raw = self._raw + data if self._raw else data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # no other protocol is supported, so HTTP follows
            if self.refusal is None:
                self.unparsed[:0] = data[upgrade.args[0] :]
        except httptools.HttpParserError as fault:
            self.refuse(self._refusal_of_bytes(fault))
        if (stage := self.stage) is not _HEAD:
            self._raw, self._raw_at = b"", 0
        if stage is _BODY:
            if self._framing_bytes > HEADER_BYTES_MAX:
                self.refuse(FRAMING_TOO_LARGE)
        elif self._head_bytes > HEADER_BYTES_MAX:
            self.refuse(HEAD_TOO_LARGE)
        ready = self.body_ready
        if ready is not None and self.body_bytes > self.body_max and not ready.done():
            ready.set_result(None)  # it is too long, which its reader checks

    def refuse(self, refusal: Refusal) -> None:
        """Stops with this refusal; a later one is ignored."""
        if self.refusal is None:
            self.refusal = refusal
            self.unparsed.clear()

    def take_body(self) -> bytes:
        """Returns what has arrived of the body since the last time."""
        pieces, self._pieces = self._pieces, []
        self.taken_bytes += self.body_bytes
        self.body_bytes = 0
        return b"".join(pieces)

    def drop_body(self) -> None:
        """Skips the rest of the arriving body."""
        self.arriving = None
        self._pieces = []
        self.body_bytes = self.taken_bytes = 0
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

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name, headers = name.lower(), self._headers
        if name in headers:
            self._repeated.append(name)
        headers[name] = value.rstrip()

    def on_headers_complete(self) -> None:
        self.stage = _BODY
        self._head_bytes = self._framing_bytes = 0
        if self.refusal is None:
            line = self._request_line()
            if isinstance(line, Refusal):
                self.refuse(line)
            elif refusal := self._refusal_of_head(line):
                self.refuse(refusal)
            else:
                self.arriving = self._request(line)
        self._headers = {}  # of trailers, which nobody reads: none may pass for a header

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= (1 + BODY_PER_FRAMING_BYTE) * len(body)
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

    def _request_line(self) -> RequestLine | Refusal:
        """Returns the request line, or the refusal of it or of a head that is too long."""
        raw, begin = self._raw, self._raw_at
        end = 0 if begin else raw.find(b"\r\n") + 2
        line: RequestLine | Refusal | None = _LINES.get(raw[:end])
        if line is None:
            line = self._parse_line()
        else:
            self._raw_at = end
        if len(raw) > HEADER_BYTES_MAX and raw.find(b"\r\n\r\n", begin) - begin > HEADER_BYTES_MAX - 4:
            return HEAD_TOO_LARGE
        return line

    def _parse_line(self) -> RequestLine | Refusal:
        """Returns the request line, or its refusal: the parser skips spaces in it, and takes other versions."""
        begin, method, version = self._raw_at, self._parser.get_method(), self._parser.get_http_version()
        text = b"%b %b HTTP/%b\r\n" % (method, self._url, version.encode())
        found = self._raw.find(text, begin)
        is_first = not begin and not self._raw[:found].strip(b"\r\n")
        if found < 0 or version not in ("1.0", "1.1") or not (begin or is_first):
            return self._refusal_of_bytes()
        self._raw_at = found + len(text)
        line = RequestLine(method.decode(), *_split(self._url), version)
        if len(text) <= _LINE_BYTES_MAX:
            if len(_LINES) >= _LINES_MAX:
                _LINES.clear()
            _LINES[text] = line
        return line

    def _refusal_of_head(self, line: RequestLine) -> Refusal | None:
        """Returns the refusal of the headers. Every rule that the parser does not enforce is here: RFC 9112."""
        headers, repeated, version = self._headers, self._repeated, line.version
        if len(headers) + len(repeated) > HEADERS_MAX:
            return HEAD_TOO_LARGE
        host = headers.get(b"host")
        if ((not host or host != self._host) and not self._is_valid(host, version)) or b"host" in repeated:
            return NO_HOST
        if b"transfer-encoding" in headers and (
            headers[b"transfer-encoding"].lower() != b"chunked" or b"transfer-encoding" in repeated or version == "1.0"
        ):
            return NO_CODING
        if line.method == "CONNECT":
            return NO_TUNNEL
        if b"upgrade" in headers and self._parser.should_upgrade() and _has_body(headers):
            # The parser treats what follows as the other protocol; parsed as HTTP, a body could pass for a request.
            return UPGRADE_WITH_BODY
        return None

    def _refusal_of_bytes(self, fault: httptools.HttpParserError | None = None) -> Refusal:
        """Returns what is wrong with bytes that are not HTTP/1.1."""
        if self.arriving is not None:
            return NO_CHUNKS
        if self._raw[:1] == _TLS_HANDSHAKE:
            return NO_TLS
        if isinstance(fault, _FAULTS_OF_FIRST_LINE):
            return NO_FIRST_LINE
        if self._raw_at:
            return NOT_HTTP  # behind another request: where its first line begins is not known
        line, end, _ = self._raw.lstrip(b"\r\n").partition(b"\r\n")
        if not _FIRST_LINE.fullmatch(line):
            return NO_FIRST_LINE
        if not line.endswith((b" HTTP/1.1", b" HTTP/1.0")):
            return NO_VERSION
        return NO_HEADERS if end else NO_FIRST_LINE

    def _is_valid(self, host: bytes | None, version: str) -> bool:
        if host is None:
            return version == "1.0"
        self._host = host if _HOST.fullmatch(host) else b""
        return self._host == host

    def _request(self, line: RequestLine) -> HttpRequest:
        method, path, query, version = line
        headers = self._headers
        request = HttpRequest(method, path, headers, query)
        request.connection = self.connection
        # An HTTP/1.0 client requests to keep the connection open in a header; it is closed all the same.
        request.keeps_alive = self._parser.should_keep_alive() and (b"connection" not in headers or version != "1.0")
        if b"expect" in headers and version == "1.1":
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
