"""What one tenant may hold at once: past a limit it gets 429 with the reason, and other tenants notice nothing."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.server.connections import Answers
from tests.server.server_process import Caller, Server, answered, at, eventually, refused, start_server, waiting

from codeq import Client, NewTask
from codeq.errors import QuotaExceeded
from codeq.wire import paths

LIMITS = {
    "connections_max": 3,
    "long_polls_max": 2,
    "queues_max": 4,
    "policies_max": 2,
    "tasks_max": 6,
    "payload_bytes_max": 1000,
}
TASK = {"command": "work", "payload": 1}
WAIT = {"commands": ["work"], "waitSeconds": 20}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("limited"), settings={"limits": {"tenant": LIMITS}}) as server:
        yield server


@pytest.fixture(scope="module")
def spacious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As `limited`, but connections do not matter."""
    limits = LIMITS | {"connections_max": 0}
    with start_server(tmp_path_factory.mktemp("spacious"), settings={"limits": {"tenant": limits}}) as server:
        yield server


class Connected:
    """A client on a connection of its own."""

    def __init__(self, server: Server, token: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        self._token = token
        self._answers = Answers()

    def get(self, path: str = paths.QUEUES, token: str | None = None) -> tuple[int, dict[str, str], bytes]:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token or self._token}\r\n\r\n"
        self._socket.sendall(head.encode())
        while not self._answers.whole:
            piece = self._socket.recv(65_536)
            assert piece, "the server closed the connection"
            self._answers.feed(piece)
        answer = self._answers.whole.popleft()
        return answer.status, answer.headers, answer.body

    def is_closed(self) -> bool:
        return self._socket.recv(1) == b""

    def close(self) -> None:
        self._socket.close()


Connect = Callable[[str], Connected]


@pytest.fixture
def connect(limited: Server) -> Iterator[Connect]:
    """Opens a connection that is closed after the test."""
    with ExitStack() as opened:

        def connect(token: str) -> Connected:
            connection = Connected(limited, token)
            opened.callback(connection.close)
            return connection

        yield connect


def test_connections_of_a_tenant_are_limited_and_freed_when_they_close(limited: Server, connect: Connect) -> None:
    """(13.21)"""
    token = limited.tenant().producer.token
    held = [connect(token) for _ in range(3)]
    assert [connection.get()[0] for connection in held] == [200] * 3
    over = connect(token)
    status, headers, body = over.get()
    assert (status, b"quota-exceeded" in body, headers["retry-after"]) == (429, True, "1")
    assert over.is_closed()
    assert connect(limited.tenant().producer.token).get()[0] == 200
    assert connect(token).get(paths.HEALTHZ)[0] == 200
    held.pop().close()
    eventually(lambda: connect(token).get()[0] == 200)


def test_a_connection_counts_for_the_tenant_of_its_last_request(limited: Server, connect: Connect) -> None:
    """(13.21)"""
    first, second = (limited.tenant().producer.token for _ in range(2))
    for connection in [connect(first) for _ in range(3)]:
        assert connection.get()[0] == 200
        assert connection.get(token=second)[0] == 200
    assert connect(first).get()[0] == 200
    assert connect(second).get()[0] == 429


def test_check_49_long_polls_of_a_tenant_are_limited_and_a_disconnect_frees_one(spacious: Server) -> None:
    """(13.21)"""
    tenant = spacious.tenant()
    with waiting(tenant.worker, "POST", paths.CLAIM, WAIT), waiting(tenant.worker, "POST", paths.CLAIM, WAIT):
        answer = tenant.worker.post(paths.CLAIM, WAIT)
        problem = refused(answer, 429, "quota-exceeded")
        assert (problem["limit"], answer.headers["retry-after"]) == ("long_polls", "1")
        refused(tenant.worker.post(paths.CLAIM_BATCH, {**WAIT, "count": 5}), 429, "quota-exceeded")
        refused(tenant.admin.get(paths.EVENTS, waitSeconds=5, offset=1 << 40), 429, "quota-exceeded")
        assert tenant.worker.post(paths.CLAIM, {"commands": ["work"]}).status_code == 204
        made = [tenant.create("work") for _ in range(2)]
    waiter = tenant.producer.get(at(paths.RESULT, made[0]["id"]), waitSeconds=1)
    assert waiter.status_code == 404
    with socket.create_connection(("127.0.0.1", spacious.port)) as leaver:
        body = b'{"commands":["none"],"waitSeconds":20}'
        head = (
            f"POST {paths.CLAIM} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {tenant.worker.token}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        leaver.sendall(head.encode() + body)
        with waiting(tenant.worker, "POST", paths.CLAIM, {"commands": ["none"], "waitSeconds": 4}):
            eventually(lambda: is_full(tenant.worker))
            leaver.close()
            eventually(lambda: not is_full(tenant.worker))


def is_full(worker: Caller) -> bool:
    return worker.post(paths.CLAIM, {"commands": ["none"], "waitSeconds": 0.01}).status_code == 429


def test_check_54_pending_tasks_are_limited_and_a_batch_is_cut_at_the_limit(spacious: Server) -> None:
    """(13.21)"""
    tenant = spacious.tenant()
    items = [TASK] * 4 + [{**TASK, "idempotencyKey": "k"}] + [TASK] * 3 + [{**TASK, "idempotencyKey": "k"}]
    results = answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": items}), 200)["results"]
    assert [item.get("code") for item in results] == [None] * 6 + ["quota-exceeded"] * 2 + [None]
    over = tenant.producer.post(paths.TASKS, TASK)
    problem = refused(over, 429, "quota-exceeded")
    assert (problem["limit"], problem["retryAfterSeconds"]) == ("tasks", int(over.headers["retry-after"]))
    assert "6 tasks" in problem["error"]
    again = tenant.producer.post(paths.TASKS, {**TASK, "idempotencyKey": "k"})
    assert (again.status_code, again.headers["idempotent-replay"]) == (202, "true")
    spacious.tenant().create()
    held = tenant.claim()
    answered(tenant.worker.post(at(paths.RESULT, held["id"]), {"status": "COMPLETED"}), 200)
    tenant.create()


def test_check_54_queues_bytes_and_policies_are_limited(spacious: Server) -> None:
    """(13.21)"""
    tenant = spacious.tenant()
    commands = [{"command": f"c{number}", "payload": 1} for number in range(6)]
    results = answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": commands}), 200)["results"]
    assert [item.get("code") for item in results] == [None] * 4 + ["quota-exceeded"] * 2
    over = tenant.producer.post(paths.TASKS, commands[5])
    assert refused(over, 429, "quota-exceeded")["limit"] == "queues"
    assert "retry-after" not in over.headers
    answered(tenant.producer.post(paths.TASKS, commands[0]), 202)

    greedy = spacious.tenant()
    greedy.create(payload="x" * 900)
    big = greedy.producer.post(paths.TASKS, {"command": "work", "payload": "x" * 200})
    assert refused(big, 429, "quota-exceeded")["limit"] == "payload_bytes"
    greedy.create(payload="x" * 50)

    policy = {"policy": {"maxAttempts": 3}}
    answered(tenant.admin.put(at(paths.TOPIC, "one"), policy), 201)
    answered(tenant.admin.post(at(paths.PAUSE, "two")), 200)
    for over in (tenant.admin.put(at(paths.TOPIC, "three"), policy), tenant.admin.post(at(paths.PAUSE, "three"))):
        assert refused(over, 429, "quota-exceeded")["limit"] == "policies"
    answered(tenant.admin.put(at(paths.TOPIC, "one"), policy), 200)


def test_a_client_waits_for_room_and_gives_up_at_once_where_waiting_does_not_help(spacious: Server) -> None:
    """(13.21)"""
    tenant = spacious.tenant()
    with Client(spacious.base, tenant.producer.token) as client:
        client.enqueue_many([NewTask(command=f"c{number}") for number in range(4)])
        began_s = time.monotonic()
        with pytest.raises(QuotaExceeded) as refusal:
            client.enqueue("c9")
        assert (refusal.value.limit, refusal.value.retry_after_s) == ("queues", 0)
        assert time.monotonic() - began_s < 20  # `retry_for` is 30
        answers = client.enqueue_many([NewTask(command="c0")] * 4, refusals="return")
        assert [type(answer) for answer in answers[2:]] == [QuotaExceeded] * 2
        with ThreadPoolExecutor(1) as pool:
            patient = pool.submit(client.enqueue, "c0")
            held = tenant.claim("c1")
            answered(tenant.worker.post(at(paths.RESULT, held["id"]), {"status": "COMPLETED"}), 200)
            assert patient.result(30).command == "c0"
