"""Random requests, mutated and split at random, on a real connection: what is read is never more than h11 reads."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.server.echo_server import EchoServer, h11_verdict
from tests.server.http_cases import SMUGGLED

_ID = re.compile(r"r(\d+)\Z")

METHODS = st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE"])
TARGETS = st.sampled_from([b"/", b"/a", b"/ab?c=d", b"/abc"])
VERSIONS = st.sampled_from([b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9"])
BODIES = st.one_of(st.binary(max_size=60), st.sampled_from([b"", SMUGGLED, SMUGGLED * 3, b"0\r\n\r\n", b"\r\n\r\n"]))
ODD_HEADERS = st.sampled_from(
    [
        b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: +1", b"Content-Length: 1, 1",
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: x, chunked",
        b"Transfer-Encoding : chunked", b"Host: other", b"Connection: close", b"Connection: keep-alive",
        b"Connection: Upgrade", b"Upgrade: h2c", b"Expect: 100-continue", b" folded", b"X: y", b"X:", b"X",
        b"Authorization: Bearer x",
    ]
)  # fmt: skip
MUTATIONS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["insert", "delete", "replace"]),
        st.one_of(st.binary(min_size=1, max_size=3), st.sampled_from([b"\r\n", b"\n", b"\r", b" ", b":", b"0", b";"])),
    ),
    max_size=4,
)


@st.composite
def chunks(draw: st.DrawFn, body: bytes) -> bytes:
    """Returns the body in chunks, with extensions and trailers."""
    data, rest = b"", body
    while rest:
        size = draw(st.integers(1, len(rest)))
        extension = draw(st.sampled_from([b"", b"", b";a", b";a=b", b';a="b"']))
        data += b"%x%b\r\n%b\r\n" % (size, extension, rest[:size])
        rest = rest[size:]
    trailers = draw(st.sampled_from([b"", b"", b"X: y\r\n", b"Authorization: Bearer x\r\n", b"X: y\r\nZ: a\r\n"]))
    return data + b"0\r\n" + trailers + b"\r\n"


@st.composite
def requests(draw: st.DrawFn, *, is_odd: bool) -> bytes:
    """Returns a pipeline of up to five requests, numbered by X-Request-Id."""
    data = b""
    for number in range(draw(st.integers(1, 5))):
        body = draw(BODIES)
        framing = draw(st.sampled_from(["none", "length", "chunked"]))
        version = draw(VERSIONS) if is_odd else b"HTTP/1.1"
        lines = [
            b"%b %b %b" % (draw(METHODS), draw(TARGETS), version),
            b"Host: localhost",
            b"X-Request-Id: r%d" % number,
        ]
        if framing == "length":
            lines.append(b"Content-Length: %d" % len(body))
        elif framing == "chunked":
            lines.append(b"Transfer-Encoding: chunked")
            body = draw(chunks(body))
        else:
            body = b""
        if is_odd:
            lines += draw(st.lists(ODD_HEADERS, max_size=2))
        data += b"\r\n".join(lines) + b"\r\n\r\n" + body
    return data


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = draw(requests(is_odd=True))
    for where, what, piece in draw(MUTATIONS):
        at = int(where * len(data))
        data = data[:at] + (b"" if what == "delete" else piece) + data[at + (what != "insert") :]
    return data


@st.composite
def split(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Returns the bytes in up to six pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=5)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


@pytest.fixture(scope="module")
def echo() -> Iterator[EchoServer]:
    with EchoServer() as running:
        yield running


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=st.data())
def test_well_formed_requests_are_all_read_and_answered_in_order(echo: EchoServer, drawn: st.DataObject) -> None:
    """(13.12)"""
    data = drawn.draw(requests(is_odd=False))
    pieces = drawn.draw(split(data))
    answers = echo.answers(*pieces)
    assert [answer.status for answer in answers] == [200] * len(answers)
    assert [answer.request_id for answer in answers] == [f"r{n}" for n in range(len(answers))]
    assert echo.verdict(*pieces) == h11_verdict(data)
    assert echo.errors == []


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=st.data())
def test_mutated_requests_are_read_as_h11_reads_them_or_refused(echo: EchoServer, drawn: st.DataObject) -> None:
    """No crash, no hang, no answer out of order, no second request out of one body. (13.12)"""
    data = drawn.draw(mutated())
    answers = echo.answers(*drawn.draw(split(data)))
    assert echo.errors == []
    assert all(answer.status in (200, 400, 431, 501) for answer in answers)  # 408 would be a hang
    numbers = [int(found[1]) for answer in answers if (found := _ID.match(answer.request_id))]
    assert numbers == sorted(numbers)
    ours, theirs = echo.verdict(data), h11_verdict(data)
    event("refused" if ours.is_refused else "accepted")
    read = [(request.method, request.body) for request in ours.requests]
    assert read == [(request.method, request.body) for request in theirs.requests][: len(read)]
    assert ours.is_refused or len(read) == len(theirs.requests)
