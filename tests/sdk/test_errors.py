"""What a server refuses arrives as the error it was, with its message; what is no answer of ours, as one too."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.sdk.clients import Connect, token_for
from tests.sdk.proxy import Proxy, answer, raw
from tests.server.server_process import Server

from codeq import CodeqError, NewTask, errors
from codeq.domain.limits import PAYLOAD_BYTES_MAX
from codeq.wire.errors import STATUS, NoRoute, TooSlow, WrongMedia, WrongMethod, status_of

KINDS: list[type[CodeqError]] = [kind for kind in STATUS if kind is not NoRoute]


def problem(kind: type[CodeqError], message: str) -> bytes:
    return json.dumps({"error": message, "code": kind.code}).encode()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_refusal_is_rebuilt_with_its_message(connect: Connect, kind: type[CodeqError]) -> None:
    with Proxy() as proxy:
        client = connect(proxy.url, retry_for=0)
        proxy.script(answer(status_of(kind("x")), problem(kind, "such and such"), kind="application/json"))
        with pytest.raises(CodeqError, match=r"^such and such$") as caught:
            client.queues()
        assert type(caught.value) is kind
        assert caught.value.code == kind.code


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_refusal_in_messagepack_is_rebuilt_too(connect: Connect, kind: type[CodeqError]) -> None:
    with Proxy() as proxy:
        client = connect(proxy.url, retry_for=0)
        body = msgspec.msgpack.encode({"error": "such and such", "code": kind.code})
        proxy.script(answer(status_of(kind("x")), body, kind="application/msgpack"))
        with pytest.raises(CodeqError, match=r"^such and such$") as caught:
            client.claim("work")
        assert type(caught.value) is kind


def test_public_names_are_there_for_what_a_client_can_meet() -> None:
    hidden = {NoRoute, TooSlow, WrongMedia, WrongMethod}
    assert [kind.__name__ for kind in STATUS if kind not in hidden and not hasattr(errors, kind.__name__)] == []
    assert issubclass(errors.Unexpected, CodeqError)
    assert sorted(errors.__all__) == errors.__all__


def test_a_rate_limit_says_what_was_limited_and_for_how_long(connect: Connect) -> None:
    body = {"error": "slow", "code": "rate-limited", "scope": "producer", "operation": "create", "retryAfterSeconds": 9}
    with Proxy() as proxy:
        client = connect(proxy.url, retry_for=0)
        proxy.script(answer(429, json.dumps(body).encode(), kind="application/json", retry_after="9"))
        with pytest.raises(errors.RateLimited) as caught:
            client.enqueue("work", 1)
        fault = caught.value
        assert (str(fault), fault.scope, fault.operation, fault.retry_after_s) == ("slow", "producer", "create", 9)


def test_a_token_that_is_not_accepted(server: Server, connect: Connect) -> None:
    client = connect(server.base, "nonsense")
    for call in (client.queues, lambda: client.enqueue("work", 1), lambda: client.claim("work")):
        with pytest.raises(errors.Unauthenticated, match="token"):
            call()
    with pytest.raises(errors.Unauthenticated):
        client.enqueue_many([NewTask(command="work", payload=b"1")])
    with pytest.raises(errors.Unauthenticated):
        client.enqueue_many([NewTask(command="work", payload=b"1")] * 2)


def test_a_token_that_may_not(server: Server, connect: Connect) -> None:
    client = connect(server.base, server.token("acme", "worker", commands=["a"], scopes=["codeq:claim"]))
    with pytest.raises(errors.Forbidden, match="event type"):
        client.claim("b")
    with pytest.raises(errors.Forbidden, match="admin"):
        client.pause("a")


def test_a_producer_may_look_at_its_dead_tasks(server: Server, connect: Connect) -> None:
    assert connect(server.base, server.token("lookers", "producer")).list(dead=True).tasks == []


def test_another_tenants_task_is_not_there(server: Server, connect: Connect) -> None:
    task = connect(server.base, token_for(server)).enqueue("work", 1)
    other = connect(server.base, token_for(server))
    for call in (other.get, other.cancel, other.history, other.replay, other.purge):
        with pytest.raises(errors.NotFound, match=task.id):
            call(task.id)


HTML = b"<html><body><h1>Bad things</h1></body></html>"
STRANGE = {
    "a page for a failure": (answer(500, HTML), "http-500", "500.*Bad things"),
    "a page from a gateway": (answer(502, HTML), "http-502", "502.*Bad things"),
    "a page for nothing there": (answer(404, HTML), "http-404", "Bad things"),
    "another address": (answer(302, HTML, more="location: https://example.org\r\n"), "http-302", "302"),
    "no body at all": (answer(500), "http-500", "500"),
    "JSON of another kind": (answer(400, b'{"detail": 1}', kind="application/json"), "http-400", "detail"),
    "text that is no text": (
        answer(500, b'{"error": "\xff", "code": "x"}', kind="application/json"),
        "http-500",
        "500",
    ),
    "a code of tomorrow": (
        answer(418, b'{"error": "tea", "code": "teapot"}', kind="application/json"),
        "teapot",
        "tea",
    ),
    "a page for success": (answer(200, HTML), "unreadable", "Bad things"),
    "JSON of another kind for success": (
        answer(200, b"[1, 2]", kind="application/json"),
        "unreadable",
        "cannot be read",
    ),
    "a page until the end": (raw(b"HTTP/1.1 500 Oh\r\n\r\n" + HTML, then_close=True), "http-500", "Bad things"),
    "an old page": (raw(b"HTTP/1.0 503 Oh\r\nconnection: close\r\n\r\n" + HTML, then_close=True), "http-503", "Bad"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_an_answer_that_is_not_ours_is_unexpected_and_shown(connect: Connect, case: str) -> None:
    said, code, message = STRANGE[case]
    with Proxy() as proxy:
        client = connect(proxy.url, retry_for=0)
        calls: list[Callable[[], Any]] = [
            client.queues,
            lambda: client.enqueue("work", 1),
            lambda: client.enqueue_many([NewTask(command="work")] * 2),
            lambda: client.claim("work"),
            lambda: client.get("x"),
            lambda: client.cancel("x"),
        ]
        for call in calls:
            proxy.script(said)
            with pytest.raises(errors.Unexpected, match=message) as caught:
                call()
            assert caught.value.code == code


def test_a_word_before_the_answer_is_not_the_answer(connect: Connect) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"
    final = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{"queues":[]}'
    with Proxy() as proxy:
        client = connect(proxy.url, retry_for=0)
        for first in (early, early + early, b"HTTP/1.1 100 Continue\r\n\r\n"):
            proxy.script(raw(first + final))
            assert client.queues() == {}
        assert proxy.accepted == 1


def test_an_answer_in_chunks_is_read_whole(connect: Connect) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    with Proxy() as proxy:
        client = connect(proxy.url, retry_for=0)
        proxy.script(raw(head + b'5\r\n{"que\r\n8\r\nues":[]}\r\n0\r\n\r\n'), raw(head + b"5\r\n{", then_close=True))
        assert client.queues() == {}
        with pytest.raises(errors.Unreachable):
            client.queues()


def test_what_speaks_no_http_is_unreachable(connect: Connect) -> None:
    with Proxy() as proxy:
        client = connect(proxy.url, retry_for=0)
        proxy.script(raw(b"220 mail.example.org ESMTP\r\n", then_close=True))
        with pytest.raises(errors.Unreachable, match="not an HTTP server"):
            client.queues()


def test_a_task_of_a_newer_server_is_unexpected(connect: Connect) -> None:
    view = {
        "id": "x", "command": "c", "payload": "1", "status": "PAUSED", "tenantId": "t", "attempts": 0, "maxAttempts": 1,
        "createdAt": "2026-01-01T00:00:00.000Z", "updatedAt": "2026-01-01T00:00:00.000Z", "deliveries": 0,
        "priority": 0, "lastKnownLocation": "NONE", "lastMove": "enqueue",
    }  # fmt: skip
    with Proxy() as proxy:
        client = connect(proxy.url, retry_for=0)
        proxy.script(answer(200, json.dumps(view).encode(), kind="application/json"))
        with pytest.raises(errors.Unexpected, match="PAUSED"):
            client.get("x")
        proxy.script(answer(202, msgspec.msgpack.encode(view), kind="application/msgpack"))
        with pytest.raises(errors.Unexpected, match="PAUSED"):
            client.enqueue("work", 1)


def test_what_is_too_large_is_refused_before_it_is_sent(server: Server, connect: Connect) -> None:
    with Proxy(server.port) as proxy:
        client = connect(proxy.url, token_for(server))
        with pytest.raises(errors.InvalidRequest, match="bytes"):
            client.enqueue("work", "x" * PAYLOAD_BYTES_MAX)
        assert proxy.requests == []
        client.enqueue("work", "x" * (PAYLOAD_BYTES_MAX - 2))


def test_a_server_that_is_older_than_the_program_is_said_to_be(connect: Connect) -> None:
    with Proxy() as proxy:
        client = connect(proxy.url, retry_for=0)
        body = msgspec.msgpack.encode({"error": "Object contains unknown field `worker`", "code": "invalid"})
        proxy.script(answer(400, body, kind="application/msgpack"))
        with pytest.raises(errors.InvalidRequest, match=r"`worker` .* upgrade the server first"):
            client.claim("work")
