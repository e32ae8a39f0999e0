"""Distinct values from outside do not stay in the server's memory, however many there are."""

import asyncio
import itertools
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.server.server_process import Server, start_server

from codeq.domain.limits import WORKERS_KNOWN_MAX
from codeq.server.auth.claims import Claims
from codeq.server.auth.principal import CACHE_BYTES_MAX, Authenticator, TokenKind
from codeq.wire import paths
from codeq.wire.local_server import DEV_TOKEN

pytestmark = pytest.mark.slow

DISTINCT = 40_000
"""Of each of five kinds: 200,000 together."""
AT_ONCE = 50
GROWTH_BYTES_MAX = 48 << 20

_numbers = itertools.count(1 << 40)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "131072"}
    with start_server(tmp_path_factory.mktemp("memory"), env=environment) as server:
        yield server


def get(path: str, token: str = DEV_TOKEN) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


def task_id(number: int) -> str:
    digits = f"{number:012x}"
    return f"{digits[:8]}-{digits[8:]}-7000-8000-000000000000"


def long_text(number: int) -> str:
    return f"{number:x}".ljust(8000, "x")


def claim(number: int) -> bytes:
    """As a worker of its own, that tells as much about itself as it may."""
    commands = [f"{number:x}-{place}".ljust(64, "c") for place in range(64)]
    worker = {"name": f"{number:x}".ljust(100, "n"), "host": "h" * 100, "commands": commands}
    body = msgspec.json.encode({"commands": commands, "worker": worker})
    head = f"POST {paths.CLAIM} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {DEV_TOKEN}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


KINDS: dict[str, Callable[[int], bytes]] = {
    "commands": lambda n: get(f"{paths.TASKS}?queue=dead&command={long_text(n)}"),
    "ids": lambda n: get(paths.TASK.replace("{id}", task_id(n))),
    "cursors": lambda n: get(f"{paths.TASKS}?limit=1&cursor=0:{task_id(n)}"),
    "tokens": lambda n: get(paths.TASKS, uuid.UUID(int=n).hex * 8),
}


def pipeline(server: Server, requests: Iterator[bytes]) -> int:
    """Sends the requests on one connection, many at once. Returns how many were answered."""
    answers = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        while group := list(itertools.islice(requests, AT_ONCE)):
            sending = threading.Thread(target=connection.sendall, args=(b"".join(group),))
            sending.start()
            seen = b""
            while seen.count(b"HTTP/1.1 ") < len(group) or not seen.endswith((b"}", b"]", b"\r\n\r\n")):
                piece = connection.recv(1 << 20)
                assert piece, "the server hung up"
                seen += piece
            sending.join()
            answers += len(group)
    return answers


def resident_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@pytest.mark.parametrize("kind", KINDS)
def test_memory_comes_back_after_many_distinct_values(server: Server, kind: str) -> None:
    """(13.20)"""
    make = KINDS[kind]
    pipeline(server, (make(next(_numbers)) for _ in range(2000)))
    before = resident_bytes(server)
    assert pipeline(server, (make(next(_numbers)) for _ in range(DISTINCT))) == DISTINCT
    assert resident_bytes(server) - before < GROWTH_BYTES_MAX


def test_memory_comes_back_after_many_distinct_workers(server: Server) -> None:
    """(13.20) What each of them told was remembered, though the tenant had as many on its list as it may."""
    pipeline(server, (claim(next(_numbers)) for _ in range(2000)))
    before = resident_bytes(server)
    assert pipeline(server, (claim(next(_numbers)) for _ in range(WORKERS_KNOWN_MAX))) == WORKERS_KNOWN_MAX
    assert resident_bytes(server) - before < GROWTH_BYTES_MAX


def test_memory_comes_back_after_many_distinct_keys(server: Server) -> None:
    """Stored tasks fill RocksDB's own buffers, which have a bound: later ones must not add to the first. (13.20)"""
    producer = server.tenant().producer

    def create(tasks: int) -> int:
        for start in range(0, tasks, 1000):
            batch = [
                {"command": "later", "payload": 1, "delaySeconds": 9e6, "idempotencyKey": f"{uuid.uuid4()}-{i}" * 5}
                for i in range(start, start + 1000)
            ]
            answer = producer.request("POST", paths.TASKS_BATCH, content=msgspec.json.encode({"tasks": batch}))
            assert answer.status_code == 200
        return resident_bytes(server)

    before = create(2 * DISTINCT)
    assert create(DISTINCT) - before < 2 * GROWTH_BYTES_MAX


class _Accepting:
    is_ready, revision = True, 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def validate(self, token: str) -> Claims:
        return Claims(subject=token[:9], scopes=frozenset(), event_types=("*",), raw={"tid": "acme"})


def test_tokens_are_cached_up_to_a_number_of_bytes() -> None:
    """(13.20)"""
    authenticator = Authenticator(_Accepting(), _Accepting(), producers_may_work=False)
    tokens = [f"{number}".ljust(8000, "x") for number in range(9000)]

    async def authenticate_all() -> None:
        for token in tokens:
            await authenticator.authenticate(TokenKind.PRODUCER, token)

    asyncio.run(authenticate_all())
    cached = [token for _, token in authenticator._verdicts]
    assert sum(map(len, cached)) <= CACHE_BYTES_MAX < sum(map(len, tokens))
    assert cached[-1] == tokens[-1]
