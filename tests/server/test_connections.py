"""HTTP on the wire: split requests, pipelines, old versions, clients that do not read, and bytes that are not HTTP."""

import asyncio
import gc
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.server.connections import RawConnection, connect, create, head, look
from tests.server.in_process_server import InProcessServer, until
from tests.server.server_process import Server, start_server

from codeq.server.connection import Connection
from codeq.server.request import HttpRequest
from codeq.server.request_reader import RequestReader
from codeq.wire import paths

MB = 1 << 20


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with timeouts of half a second for bodies and a second for clients."""
    http = {"idle_timeout_seconds": 1, "body_timeout_seconds": 0.5}
    with start_server(tmp_path_factory.mktemp("hasty"), settings={"http": http}) as running:
        yield running


def wait_for_nothing(seconds: float, *lines: str) -> bytes:
    """Returns a claim that gets 204 after so long."""
    body = msgspec.json.encode({"commands": ["never-used"], "waitSeconds": seconds})
    return head("POST", paths.CLAIM, f"Content-Length: {len(body)}", *lines) + body


def sent_until_blocked(connection: socket.socket, data: bytes, most: int) -> int:
    """Returns how many bytes of endlessly repeated data the other side accepts."""
    connection.settimeout(0.5)
    sent = 0
    try:
        while sent < most:
            sent += connection.send(data)
    except TimeoutError:
        pass
    connection.settimeout(20)
    return sent


# Pipelines


def test_requests_in_one_packet_are_answered_in_their_order_whether_quick_or_slow(server: Server) -> None:
    requests = [
        (create("X-Request-Id: r0"), 202),
        (look("X-Request-Id: r1"), 200),
        (wait_for_nothing(0.3, "X-Request-Id: r2"), 204),
        (create("X-Request-Id: r3", body=b"{"), 400),
        (look("X-Request-Id: r4", path="/nowhere"), 404),
        (create("X-Request-Id: r5"), 202),
        (look("X-Request-Id: r6", path=paths.TASKS, token="wrong"), 401),
        (head("DELETE", paths.TASKS, "X-Request-Id: r7"), 405),
        (look("X-Request-Id: r8", path=paths.QUEUES), 200),
    ]
    with connect(server.port) as client:
        client.send(b"".join([data for data, _ in requests]))
        answers = [client.answer() for _ in requests]
    assert [answer.status for answer in answers] == [status for _, status in requests]
    assert [answer.request_id for answer in answers] == [f"r{n}" for n in range(len(requests))]


def test_thousands_of_requests_sent_ahead_are_all_answered_in_order(server: Server) -> None:
    many = 3000
    with connect(server.port) as client:
        client.send(b"".join([look(f"X-Request-Id: n{n}") for n in range(many)]))
        assert [client.answer().request_id for _ in range(many)] == [f"n{n}" for n in range(many)]


def test_creates_sent_ahead_come_into_the_queue_in_their_order(server: Server) -> None:
    tenant = server.tenant()
    bodies = [msgspec.json.encode({"command": "work", "payload": n}) for n in range(50)]
    with connect(server.port) as client:
        client.send(b"".join([create(body=body, token=tenant.producer.token) for body in bodies]))
        made = [client.answer().json["id"] for _ in bodies]
    assert [tenant.claim()["id"] for _ in bodies] == made


def test_what_is_sent_ahead_of_an_answer_is_not_taken_in_without_end(server: Server) -> None:
    with connect(server.port) as client:
        client.send(wait_for_nothing(3))
        taken = sent_until_blocked(client.socket, look() * 1000, 64 * MB)
        assert taken < 32 * MB  # the sockets' own buffers
        assert client.answer().status == 204
        assert client.answer().status == 200


def test_only_a_few_of_the_requests_sent_ahead_are_in_memory_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        server = InProcessServer(tmp_path)
        async with server.running():
            [client] = await server.callers("acme")
            client.send("POST", paths.CLAIM, b'{"commands":["work"],"waitSeconds":20}')
            await asyncio.to_thread(client.socket.sendall, look() * 2000)
            await asyncio.sleep(0.1)
            assert 1 < sum(isinstance(thing, HttpRequest) for thing in gc.get_objects()) < 500
            server.state.core.waiters.end_waits()
            assert (await client.answer()).status == 204
            assert {(await client.answer()).status for _ in range(2000)} == {200}

    asyncio.run(story())


def test_a_body_behind_a_request_under_way_is_not_taken_in_without_end(server: Server) -> None:
    with connect(server.port) as client:
        client.send(wait_for_nothing(3), head("POST", paths.TASKS_BATCH, f"Content-Length: {30 * MB}"))
        assert sent_until_blocked(client.socket, b" " * 65_536, 29 * MB) < 29 * MB
        assert client.answer().status == 204


def test_the_requests_before_one_that_is_no_http_are_answered(server: Server) -> None:
    with connect(server.port) as client:
        client.send(create("X-Request-Id: good") + look() + b"what is this\r\n\r\n")
        assert client.answer().request_id == "good"
        assert client.answer().status == 200
        assert client.answer().status == 400
        assert client.is_closed()


# Clients that do not read


def test_a_client_that_does_not_read_holds_little_and_not_for_long(hasty: Server) -> None:
    with connect(hasty.port) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sent = sent_until_blocked(client.socket, look(path=paths.OPENAPI) * 1000, 64 * MB)
        assert sent < 32 * MB
        assert hasty.request("GET", paths.HEALTHZ).status_code == 200
        time.sleep(1.5)  # past the client's timeout
        with pytest.raises(ConnectionError):
            client.send(*[look() * 1000] * 1000)


def test_a_client_that_reads_a_few_bytes_at_a_time_is_cut_off(hasty: Server) -> None:
    with large_answer(hasty) as client:
        for _ in range(60):  # three times the client's timeout
            client.socket.recv(100)
            time.sleep(0.05)
        assert read_to_end(client) < 8 * MB  # what the sockets' own buffers had


def test_an_answer_may_take_longer_than_the_idle_timeout_as_long_as_it_is_read(hasty: Server) -> None:
    """(13.22)"""
    with large_answer(hasty) as client:
        started_s = time.monotonic()
        assert read_to_end(client, pause_s=0.06) > 8 * MB
        assert time.monotonic() - started_s > 1.5  # longer than the idle timeout of a second


def read_to_end(client: RawConnection, *, pause_s: float = 0) -> int:
    """Returns how much was read; with a pause after each piece."""
    received = 0
    while piece := client.socket.recv(1 << 18):
        received += len(piece)
        time.sleep(pause_s)
    return received


@contextmanager
def large_answer(server: Server) -> Iterator[RawConnection]:
    """Yields a client with a small buffer that has asked for 9 MB, and for the connection to close after them."""
    tenant = server.tenant()
    task = {"command": "big", "payload": "x" * (MB - 100)}
    for _ in range(2):
        assert tenant.producer.post(paths.TASKS_BATCH, {"tasks": [task] * 8}).status_code == 200
    with connect(server.port) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.send(look("Connection: close", path=paths.TASKS, token=tenant.producer.token))
        yield client


def test_a_large_answer_reaches_a_client_that_reads_slowly(server: Server) -> None:
    with connect(server.port) as client:
        client.send(look(path=paths.OPENAPI) * 200)
        time.sleep(0.2)  # its buffers and the server's fill meanwhile
        answers = [client.answer() for _ in range(200)]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1


# Bodies


def test_a_request_may_arrive_byte_by_byte(server: Server) -> None:
    with connect(server.port) as client:
        for _ in range(2):
            data = create()
            client.send(*[data[i : i + 1] for i in range(len(data))])
            assert client.answer().status == 202


def test_a_body_in_chunks_is_put_together(server: Server) -> None:
    body = b'{"command":"pipes","payload":"' + b"x" * 100_000 + b'"}'
    chunks = [body[i : i + 7001] for i in range(0, len(body), 7001)]
    data = b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]) + b"0\r\n\r\n"
    with connect(server.port) as client:
        client.send(head("POST", paths.TASKS, "Transfer-Encoding: chunked") + data + look("X-Request-Id: next"))
        made = client.answer()
        assert made.status == 202
        assert len(made.json["payload"]) == 100_002
        assert client.answer().request_id == "next"


@pytest.mark.parametrize("before", [b"", b"5\r\nhello\r\n"])
def test_chunks_that_are_none_are_refused_at_once(server: Server, before: bytes) -> None:
    with connect(server.port) as client:
        client.send(head("POST", paths.TASKS, "Transfer-Encoding: chunked") + before, b"zz\r\n", every_s=0.05)
        assert client.answer().status == 400
        assert client.is_closed()


def test_a_body_larger_than_any_read_arrives_whole(server: Server) -> None:
    payload = b"1" * 900_000
    with connect(server.port) as client:
        client.send(create(body=b'{"command":"pipes","payload":"%b"}' % payload), look("X-Request-Id: next"))
        assert client.answer().json["payload"] == f'"{payload.decode()}"'
        assert client.answer().request_id == "next"


def test_a_body_is_asked_for_where_the_client_waits_to_be_asked(server: Server) -> None:
    body = b'{"command":"pipes","payload":1}'
    with connect(server.port) as client:
        client.send(head("POST", paths.TASKS, f"Content-Length: {len(body)}", "Expect: 100-continue"))
        assert client.answer().status == 100
        client.send(body)
        assert client.answer().status == 202
        client.send(create("Expect: 100-continue"))  # sent without waiting: no 100 Continue is due
        assert client.answer().status == 202


@pytest.mark.parametrize(("length", "token", "status"), [(99_999_999, "dev-token", 413), (10, "wrong", 401)])
def test_a_body_that_is_not_wanted_is_not_asked_for(server: Server, length: int, token: str, status: int) -> None:
    with connect(server.port) as client:
        client.send(head("POST", paths.TASKS, f"Content-Length: {length}", "Expect: 100-continue", token=token))
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert client.is_closed()


def test_the_rest_of_a_refused_body_is_passed_over(hasty: Server) -> None:
    with connect(hasty.port) as client:
        client.send(head("POST", paths.TASKS, "Content-Length: 200000", token="wrong") + b"x" * 50_000)
        assert client.answer().status == 401
        client.send(b"x" * 150_000 + look("X-Request-Id: next"))
        assert client.answer().request_id == "next"


def test_the_rest_of_a_refused_body_is_not_waited_for_without_end(hasty: Server) -> None:
    with connect(hasty.port) as client:
        client.send(head("POST", paths.TASKS, "Content-Length: 200000", token="wrong") + b"x")
        assert client.answer().status == 401
        drops = [b"x"] * 200
        with pytest.raises(ConnectionError):  # a few bytes at intervals do not prolong it
            client.send(*drops, every_s=0.05)


def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing_behind(server: Server) -> None:
    tenant = server.tenant()
    for _ in range(20):
        with connect(server.port) as client:
            client.send(create(token=tenant.producer.token)[:-3])
    assert server.request("GET", paths.HEALTHZ).status_code == 200
    assert tenant.producer.get(paths.TASKS).json()["tasks"] == []


# Versions and options


@pytest.mark.parametrize("lines", [(), ("Connection: keep-alive",)])
def test_an_old_client_is_answered_and_let_go(server: Server, lines: tuple[str, ...]) -> None:
    with connect(server.port) as client:
        client.send(create(*lines, version="1.0"))
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (202, "close")
        assert client.is_closed()


def test_a_client_that_asks_to_close_is_answered_first(server: Server) -> None:
    with connect(server.port) as client:
        client.send(create("Connection: close") + look())
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (202, "close")
        assert client.is_closed()


def test_an_answer_to_head_has_no_body_and_the_connection_goes_on(server: Server) -> None:
    with connect(server.port) as client:
        client.send(head("HEAD", paths.TASKS_BATCH))
        answered = client.socket.recv(65_536)
        assert answered.startswith(b"HTTP/1.1 405")
        assert answered.endswith(b"\r\n\r\n")
        client.send(look("X-Request-Id: next"))
        assert client.answer().request_id == "next"


def test_another_protocol_that_is_offered_is_not_taken_up(server: Server) -> None:
    with connect(server.port) as client:
        offer = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
        client.send(look(*offer) + look("X-Request-Id: next"))
        assert client.answer().status == 200
        assert client.answer().request_id == "next"


def test_a_body_behind_an_offer_of_another_protocol_is_never_taken_for_a_request(server: Server) -> None:
    with connect(server.port) as client:
        client.send(create("Connection: Upgrade", "Upgrade: h2c", body=look("X-Request-Id: smuggled")))
        assert client.answer().status == 400
        assert client.is_closed()


def test_a_path_may_be_given_in_full_or_escaped(server: Server) -> None:
    with connect(server.port) as client:
        client.send(look(path="http://localhost/healthz"), look(path="/%68ealthz"), look(path="/healthz?x=%20#y"))
        assert [client.answer().status for _ in range(3)] == [200, 200, 200]


def test_two_tokens_are_none(server: Server) -> None:
    with connect(server.port) as client:
        client.send(create("Authorization: Bearer dev-token"))
        answer = client.answer()
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_every_request_of_a_connection_is_checked_by_its_own_token(server: Server) -> None:
    """The connection remembers the last header that was read, and what it said."""
    good, bad = create(), create().replace(b"dev-token", b"bad-token")
    twice = create("Authorization: Bearer dev-token")
    none = f"GET {paths.QUEUES} HTTP/1.1\r\nHost: codeq\r\n\r\n".encode()
    with connect(server.port) as client:
        client.send(good, good, twice, good, bad, good, none, good)
        assert [client.answer().status for _ in range(8)] == [202, 202, 401, 202, 401, 202, 401, 202]


# The end


def test_a_stopping_server_answers_what_is_under_way_and_closes_what_idles(tmp_path: Path) -> None:
    with start_server(tmp_path) as own, connect(own.port) as idle, connect(own.port) as busy:
        idle.send(look())
        assert idle.answer().status == 200
        busy.send(wait_for_nothing(20))
        assert own.request("GET", paths.HEALTHZ).status_code == 200
        own.process.terminate()
        assert busy.answer().status == 204
        assert busy.is_closed()
        assert idle.is_closed()
        assert own.process.wait(20) == 0


def test_at_shutdown_the_response_under_way_is_the_last_whatever_was_sent_ahead(tmp_path: Path) -> None:
    async def story() -> None:
        server = InProcessServer(tmp_path)
        async with server.running():
            [client] = await server.callers("acme")
            client.send("POST", paths.CLAIM, b'{"commands":["work"],"waitSeconds":20}')
            client.socket.sendall(look() + b"this is not HTTP\r\n\r\n")
            await asyncio.sleep(0.1)
            for connection in server.connections:
                connection.shutdown()
            server.state.core.waiters.end_waits()
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (204, "close")
            assert await asyncio.to_thread(client.socket.recv, 1) == b""

    asyncio.run(story())


def test_a_closed_connection_leaves_no_reference_cycle_behind(tmp_path: Path) -> None:
    async def story() -> None:
        server = InProcessServer(tmp_path)
        async with server.running():
            gc.collect()
            gc.disable()
            try:
                for client in await server.callers("acme", "acme"):
                    client.disconnect()
                await until(lambda: not server.open_connections)
                await asyncio.sleep(0.05)  # for the transport to let go of it
                assert not [thing for thing in gc.get_objects() if isinstance(thing, (Connection, RequestReader))]
            finally:
                gc.enable()

    asyncio.run(story())
