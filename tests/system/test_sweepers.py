"""Sweepers outlive what passes, and what does not pass ends the process (13.1, 13.3)."""

import asyncio
import logging
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.in_process_server import until
from tests.server.server_process import launch

import codeq
from codeq.domain import lifecycle
from codeq.domain.errors import StoreBusy, StoreFailed
from codeq.domain.queue import QueueKey
from codeq.server.main import EXIT_STORE_FAILED
from codeq.server.metrics import Metrics
from codeq.store.rocksdb import group_commit
from codeq.store.rocksdb.database import Database
from codeq.usecases import sweep

WORK = QueueKey("default", "work")
WAITING_MAX = 20


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds every fsync from when the event is cleared until it is set again."""
    event = threading.Event()
    event.set()
    flush = Database.flush

    def slow_flush(database: Database) -> int:
        event.wait(20)
        return flush(database)

    monkeypatch.setattr(Database, "flush", slow_flush)
    monkeypatch.setattr(group_commit, "COMMITS_WAITING_MAX", WAITING_MAX)
    yield event
    event.set()


def test_sweepers_go_on_after_the_store_was_busy(
    tmp_path: Path, go: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """(13.1)"""
    caplog.set_level(logging.WARNING, "codeq.sweep")
    asyncio.run(_promote_after_the_store_was_busy(tmp_path, go, caplog))
    lines = [record.getMessage() for record in caplog.records]
    retried = [line for line in lines if "is retried" in line]
    assert len(retried) == len({line.split(" is ")[0] for line in retried}), "a stretch of failures is logged once"


async def _promote_after_the_store_was_busy(
    tmp_path: Path, go: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    async with await codeq.open_async(tmp_path / "data", sweeping=False) as queue, asyncio.timeout(25):
        await queue.enqueue("work", delay=0.3)
        calls = await _fill(queue, go)  # before the sweepers run: one that waits for the disk already is not refused
        sweeping = asyncio.create_task(sweep.run(queue.core, events_keep_ms=60_000, events_keep_max=1000))
        await until(lambda: "promote_due of shard 0 is retried" in caplog.text)
        go.set()
        await asyncio.gather(*calls)
        # Counted, not claimed: a claim would promote the task itself.
        while not (await queue.core.store.counts("default"))[WORK].pending:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.02)
        await until(lambda: "promote_due of shard 0 works again" in caplog.text)
        sweeping.cancel()


def test_failures_of_sweepers_are_counted(tmp_path: Path, go: threading.Event) -> None:
    """(13.1)"""
    asyncio.run(_count_failures(tmp_path, go))


async def _count_failures(tmp_path: Path, go: threading.Event) -> None:
    metrics, role = Metrics(), {"role": "promote_due"}
    async with await codeq.open_async(tmp_path / "data", sweeping=False) as queue, asyncio.timeout(25):
        calls = await _fill(queue, go)
        sweeping = asyncio.create_task(
            sweep.run(queue.core, events_keep_ms=60_000, events_keep_max=1000, on_failure=metrics.sweep_failed)
        )
        await until(lambda: metrics.registry.get_sample_value("codeq_sweep_failures_total", role) == 2)
        go.set()
        await asyncio.gather(*calls)
        sweeping.cancel()


def test_a_call_that_is_refused_does_not_wait_for_the_disk(tmp_path: Path, go: threading.Event) -> None:
    """(13.1)"""
    asyncio.run(_refuse_while_the_disk_is_held(tmp_path, go))


async def _refuse_while_the_disk_is_held(tmp_path: Path, go: threading.Event) -> None:
    async with await codeq.open_async(tmp_path / "data", sweeping=False) as queue:
        calls = await _fill(queue, go)
        async with asyncio.timeout(10):
            for _ in range(3 * WAITING_MAX):
                for refused in (queue.enqueue("work", 1), queue.list(), queue.claim("work")):
                    with pytest.raises(StoreBusy):
                        await refused
        assert not any(call.done() for call in calls)
        go.set()
        await asyncio.gather(*calls)
        assert (await queue.queues())["fill"].pending == len(calls)


def test_reads_that_wait_for_a_flush_under_way_are_bounded_too(tmp_path: Path, go: threading.Event) -> None:
    """(13.1)"""
    asyncio.run(_read_while_the_disk_is_held(tmp_path, go))


async def _read_while_the_disk_is_held(tmp_path: Path, go: threading.Event) -> None:
    async with await codeq.open_async(tmp_path / "data", sweeping=False) as queue:
        go.clear()
        first = asyncio.create_task(queue.enqueue("work", 1))
        await asyncio.sleep(0.05)
        reads = [asyncio.create_task(queue.get("none")) for _ in range(5 * WAITING_MAX)]
        await until(lambda: sum(read.done() for read in reads) >= 3 * WAITING_MAX)
        assert {type(read.exception()) for read in reads if read.done()} == {StoreBusy}
        go.set()
        await first
        await asyncio.gather(*reads, return_exceptions=True)


async def _fill(queue: codeq.AsyncQueue, go: threading.Event) -> "list[asyncio.Task[codeq.Task]]":
    """Returns the calls that wait for the held disk: one whose flush is under way, and as many as may wait (sweepers
    that wait as well take the place of some)."""
    go.clear()
    calls = [asyncio.create_task(queue.enqueue("fill", 0))]
    await asyncio.sleep(0.05)
    calls += [asyncio.create_task(queue.enqueue("fill", number)) for number in range(WAITING_MAX)]
    await asyncio.sleep(0.05)
    waiting = [call for call in calls if not call.done()]
    assert len(waiting) > WAITING_MAX // 2
    return waiting


def test_a_queue_whose_sweepers_have_died_refuses_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """(13.1)"""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(lifecycle, "promote", broken)
    asyncio.run(_use_without_sweepers(tmp_path))


async def _use_without_sweepers(tmp_path: Path) -> None:
    queue = await codeq.open_async(tmp_path / "data")
    await queue.enqueue("work", delay=0.05)
    assert queue._sweeper is not None
    await asyncio.wait([queue._sweeper], timeout=20)
    for refused in (queue.enqueue("work", 1), queue.claim("work"), queue.queues()):
        with pytest.raises(StoreFailed, match="ZeroDivisionError: planted; open it again"):
            await refused
    await queue.close()
    async with await codeq.open_async(tmp_path / "data", sweeping=False) as again:
        assert (await again.queues())["work"].delayed == 1


def test_a_server_whose_sweepers_have_died_exits(tmp_path: Path) -> None:
    """(13.1)"""
    (tmp_path / "sitecustomize.py").write_text(
        "from codeq.usecases import sweep\n"
        "async def purge_finished(*_, **__):\n"
        "    raise ZeroDivisionError('planted')\n"
        "sweep.purge_finished = purge_finished\n"
    )
    path = f"{tmp_path}:{Path(codeq.__file__).parents[1]}"
    with launch(tmp_path / "server", env={"PYTHONPATH": path}, ready=False) as server:
        assert server.process.wait(30) == EXIT_STORE_FAILED
        assert "the sweepers have failed" in server.log_text()
        assert "planted" in server.log_text()


@pytest.mark.parametrize("call", ["sync/fdatasync", "rw/write"])
def test_an_idle_server_whose_disk_fails_exits(tmp_path: Path, call: str) -> None:
    """(13.3) No request is sent: only the sweepers notice."""
    if shutil.which("fiu-ctrl") is None:
        pytest.skip("fiu-ctrl is missing: apt-get install fiu-utils")
    control = str(tmp_path / "fiu")
    with launch(tmp_path, before=("fiu-run", "-x", "-f", control)) as server:
        fault = f"enable name=posix/io/{call}"
        subprocess.run(["fiu-ctrl", "-f", control, "-c", fault, str(server.pid)], check=True, timeout=20)
        # Where every write fails, libuv cannot wake its own loop from a thread either, and aborts: no disk does that.
        allowed = {EXIT_STORE_FAILED, -signal.SIGABRT} if call == "rw/write" else {EXIT_STORE_FAILED}
        assert server.process.wait(60) in allowed
    with launch(tmp_path) as again:
        assert again.tenant("acme").create()["status"] == "PENDING"
