"""Many callbacks while receiver and server are killed: each arrives, signed, and none after it was recorded."""

import hashlib
import hmac
import os
import socket
import subprocess
import sys
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from standardwebhooks.webhooks import Webhook
from tests.redis_servers import start_node
from tests.server.server_process import Server, answered, eventually, launch
from tests.webhooks.conftest import SECRET, SETTINGS

import codeq
from codeq.wire import paths, times

RECEIVER = Path(__file__).with_name("failing_receiver.py")
CLOCKS_MS = 50
"""How far the clocks of server and receiver may differ: both are steady ones on this machine."""


class Receiver:
    """The failing receiver, started again on the same port after each kill."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._port, self._log, self._seed = free_port(), folder / "received.jsonl", seed
        self._process = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/hook"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self._seed += 1
        self._process = self._start()

    def received(self) -> list[dict[str, Any]]:
        lines = self._log.read_bytes().split(b"\n")[:-1] if self._log.exists() else []
        return [msgspec.json.decode(line) for line in lines]

    def _start(self) -> "subprocess.Popen[str]":
        arguments = [sys.executable, str(RECEIVER), str(self._port), str(self._log), str(self._seed)]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdout.close()
        return process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def store_settings(engine: str, folder: Path) -> Iterator[dict[str, Any]]:
    if engine == "rocksdb":
        yield {}
        return
    with start_node(folder / "redis", appendonly="yes", appendfsync="always") as node:
        yield {"store": {"url": node.url}}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["rocksdb", "redis"])
@pytest.mark.parametrize(("tasks", "kills"), [(100, 1), pytest.param(1000, 2, marks=pytest.mark.cluster)])
def test_callbacks_arrive_whatever_is_killed(tasks: int, kills: int, engine: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("CODEQ_SEED", time.time_ns() % 1_000_000))
    print(f"CODEQ_SEED={seed}")  # noqa: T201 - to run it again
    receiver = Receiver(tmp_path, seed)
    webhooks = SETTINGS | {"max_attempts": 100, "backoff_max_seconds": 0.5, "timeout_seconds": 2}
    port = free_port()
    began_s = time.monotonic()
    with store_settings(engine, tmp_path) as store, ExitStack() as stack:
        settings = {"webhooks": webhooks, "leases": {"grace_seconds": 0}, **store}
        stack.callback(receiver.kill)
        server = launch(tmp_path / "server", settings=settings, port=port)

        def restart() -> Server:
            server.kill()
            return launch(tmp_path / "server", settings=settings, port=port)

        with codeq.Client(server.base, server.token("acme", "worker", scopes=ALL), retry_for=60) as client:
            new = [codeq.NewTask(command="work", payload=b"1", webhook=receiver.url) for _ in range(tasks)]
            ids = {task.id for task in client.enqueue_many(new) if isinstance(task, codeq.Task)}
            # The server last: a new one has no open breaker, which would wait for a minute.
            steps = [lambda: None, *[receiver.kill, receiver.restart, restart] * kills]
            for number in range(10):
                for job in client.claim("work", limit=tasks // 10, wait=10):
                    client.complete(job, {"n": number})
                if number < len(steps):
                    done = steps[number]()
                    server = done if isinstance(done, Server) else server
            stack.callback(server.stop)
            eventually(lambda: is_done(server), 240, every_s=0.5)
            delivered = all_deliveries(server)
    check(receiver.received(), ids, delivered)
    requests = receiver.received()
    duplicates = sum(number - 1 for number in successes(requests).values())
    print(  # noqa: T201 - figures to quote
        f"{engine}: {tasks} callbacks in {time.monotonic() - began_s:.0f} s; {len(requests)} requests, "
        f"{sum(one['status'] == 500 for one in requests)} answered with 500, {duplicates} accepted twice"
    )


ALL = ["codeq:claim", "codeq:result", "codeq:create", "codeq:admin", "codeq:heartbeat", "codeq:abandon", "codeq:nack"]


def is_done(server: Server) -> bool:
    queue = answered(server.tenant("acme").admin.get(paths.ADMIN_QUEUE.replace("{command}", "$webhooks")), 200)
    return not (queue["ready"] or queue["delayed"] or queue["inProgress"])


def all_deliveries(server: Server) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    cursor: dict[str, str] = {}
    while True:
        page = answered(server.tenant("acme").admin.get(paths.DELIVERIES, limit=1000, **cursor), 200)
        found |= {one["id"]: one for one in page["deliveries"]}
        if page["cursor"] is None:
            return found
        cursor = {"cursor": page["cursor"]}


def successes(requests: list[dict[str, Any]]) -> Counter[str]:
    return Counter(one["headers"]["webhook-id"] for one in requests if one["status"] == 204)


def check(requests: list[dict[str, Any]], ids: set[str], delivered: dict[str, dict[str, Any]]) -> None:
    standard = Webhook(SECRET)
    key = b64decode(SECRET.removeprefix("whsec_"))
    accepted: set[str] = set()
    for one in requests:
        headers, body = one["headers"], one["body"].encode()
        task = msgspec.json.decode(body)
        accepted |= {task["taskId"]} if one["status"] == 204 else set()
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        plain = hmac.new(key, f"{headers['x-codeq-timestamp']}.".encode() + body, hashlib.sha256).hexdigest()
        assert (
            standard.sign(headers["webhook-id"], moment(headers["webhook-timestamp"]), one["body"])
            in headers["webhook-signature"]
        ), signed
        assert headers["x-codeq-signature"] == plain
    last = max(float(one["headers"]["webhook-timestamp"]) for one in requests)
    assert time.time() - last < 300, "else the library's own tolerance would not let us verify"
    standard.verify(requests[-1]["body"], requests[-1]["headers"])
    assert accepted == ids, "a callback of every task arrived"
    assert len(delivered) == len(ids), "and exactly one delivery per task was made"
    assert {one["taskId"] for one in delivered.values()} == ids
    assert {one["state"] for one in delivered.values()} == {"delivered"}
    for one in requests:
        ended_ms = times.parse(delivered[one["headers"]["webhook-id"]]["endedAt"])
        assert one["at"] * 1000 <= ended_ms + CLOCKS_MS, "nothing is sent after its success was recorded"


def moment(timestamp: str) -> Any:
    from datetime import UTC, datetime  # noqa: PLC0415 - for the library's own signature only

    return datetime.fromtimestamp(int(timestamp), UTC)
