"""Artifacts under stress: memory stays flat, a kill leaves no half of a file visible, floods take nothing."""

import base64
import contextlib
import hashlib
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from tests.server.artifact_calls import inline, path, put, sha256, submit
from tests.server.server_process import Server, Tenant, answered, eventually, start_server

from codeq.domain.limits import ARTIFACT_PART_BYTES as PART
from codeq.usecases.artifact_sweep import UNFINISHED_S_MAX
from codeq.wire import paths

GB = 1 << 30
PIECE = 1 << 20


def pieces(size: int, seed: int = 1) -> Iterator[bytes]:
    """Makes content on the fly: every megabyte differs from the others."""
    block = random.Random(seed).randbytes(PIECE - 8)
    for number in range(size // PIECE):
        yield number.to_bytes(8, "big") + block


def rss(server: Server) -> int:
    return int(psutil.Process(server.pid).memory_info().rss)


class PeakMemory:
    """Watches the memory of a process until the block ends."""

    def __init__(self, server: Server) -> None:
        self._process = psutil.Process(server.pid)
        self._ended = threading.Event()
        self.peak = 0

    def __enter__(self) -> "PeakMemory":
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.peak = max(self.peak, int(self._process.memory_info().rss))


@pytest.mark.slow
@pytest.mark.parametrize("size", [GB // 8, pytest.param(GB, marks=pytest.mark.cluster)])
def test_a_large_file_goes_up_and_down_in_the_memory_of_a_few_parts(size: int, tmp_path: Path) -> None:
    with start_server(tmp_path) as server:
        tenant = server.tenant("acme")
        task = tenant.held()
        answered(put(tenant, task, "warm", bytes(PART)), 201)
        before = rss(server)
        sent = hashlib.sha256()

        def body() -> Iterator[bytes]:
            for piece in pieces(size):
                sent.update(piece)
                yield piece

        with PeakMemory(server) as memory:
            stored = answered(put(tenant, task, "big", body(), timeout=600), 201)
            assert (stored["offset"], stored["sha256"]) == (size, sent.hexdigest())
            answered(submit(tenant, task, {"name": "big"}), 200)
            received, length = hashlib.sha256(), 0
            url = f"{server.base}{path(task, 'big')}"
            headers = {"authorization": f"Bearer {tenant.producer.token}"}
            with httpx.stream("GET", url, headers=headers, timeout=600) as response:
                for piece in response.iter_bytes():
                    received.update(piece)
                    length += len(piece)
        assert (length, received.hexdigest()) == (size, sent.hexdigest())
        figures = f"{size >> 20} MB up and down: {before >> 20} MB before, {memory.peak >> 20} MB at most"
        print(figures)  # noqa: T201 - to quote
        assert memory.peak - before < 6 * PART, figures


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.cluster) for seed in range(1, 6)]])
def test_a_kill_at_any_moment_leaves_no_half_of_a_file_visible(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    contents: dict[str, bytes] = {}
    settings = {"artifacts": {"sweep_interval_seconds": 0.2}, "leases": {"grace_seconds": 0}}
    with start_server(tmp_path, settings=settings) as server:
        tenant = server.tenant("acme")
        jobs = [tenant.create() for _ in range(12)]
        held = [tenant.claim(leaseSeconds=1) for _ in jobs]
        killer = threading.Timer(chance.uniform(0.05, 0.8), server.process.kill)
        killer.start()
        for task in held:
            content = contents[task["id"]] = chance.randbytes(chance.choice([10, PART // 2, PART + 99]))
            try:
                answered(put(tenant, task, "up", content), 201)
                small = {"name": "in", "contentBase64": base64.b64encode(content[:1000]).decode()}
                answered(submit(tenant, task, {"name": "up"}, small), 200)
            except httpx.HTTPError:
                break
        killer.join()
        server.process.wait(20)
    leave_unfinished(server.data / "artifacts")
    with start_server(tmp_path, settings=settings) as server:
        tenant = server.tenant("acme")
        visible = 0
        for job in jobs:
            listed = answered(tenant.producer.get(path(job)), 200)["artifacts"]
            status = tenant.task(job["id"])["status"]
            assert [each["name"] for each in listed] == (["up", "in"] if status == "COMPLETED" else [])
            for each in listed:
                visible += 1
                content = tenant.producer.get(each["url"]).content
                assert content == contents[job["id"]][: each["size"]]
                assert sha256(content) == each["sha256"]
        named = {job["id"] for job in jobs if tenant.task(job["id"])["status"] == "COMPLETED"}

        def is_swept() -> bool:
            left = {
                file.parent.parent.parent.name for file in (server.data / "artifacts").rglob("*-*") if file.is_file()
            }
            return left <= named

        eventually(is_swept, 30)


def leave_unfinished(root: Path) -> None:
    """Lets ten minutes pass since the files that were being written, of which there is one at least."""
    half = root / "acme/killed/1/name/part-0#1"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    then_s = time.time() - UNFINISHED_S_MAX - 1
    for file in root.rglob("*#*"):
        os.utime(file, (then_s, then_s))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with few slots and short patience."""
    settings = {
        "http": {"body_timeout_seconds": 1.0},
        "artifacts": {"uploads_max": 4, "artifact_bytes_max": 3 * PART},
        "limits": {"tenant": {"uploads_max": 2}},
    }
    with start_server(tmp_path_factory.mktemp("small"), settings=settings) as running:
        yield running


def begin(
    server: Server, tenant: Tenant, task: dict[str, Any], name: str, *, length: int, sent: bytes
) -> socket.socket:
    """Opens a connection and begins an upload that never ends by itself."""
    link = socket.create_connection(("127.0.0.1", server.port), 10)
    head = (
        f"PUT {path(task, name)}?leaseToken={task['leaseToken']} HTTP/1.1\r\nhost: x\r\n"
        f"authorization: Bearer {tenant.worker.token}\r\ncontent-length: {length}\r\n\r\n"
    )
    link.sendall(head.encode() + sent)
    return link


def test_a_slow_upload_ends_and_frees_its_place(small: Server) -> None:
    tenant = small.tenant()
    task = tenant.held()
    with begin(small, tenant, task, "slow", length=1000, sent=b"x") as link:
        answer = link.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer
    answered(put(tenant, task, "quick", b"x"), 201)


def test_more_uploads_than_places_are_refused_and_others_are_served(small: Server) -> None:
    tenant, neighbour = small.tenant(), small.tenant()
    task, theirs = tenant.held(), neighbour.held()

    def refused() -> dict[str, Any] | None:
        """Returns how one more upload is refused, while two have not ended: slow ones end after a moment."""
        links = [begin(small, tenant, task, f"n{number}", length=PART, sent=bytes(1000)) for number in range(2)]
        try:
            answer = put(tenant, task, "one-more", b"1")
            answered(put(neighbour, theirs, "x", b"1"), 201)
            answered(neighbour.producer.get(paths.QUEUES), 200)
        finally:
            for link in links:
                link.close()
        return answered(answer, 429) if answer.status_code == 429 else None

    refusal = eventually(refused, 30)
    assert refusal is not None
    assert (refusal["code"], refusal["limit"]) == ("quota-exceeded", "uploads")
    eventually(lambda: put(tenant, task, "x", b"1").status_code == 201, 10)


def test_a_flood_of_strangers_takes_no_memory(small: Server) -> None:
    """Without a token, or for a task that is not theirs, bodies are not read."""
    tenant = small.tenant()
    tenant.held()
    before, files = rss(small), psutil.Process(small.pid).num_fds()
    stranger = {"id": "01a1ecef-bfc8-7001-8623-984b35e40000", "leaseToken": 1}
    with PeakMemory(small) as memory:
        links = [begin(small, tenant, stranger, "x", length=GB, sent=bytes(60_000)) for _ in range(100)]
        answers = [link.recv(65536)[:13] for link in links]
        for link in links:
            link.close()
    assert set(answers) == {b"HTTP/1.1 404 "}
    assert memory.peak - before < 30 << 20
    eventually(lambda: psutil.Process(small.pid).num_fds() <= files + 5, 15)


def test_a_file_over_the_limit_is_refused_before_and_while_it_arrives(small: Server) -> None:
    tenant = small.tenant()
    task = tenant.held()
    with begin(small, tenant, task, "x", length=4 * PART, sent=b"") as link:
        assert link.recv(65536).startswith(b"HTTP/1.1 413 ")

    def endless() -> Iterator[bytes]:
        for _ in range(40):
            yield os.urandom(PIECE)

    with contextlib.suppress(httpx.WriteError):  # if the server had closed the connection before all was sent
        answered(put(tenant, task, "y", endless()), 413)
    assert "upload" in answered(submit(tenant, task, {"name": "y"}), 400)["error"]


def test_a_directory_that_somebody_removes_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "mounted" / "files"
    settings = {"artifacts": {"url": f"file://{folder}", "sweep_interval_seconds": 0.2}}
    with start_server(tmp_path / "server", settings=settings) as server:
        tenant = server.tenant("acme")
        task = tenant.held()
        eventually((folder / "codeq-owner").exists, 10)
        shutil.rmtree(folder)
        eventually((folder / "codeq-owner").exists, 10)  # the sweep goes on
        shutil.rmtree(folder)
        answered(put(tenant, task, "up", b"1"), 201)
        shutil.rmtree(folder)
        answered(submit(tenant, task, inline("in", b"2")), 200)
        assert tenant.producer.request("GET", path(task, "in")).content == b"2"


def test_a_directory_that_cannot_be_made_refuses_files_only(tmp_path: Path) -> None:
    folder = tmp_path / "mounted" / "files"
    settings = {"artifacts": {"url": f"file://{folder}", "sweep_interval_seconds": 0.2}}
    with start_server(tmp_path / "server", settings=settings) as server:
        tenant = server.tenant("acme")
        task = tenant.held()
        eventually((folder / "codeq-owner").exists, 10)
        shutil.rmtree(folder.parent)
        folder.parent.write_bytes(b"not a directory")
        eventually(lambda: "cannot be swept" in server.log_text(), 10)
        for refused in (put(tenant, task, "x", b"1"), submit(tenant, task, inline("x", b"1"))):
            assert answered(refused, 503)["code"] == "store-unavailable"
        answered(submit(tenant, task), 200)
