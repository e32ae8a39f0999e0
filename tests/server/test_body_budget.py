"""The memory that request bodies take: bounded per request, per tenant and overall, whoever sends them."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.server.connections import RawConnection, connect, head, look
from tests.server.server_process import Server, Tenant, eventually, start_server

from codeq.wire import paths

MB = 1 << 20
BUDGET = {"http": {"bodies_bytes_max": 128 * MB, "tenant_bodies_bytes_max": 64 * MB}}


@pytest.fixture(scope="module")
def frugal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("frugal"), settings=BUDGET) as running:
        yield running


def upload(tenant: Tenant, *lines: str) -> bytes:
    return head("POST", paths.TASKS_BATCH, *lines, token=tenant.producer.token)


def is_accepted(client: RawConnection, tenant: Tenant, size: int) -> bool:
    """Announces a body and waits to be asked for it, or refused."""
    client.send(upload(tenant, f"Content-Length: {size}", "Expect: 100-continue"))
    answer = client.answer()
    if answer.status == 100:
        return True
    assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "unavailable", "1")
    return False


def peak_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_the_bodies_of_a_tenant_and_of_all_tenants_have_a_budget(frugal: Server) -> None:
    """(13.17)"""
    acme, globex, initech = [frugal.tenant() for _ in range(3)]
    with ExitStack() as held:
        clients = [held.enter_context(connect(frugal.port)) for _ in range(8)]
        assert is_accepted(clients[0], acme, 40 * MB)
        assert not is_accepted(clients[1], acme, 40 * MB)  # the tenant's 64 MB
        assert is_accepted(clients[2], acme, 20 * MB)
        assert is_accepted(clients[3], globex, 40 * MB)
        assert is_accepted(clients[5], globex, 20 * MB)
        assert not is_accepted(clients[4], initech, 40 * MB)  # 128 MB of all
        assert acme.create()["id"]  # small bodies are not counted
        clients[0].send(b" " * 100_000)
        clients[0].close()
        eventually(lambda: is_accepted_anew(frugal, initech, 40 * MB))
        eventually(lambda: is_accepted_anew(frugal, acme, 40 * MB))


def is_accepted_anew(server: Server, tenant: Tenant, size: int) -> bool:
    with connect(server.port) as client:
        return is_accepted(client, tenant, size)


def test_a_body_is_counted_until_its_answer_and_no_longer(frugal: Server) -> None:
    tenant = frugal.tenant()
    for _ in range(5):
        with connect(frugal.port) as client:
            client.send(upload(tenant, f"Content-Length: {40 * MB}"), b"x" * (40 * MB))
            assert client.answer().status == 400


def test_a_body_in_chunks_is_counted_as_it_arrives(frugal: Server) -> None:
    """(13.17)"""
    acme = frugal.tenant()
    chunk = b"100000\r\n" + b" " * MB + b"\r\n"
    with connect(frugal.port) as first, connect(frugal.port) as second:
        assert is_accepted(first, acme, 40 * MB)
        second.send(upload(acme, "Transfer-Encoding: chunked"))
        assert sent_until_refused(second, chunk, 60) < 60
        answer = second.answer()
        assert (answer.status, answer.headers["connection"]) == (503, "close")


@pytest.mark.slow
def test_many_large_uploads_take_no_more_memory_than_the_budget_allows(tmp_path: Path) -> None:
    """(13.17)"""
    with start_server(tmp_path, settings=BUDGET) as server, ExitStack() as held:
        before = peak_bytes(server)
        for tenant in [server.tenant() for _ in range(3)]:
            for _ in range(6):
                client = held.enter_context(connect(server.port))
                client.send(upload(tenant, f"Content-Length: {60 * MB}"))
                sent_until_refused(client, b" " * MB, 59)
        assert peak_bytes(server) - before < 3 * 128 * MB  # 18 bodies would be 1080 MB
        assert server.request("GET", paths.HEALTHZ).status_code == 200


@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", f"Content-Length: {60 * MB}"])
def test_a_body_without_a_valid_token_is_not_read(server: Server, framing: str) -> None:
    """(13.12)"""
    with connect(server.port) as client:
        client.send(head("POST", paths.TASKS_BATCH, framing, token="wrong"))
        piece = b"100000\r\n" + b" " * MB + b"\r\n" if "chunked" in framing else b" " * MB
        assert sent_until_refused(client, piece, 200) < 100
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        (b"0\r\nX: ", b"y" * MB),
        (b"0\r\n", b"X: y\r\n" * 100_000),
        (b"1;a=", b"b" * MB),
        (b"", b"1;" + b"a" * 1000 + b"\r\nx\r\n"),
    ],
    ids=["trailer", "trailers", "extension", "extensions"],
)
def test_trailers_and_chunk_extensions_without_end_are_refused(server: Server, before: bytes, piece: bytes) -> None:
    """(13.12)"""
    peak = peak_bytes(server)
    with connect(server.port) as client:
        client.send(head("POST", paths.TASKS_BATCH, "Transfer-Encoding: chunked") + before)
        many = max(1, MB // len(piece))
        assert sent_until_refused(client, piece * many, 200) < 100
        assert client.answer().status == 400
    assert peak_bytes(server) - peak < 32 * MB


def test_a_token_in_a_trailer_is_none_and_a_good_trailer_does_no_harm(server: Server) -> None:
    """(13.12)"""
    body = b'{"command":"pipes","payload":1}'
    chunked = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    bare = f"POST {paths.TASKS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with connect(server.port) as client:
        client.send(bare + chunked + b"Authorization: Bearer dev-token\r\n\r\n")
        assert client.answer().status == 401
    with connect(server.port) as client:
        kind = head("POST", paths.TASKS, "Transfer-Encoding: chunked")
        client.send(kind + chunked + b"Content-Encoding: gzip\r\nX-Request-Id: trailer\r\n\r\n" + look())
        made = client.answer()
        assert made.status == 202
        assert made.request_id != "trailer"
        assert client.answer().status == 200


def sent_until_refused(client: RawConnection, piece: bytes, times: int) -> int:
    """Returns how often the piece could be sent before the server answered or closed."""
    for sent in range(times):
        client.socket.settimeout(0.0)
        try:
            client.socket.recv(1, socket.MSG_PEEK)
            return sent
        except BlockingIOError:
            pass
        except ConnectionError:
            return sent
        finally:
            client.socket.settimeout(20)
        try:
            client.socket.sendall(piece)
        except ConnectionError:
            return sent
    return times
