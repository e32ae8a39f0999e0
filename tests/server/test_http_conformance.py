"""How bytes are read as requests: as h11 reads them, or more strictly, with the reason."""

from collections.abc import Iterator

import msgspec
import pytest
from tests.server.echo_server import EchoServer, Seen, Verdict, h11_verdict
from tests.server.http_cases import CASES

from codeq.server.request_reader import RequestReader

NO_VERSION = "only HTTP/1.0 and HTTP/1.1 are spoken"
NO_METHOD = "the parser knows the registered methods, and no others"
NO_HOST = "RFC 9112, 3.2: a Host with an invalid value is answered with 400"
NO_FOLD = "RFC 9112, 5.2: a server may refuse line folding"
NO_LF = "RFC 9112, 2.2: accepting LF alone is allowed, not required, and differs between parsers"
NO_CONTROL = "RFC 9110, 5.5: control characters in values are invalid"
BOUNDED = "heads, chunk extensions and trailers are bounded by 16 KB"
NO_LIST = "RFC 9112, 6.3: more than one length may be refused, even if they are equal"
NO_BOTH = "RFC 9112, 6.1: length and coding together are an attempt at request smuggling"
NO_CODING = "RFC 9112, 6.1: a coding in HTTP/1.0 is faulty framing"
NO_CHUNK_SPACE = "RFC 9112, 7.1: there is no space after a chunk's size"
NO_TRAILER = "RFC 9110, 6.5.1: fields of framing are not allowed in trailers"
NO_TUNNEL = "RFC 9110, 9.3.6: CONNECT is for proxies; what follows it may be another protocol"
NO_UPGRADE = "the parser takes the body behind an offer to upgrade for the other protocol"

STRICTER = {
    **dict.fromkeys(
        [f"request line: {name}" for name in ("HTTP/1.2", "HTTP/2.0", "HTTP/0.9 by name", "HTTP/9.9")], NO_VERSION
    ),
    "request line: preface of HTTP/2": NO_VERSION,
    "request line: method in lower case": NO_METHOD,
    "request line: unknown method": NO_METHOD,
    "pipeline: nonsense after a body": NO_METHOD,
    "request line: target without a slash": "RFC 9112, 3.2: a target begins with a slash, or is a URI",
    **dict.fromkeys(
        [
            f"headers: Host with {what}"
            for what in ("a space", "a slash", "a user", "two names", "a bad port", "obs-text")
        ],
        NO_HOST,
    ),
    "headers: space before the name": NO_FOLD,
    "headers: fold": NO_FOLD,
    "headers: fold of spaces alone": NO_FOLD,
    "length: coding folded": NO_FOLD,
    "headers: control character in the value": NO_CONTROL,
    "request line: LF at the end of the line": NO_LF,
    "headers: LF after a header": NO_LF,
    "headers: LF for the empty line": NO_LF,
    "headers: LF alone": NO_LF,
    "chunks: a trailer with LF": NO_LF,
    "headers: a value of 20 KB": BOUNDED,
    "headers: a target of 20 KB": BOUNDED,
    "chunks: an extension of 100 KB": BOUNDED,
    "chunks: a trailer of 100 KB": BOUNDED,
    "chunks: 10000 trailers": BOUNDED,
    "request line: too many blank lines": BOUNDED,
    "length: a list of equal lengths": NO_LIST,
    "length: equal lengths": NO_LIST,
    "length: length and coding": NO_BOTH,
    "length: length 0 and coding": NO_BOTH,
    "length: coding in HTTP/1.0": NO_CODING,
    "chunks: size with a space last": NO_CHUNK_SPACE,
    "chunks: an extension with a control character": NO_CONTROL,
    "chunks: an extension with CR": NO_CONTROL,
    "chunks: trailers of framing": NO_TRAILER,
    "chunks: a trailer with a coding": NO_TRAILER,
    "pipeline: CONNECT": NO_TUNNEL,
    "pipeline: CONNECT with a body": NO_TUNNEL,
    "pipeline: CONNECT with chunks": NO_TUNNEL,
    "pipeline: an upgrade with a body": NO_UPGRADE,
    "pipeline: an upgrade with chunks": NO_UPGRADE,
}
"""Cases that h11 accepts and we refuse, and why. There is none the other way round."""


@pytest.fixture(scope="module")
def echo() -> Iterator[EchoServer]:
    with EchoServer() as running:
        yield running
        assert running.errors == []


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_read_as_h11_reads_them_or_refused_for_a_reason(echo: EchoServer, name: str) -> None:
    """(13.12)"""
    data = CASES[name]
    ours, theirs = echo.verdict(data), _in_origin_form(h11_verdict(data))
    if name in STRICTER:
        assert ours.is_refused
        assert ours.requests == theirs.requests[: len(ours.requests)]
        assert ours != theirs
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", [name for name, data in CASES.items() if len(data) < 5000])
def test_bytes_are_read_alike_however_they_arrive(echo: EchoServer, name: str) -> None:
    """(13.12)"""
    data = CASES[name]
    whole = echo.verdict(data)
    assert echo.verdict(*[data[i : i + 1] for i in range(len(data))]) == whole
    for size in (7, 64):
        assert echo.verdict(*[data[i : i + size] for i in range(0, len(data), size)]) == whole


def test_there_are_enough_cases_and_no_reason_without_one() -> None:
    assert len(CASES) >= 120
    assert set(STRICTER) <= set(CASES)


def _in_origin_form(verdict: Verdict) -> Verdict:
    seen = [Seen(r.method, r.target.removeprefix("http://localhost"), r.body) for r in verdict.requests]
    return Verdict(tuple(seen), verdict.is_refused)


FIRST_LINE = "the first line of a request is: METHOD /path HTTP/1.1"
HEADER_LINE = "a header line of the request is malformed"
NAMED_FAULTS = {
    "nonsense": (b"hello\r\n\r\n", FIRST_LINE),
    "no version": (b"GET /\r\n\r\n", FIRST_LINE),
    "two spaces": (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", FIRST_LINE),
    "no method": (b"FETCH / HTTP/1.1\r\nHost: a\r\n\r\n", FIRST_LINE),
    "no target": (b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", FIRST_LINE),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "this server understands HTTP/1.1, no other version"),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", "this server understands HTTP/1.1, no other version"),
    "TLS": (b"\x16\x03\x01\x02\0\x01", "this port understands http, not https: TLS is up to a proxy"),
    "space in a header": (b"GET / HTTP/1.1\r\nHo st: a\r\n\r\n", HEADER_LINE),
    "bad length": (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", HEADER_LINE),
    "bad chunk": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "the chunks of the body are malformed",
    ),
}


@pytest.mark.parametrize("name", NAMED_FAULTS)
@pytest.mark.parametrize("at_once", [1, 1000])
def test_a_refusal_says_what_is_wrong_with_the_request(name: str, at_once: int) -> None:
    data, reason = NAMED_FAULTS[name]
    reader = RequestReader(Nobody())
    for start in range(0, len(data), at_once):
        if reader.refusal is None:
            reader.feed(data[start : start + at_once])
    assert reader.refusal is not None
    assert msgspec.json.decode(reader.refusal.body) == {"error": reason, "code": "invalid"}


class Nobody:
    """A connection that has no request in process."""

    current = None
