"""What a slow, dead, greedy or hostile client can hold, and which response it gets."""

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.server_process import Server, answered, at, refused, start_server

from codeq.wire import paths

TIGHT = {
    "http": {
        "header_timeout_seconds": 0.5,
        "body_timeout_seconds": 0.5,
        "connections_max": 8,
        "idle_timeout_seconds": 1,
    },
}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short timeouts and few connections."""
    with start_server(tmp_path_factory.mktemp("tight"), settings=TIGHT) as server:
        yield server


def raw(server: Server, data: bytes, *, wait_s: float = 10) -> bytes:
    """Sends bytes as they are; returns everything up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait_s) as connection:
        connection.sendall(data)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return answer


def head(path: str = paths.TASKS, *lines: str, method: str = "POST") -> bytes:
    first = [f"{method} {path} HTTP/1.1", "Host: localhost", "Authorization: Bearer dev-token", *lines]
    return "\r\n".join(first).encode() + b"\r\n"


def test_headers_that_never_end_are_cut_off(tight: Server) -> None:
    assert raw(tight, head()).startswith(b"HTTP/1.1 408")


def test_a_connection_that_says_nothing_is_closed(tight: Server) -> None:
    assert raw(tight, b"").startswith(b"HTTP/1.1 408")


def test_a_body_that_never_ends_is_cut_off(tight: Server) -> None:
    answer = raw(tight, head(paths.TASKS, "Content-Length: 1000") + b"\r\n" + b'{"command":')
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"timeout" in answer


def test_an_idle_connection_is_closed(tight: Server) -> None:
    answer = raw(tight, head("/healthz", method="GET") + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


def test_more_connections_than_allowed_are_refused_and_the_others_go_on(tight: Server) -> None:
    held = [socket.create_connection(("127.0.0.1", tight.port)) for _ in range(12)]
    try:
        refusals = [raw(tight, b"") for _ in range(3)]
    finally:
        for connection in held:
            connection.close()
    assert any(answer.startswith(b"HTTP/1.1 503") for answer in refusals)
    assert tight.request("GET", "/healthz").status_code == 200


def test_headers_too_large_or_too_many_are_refused(server: Server) -> None:
    assert raw(server, head("/healthz", f"X-Long: {'x' * 20_000}", method="GET") + b"\r\n").startswith(b"HTTP/1.1 431")
    many = [f"X-{n}: 1" for n in range(200)]
    assert raw(server, head("/healthz", *many, method="GET") + b"\r\n").startswith(b"HTTP/1.1 431")
    assert raw(server, head("/healthz?" + "x" * 20_000, method="GET") + b"\r\n").startswith(b"HTTP/1.1 431")
    endless = b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 100_000
    assert b"431" in raw(server, endless)[:20]


@pytest.mark.parametrize(
    "data",
    [
        b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n",
        b"POST /v1/codeq/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
        b"POST /v1/codeq/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_the_connection_closed(server: Server, data: bytes) -> None:
    assert raw(server, data)[:12] == b"HTTP/1.1 400"


def test_a_body_said_to_be_too_large_is_refused_before_it_is_read(server: Server) -> None:
    answer = raw(server, head(paths.TASKS, "Content-Length: 99999999") + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_chunked_body_is_cut_off_at_the_limit(server: Server) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head(paths.HEARTBEAT.replace("{id}", "x"), "Transfer-Encoding: chunked") + b"\r\n")
        answer = b""
        try:
            for _ in range(20):
                connection.sendall(chunk)
        except OSError:
            pass  # the server has closed the connection, as it should
        try:
            answer = connection.recv(100)
        except OSError:
            return
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_compressed_body_is_refused(server: Server) -> None:
    body = gzip.compress(b"[" * 10_000_000)
    answer = server.request("POST", paths.TASKS, content=body, headers={"Content-Encoding": "gzip"})
    refused(answer, 415, "unsupported-media")


BAD_BODIES: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"{",
    b'{"command": "a"}',
    b'{"payload": 1}',
    b'{"command": "a", "payload": null}',
    b'{"command": "a", "payload": NaN}',
    b'{"command": "a", "payload": Infinity}',
    b'{"command": "a", "payload": 1e999}',
    b'{"command": "a", "payload": "\xff\xfe"}',
    b'{"command": "a", "payload": "\\ud800"}',
    b'\xef\xbb\xbf{"command": "a", "payload": 1}',
    b'{"command": "a", "payload": "\x00"}',
    b'{"command": "a", "payload": ' + b"[" * 40 + b"]" * 40 + b"}",
    b'{"command": "a", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"command": "a", "payload": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    b'{"command": "", "payload": 1}',
    b'{"command": "a/b", "payload": 1}',
    b'{"command": "a\\u0000b", "payload": 1}',
    b'{"command": "a b", "payload": 1}',
    b'{"command": "a\\n", "payload": 1}',
    b'{"command": 5, "payload": 1}',
    b'{"command": "' + b"a" * 65 + b'", "payload": 1}',
    b'{"command": "a", "payload": 1, "tenantId": "other"}',
    b'{"command": "a", "payload": 1, "status": "COMPLETED"}',
    b'{"command": "a", "payload": 1, "id": "x"}',
    b'{"command": "a", "payload": 1, "priority": "5"}',
    b'{"command": "a", "payload": 1, "priority": 1.5}',
    b'{"command": "a", "payload": 1, "maxAttempts": 101}',
    b'{"command": "a", "payload": 1, "delaySeconds": -1}',
    b'{"command": "a", "payload": 1, "delaySeconds": 1e10}',
    b'{"command": "a", "payload": 1, "delaySeconds": "5"}',
    b'{"command": "a", "payload": 1, "runAt": "tomorrow"}',
    b'{"command": "a", "payload": 1, "runAt": "2026-01-01"}',
    b'{"command": "a", "payload": 1, "runAt": "2026-01-01T00:00:00"}',
    b'{"command": "a", "payload": 1, "runAt": 5}',
    b'{"command": "a", "payload": 1, "idempotencyKey": "' + b"k" * 256 + b'"}',
    b'{"command": "a", "payload": 1, "idempotencyKey": "a\\u0000"}',
    b'{"command": "a", "payload": 1, "webhook": "a\\r\\nb"}',
    b'{"command": "a", "payload": 1, "backoff": {"policy": "never"}}',
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_bad_body_gets_a_refusal_with_a_code_and_creates_nothing(server: Server, body: bytes) -> None:
    tenant = server.tenant()
    answer = tenant.producer.request("POST", paths.TASKS, content=body, headers={"Content-Type": "application/json"})
    refused(answer, 400, "invalid")
    assert answered(tenant.producer.get(paths.QUEUES), 200)["queues"] == []
    assert answered(tenant.producer.get(paths.TASKS), 200)["tasks"] == []


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_bad_item_of_a_batch_leaves_the_others_alone(server: Server, body: bytes) -> None:
    tenant = server.tenant()
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return  # not JSON at all: the batch around it is not either
    whole = b'{"tasks": [{"command": "good", "payload": 1}, ' + body + b"]}"
    answer = tenant.producer.request("POST", paths.TASKS_BATCH, content=whole)
    if answer.status_code == 400:  # nested too deep, or not readable at all: refused as a whole
        assert answered(tenant.producer.get(paths.TASKS), 200)["tasks"] == []
        return
    good, bad = answered(answer, 200)["results"]
    assert good["task"]["command"] == "good"
    assert bad["code"] == "invalid"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (paths.CLAIM, {"waitSeconds": "5"}),
        (paths.CLAIM, {"leaseSeconds": 1e9}),
        (paths.CLAIM, {"commands": ["a"] * 65}),
        (paths.CLAIM, {"commands": ["a b"]}),
        (paths.CLAIM_BATCH, {"count": 0}),
        (paths.CLAIM_BATCH, {"count": 1001}),
        (paths.CLAIM_BATCH, {"count": 1.5}),
        (paths.CLAIM_BATCH, {}),
        (paths.RESULTS_BATCH, {"results": []}),
        (paths.RESULTS_BATCH, {"results": [{"status": "COMPLETED"}]}),
        (paths.TASKS_BATCH, {"tasks": []}),
        (paths.TASKS_BATCH, {"tasks": [{"command": "a", "payload": 1}] * 1001}),
        (paths.DLQ_REPLAY, {}),
        (paths.DLQ_REPLAY, {"all": True, "ids": ["x"]}),
        (paths.DLQ_PURGE, {"limit": 0, "all": True}),
        (paths.CLEANUP, {"before": "yesterday"}),
        (paths.CLEANUP, {"limit": -1}),
    ],
)
def test_numbers_and_lists_out_of_bounds_are_refused(server: Server, path: str, body: dict[str, Any]) -> None:
    refused(server.request("POST", path, body), 400, "invalid")


@pytest.mark.parametrize(
    "task_id", ["..", "%00", "x", "x" * 10_000, "%2e%2e%2f", "01a1e1da-ee8e-7001-8739-87757459000g"]
)
def test_an_id_that_cannot_be_one_is_not_found(server: Server, task_id: str) -> None:
    answer = server.request("GET", f"{paths.TASKS}/{task_id}")
    assert answer.status_code == 404
    assert answer.json()["code"] == "not-found"


@pytest.mark.parametrize(
    "path", ["//v1/codeq/tasks", "/v1/codeq/tasks/", "/V1/codeq/tasks", "/v1/codeq/./tasks", "/v1/codeq/tasks;x"]
)
def test_other_spellings_of_a_path_are_no_way_in(server: Server, path: str) -> None:
    answer = raw(server, head(path, "Connection: close", method="GET") + b"\r\n")
    assert answer[:12] in (b"HTTP/1.1 404", b"HTTP/1.1 400")


def test_a_method_that_a_path_does_not_take_is_named(server: Server) -> None:
    answer = server.request("DELETE", paths.TASKS)
    refused(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, HEAD, POST"


def test_rate_limits_hold_per_token_and_per_tenant_and_count_the_items_of_a_batch(tmp_path: Path) -> None:
    settings = {
        "rate_limit": {
            "producer": {"requests_per_minute": 1, "burst_size": 5},
            "tenant_producer": {"requests_per_minute": 1, "burst_size": 8},
            "worker": {"requests_per_minute": 1, "burst_size": 2},
            "admin": {"requests_per_minute": 1, "burst_size": 1},
        }
    }
    with start_server(tmp_path, settings=settings) as server:
        acme = server.tenant("acme")
        task = {"command": "a", "payload": 1}
        assert acme.producer.post(paths.TASKS_BATCH, {"tasks": [task] * 4}).status_code == 200
        assert acme.producer.post(paths.TASKS, task).status_code == 202
        over = acme.producer.post(paths.TASKS, task)
        body = refused(over, 429, "rate-limited")
        assert (body["scope"], body["operation"]) == ("producer", "create_task")
        assert int(over.headers["retry-after"]) == body["retryAfterSeconds"] >= 1
        fresh = server.token("acme", "producer", subject="another")
        assert server.request("POST", paths.TASKS_BATCH, {"tasks": [task] * 3}, token=fresh).status_code == 200
        other = server.token("acme", "producer", subject="third")
        refused(server.request("POST", paths.TASKS, task, token=other), 429, "rate-limited")
        assert server.tenant("globex").producer.post(paths.TASKS, task).status_code == 202
        assert [acme.worker.post(paths.CLAIM, {}).status_code for _ in range(3)] == [200, 200, 429]
        assert [acme.admin.post(paths.CLEANUP, {}).status_code for _ in range(2)] == [200, 429]
        metrics = server.request("GET", "/metrics").text
        assert 'codeq_rate_limit_hits_total{operation="create_task",scope="producer"} 2.0' in metrics


def test_an_error_text_of_any_length_ends_a_task(server: Server) -> None:
    tenant = server.tenant()
    task = tenant.held()
    answer = tenant.worker.post(at(paths.RESULT, task["id"]), {"status": "FAILED", "error": "x" * 50_000})
    assert len(answered(answer, 200)["error"]) == 2000
