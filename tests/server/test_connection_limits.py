"""How many connections strangers can hold, for how long, and what they leave to the store and to others."""

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.server.connections import RawConnection, connect, look
from tests.server.server_process import Server, eventually, start_server

from codeq.server.connection_limit import ConnectionLimit, connections_that_fit
from codeq.wire import paths

MB = 1 << 20


@contextmanager
def from_address(port: int, address: str) -> Iterator[RawConnection]:
    with socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(address, 0)) as connection:
        yield RawConnection(connection)


def limits_of(server: Server) -> tuple[int, int]:
    return resource.prlimit(server.pid, resource.RLIMIT_NOFILE)


def cpu_seconds(server: Server) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_strangers_leave_the_store_its_files(tmp_path: Path) -> None:
    """(13.11)"""
    with start_server(tmp_path, open_files=300) as server, ExitStack() as strangers:
        tenant = server.tenant()
        tenant.create()  # this connection stays
        refused = 0
        for _ in range(400):
            client = strangers.enter_context(connect(server.port))
            client.send(look(token="none"))
            refused += client.answer().status == 503
        assert refused > 300
        for _ in range(3):  # the store writes new files for these
            tasks = [{"command": "big", "payload": "x" * (MB - 100)}] * 25
            assert tenant.producer.post(paths.TASKS_BATCH, {"tasks": tasks}).status_code == 200
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < 300
        assert server.process.poll() is None
        assert "allows fewer connections" in server.log_text()


def test_the_soft_limit_on_open_files_is_raised_at_the_start(tmp_path: Path) -> None:
    """(13.11)"""
    with start_server(tmp_path, open_files=200, open_files_hard=5000) as server:
        assert limits_of(server) == (5000, 5000)


def test_an_address_holds_its_share_of_the_connections(tmp_path: Path) -> None:
    """(13.11)"""
    settings = {"http": {"connections_max": 100, "connections_per_address_max": 10}}
    with start_server(tmp_path, settings=settings) as server, ExitStack() as held:
        clients = [held.enter_context(from_address(server.port, "127.0.0.2")) for _ in range(10)]
        for client in clients:
            client.send(look())
            assert client.answer().status == 200
        with from_address(server.port, "127.0.0.2") as client:
            answer = client.answer()
            assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "busy", "1")
            assert client.is_closed()
        with from_address(server.port, "127.0.0.3") as client:
            client.send(look())
            assert client.answer().status == 200
        clients[0].close()
        eventually(lambda: _is_served(server, "127.0.0.2"))


def test_running_out_of_files_neither_stops_the_server_nor_keeps_it_busy(tmp_path: Path) -> None:
    """(13.11)"""
    with start_server(tmp_path) as server, ExitStack() as strangers:
        soft, hard = limits_of(server)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{server.pid}/fd")) + 5, hard))
        for _ in range(50):
            strangers.enter_context(connect(server.port))
        before_s, started_s = cpu_seconds(server), time.monotonic()
        time.sleep(1)
        assert cpu_seconds(server) - before_s < 0.7 * (time.monotonic() - started_s)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
        strangers.close()
        eventually(lambda: _is_served(server, "127.0.0.1"))
        assert server.process.poll() is None


@pytest.mark.parametrize("drop", [b"\r\n", b"\n", b"\r"])
def test_blank_lines_do_not_keep_a_connection(tmp_path: Path, drop: bytes) -> None:
    """(13.11)"""
    settings = {"http": {"idle_timeout_seconds": 0.5}}
    with start_server(tmp_path, settings=settings) as server, connect(server.port) as client:
        client.send(look())
        assert client.answer().status == 200
        with pytest.raises(ConnectionError):
            client.send(*[drop] * 400, every_s=0.05)


def test_an_ipv6_network_counts_as_one_address() -> None:
    limit = ConnectionLimit(100, 2)
    assert [limit.add(f"2001:db8::{n}") for n in range(3)] == [True, True, False]
    assert limit.add("2001:db8:0:1::1")
    assert [limit.add(host) for host in ("::ffff:192.0.2.1", "192.0.2.1", "192.0.2.1")] == [True, True, False]


@pytest.mark.parametrize(("file_limit", "shards"), [(64, 1), (256, 1), (1024, 1), (1024, 16), (65_536, 64)])
def test_the_connections_leave_the_store_half_of_the_files_or_what_it_needs(file_limit: int, shards: int) -> None:
    fits = connections_that_fit(file_limit, shards)
    assert fits >= 1
    assert fits == 1 or file_limit - fits >= min(file_limit // 2, shards * 544)


def _is_served(server: Server, address: str) -> bool:
    try:
        with from_address(server.port, address) as client:
            client.send(look())
            return client.answer().status == 200
    except (OSError, AssertionError):
        return False
