"""A disk that fails or runs full: the store stops or refuses, reports it, and has everything that it acknowledged."""

import asyncio
import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.system.audit import audit, faults_of, read_shards
from tests.system.disks import fill, small_disk
from tests.system.ledger import Child, Ledger

import codeq
from codeq.domain.errors import StoreError, StoreFailed, StoreFull
from codeq.domain.limits import DISK_RESERVE_BYTES

FAULTS = {
    "fdatasync": "enable_random name=posix/io/sync/fdatasync,probability=0.02,onetime",
    "every fdatasync from then on": "enable_random name=posix/io/sync/fdatasync,probability=0.02",
    # Not once only: that might hit only a line of RocksDB's log for people.
    "write": "enable_random name=posix/io/rw/write,probability=0.01",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_after_an_io_error_everything_is_refused_and_nothing_acknowledged_is_missing(
    fault: str, tmp_path: Path
) -> None:
    if shutil.which("fiu-run") is None:
        pytest.skip("fiu-run is missing: apt-get install fiu-utils")
    dice = random.Random(fault)
    data = tmp_path / "data"
    codeq.open(data).close()
    ledger = Ledger()
    failures = 0
    for cycle in range(12):
        options = ("--seed", str(dice.getrandbits(32)), "--until-failed")
        with Child(data, *options, before=("fiu-run", "-x", "-c", FAULTS[fault])) as child:
            lines = child.finish(60)
        ledger.add(lines)
        found = read_shards(shutil.copytree(data, tmp_path / f"copy-{cycle}"))
        assert faults_of(found) == [], f"after failure {cycle + 1}"
        assert ledger.broken(found) == [], f"after failure {cycle + 1}"
        if not any("ready" in line for line in lines):
            continue  # it failed while it was opening, and reported it
        failures += 1
        assert {line["ended"] for line in lines if "ended" in line} == {"failed"}
        answers = {line["after"]: line["code"] for line in lines if line.get("after", "close") != "close"}
        assert len(answers) > 10
        assert {verb: code for verb, code in answers.items() if code != "failed"} == {}
        if failures == 4:
            break
    assert failures, "no fault was met while working"
    assert ledger.lines


def test_a_nearly_full_disk_refuses_new_tasks_and_lets_running_ones_finish(tmp_path: Path) -> None:
    with small_disk(tmp_path, 160) as disk:
        with codeq.open(disk / "data", sweeping=False) as queue:
            queue.enqueue_many(codeq.new_tasks("job", range(10)))
            filler = fill(disk, DISK_RESERVE_BYTES // 2)
            _enqueue_until_full(queue)
            with pytest.raises(StoreFull, match="free some space"):
                queue.enqueue("other", 10)
            [job] = queue.claim("job")
            queue.complete(job, "done")
            assert queue.get(job.id).task.status is codeq.Status.COMPLETED
            jobs = queue.claim("job", limit=2)
            assert queue.nack(jobs[0], delay=0) == codeq.ReleaseResult(is_dead=False)
            assert queue.abandon(jobs[1]) == codeq.ReleaseResult(is_dead=False)
            with pytest.raises(StoreFull):
                queue.enqueue("other", 10)
            assert queue.queues()["job"].pending == 9
            filler.unlink()
            queue.complete(queue.claim("job")[0])
            assert queue.enqueue("other", 10).status is codeq.Status.PENDING
        assert audit(disk / "data") == []


def test_a_producer_alone_can_go_on_once_space_is_freed(tmp_path: Path) -> None:
    with small_disk(tmp_path, 160) as disk, codeq.open(disk / "data") as queue:
        filler = fill(disk, DISK_RESERVE_BYTES // 2)
        _enqueue_until_full(queue)
        filler.unlink()
        deadline_s = time.monotonic() + 3
        while True:
            try:
                queue.enqueue("job", "after")
            except StoreFull:
                assert time.monotonic() < deadline_s, "there is space again, and new tasks are still refused"
            else:
                return


def test_a_backup_on_a_full_disk_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    """(13.27) It would flush RocksDB's memory, and the failure of that is the store's."""
    with small_disk(tmp_path, 160) as disk, codeq.open(disk / "data", sweeping=False) as queue:
        queue.enqueue_many(codeq.new_tasks("job", range(10)))
        filler = fill(disk, 0)
        with pytest.raises(StoreFull, match="free some space"):
            queue.backup(tmp_path / "backup")
        filler.unlink()
        queue.complete(queue.claim("job")[0])
        queue.backup(tmp_path / "backup")


def _enqueue_until_full(queue: codeq.Queue) -> None:
    with suppress(StoreFull):
        for number in range(20_000):  # the store checks the free space at intervals
            queue.enqueue("before", number)
        pytest.fail("the disk is nearly full, and new tasks are still taken in")


def test_a_write_that_fails_under_a_reader_stops_the_store_and_everyone_hears_why(tmp_path: Path) -> None:
    async def main(disk: Path) -> list[object]:
        queue = await codeq.open_async(disk / "data", sweeping=False)
        await queue.enqueue("job", 1)
        fill(disk, 0)
        answers: list[object] = []
        payload = "x" * 1_000_000
        answers += await asyncio.gather(
            queue.enqueue("job", payload), queue.list(), queue.claim(), queue.list(), return_exceptions=True
        )
        answers += await asyncio.gather(queue.enqueue("job", 3), queue.claim(), queue.list(), return_exceptions=True)
        with suppress(Exception):  # how it closes is not checked here
            await queue.close()
        return answers

    with small_disk(tmp_path, 96) as disk:
        answers = asyncio.run(main(disk))
    assert [type(answer).__name__ for answer in answers] == ["StoreFailed"] * 7
    assert all("No space left" in str(answer) for answer in answers)


def test_a_failed_store_closes_with_a_store_error_and_lets_go_of_its_directory(tmp_path: Path) -> None:
    with small_disk(tmp_path, 96) as disk:
        queue = codeq.open(disk / "data", sweeping=False)
        queue.enqueue("job", 1)
        filler = fill(disk, 0)
        with pytest.raises(StoreFailed):
            queue.enqueue("job", "x" * 1_000_000)
        filler.unlink()
        files = len(os.listdir("/proc/self/fd"))
        with suppress(StoreError):  # it may raise once more that it has failed
            queue.close()
        assert len(os.listdir("/proc/self/fd")) < files
        with codeq.open(disk / "data") as again:
            assert len(again.list().tasks) >= 1
        assert audit(disk / "data") == []


@pytest.mark.slow
def test_a_disk_that_is_full_to_the_last_byte_loses_nothing_acknowledged(tmp_path: Path) -> None:
    ledger = Ledger()
    data = tmp_path / "small" / "data"
    with small_disk(tmp_path, 96) as disk:
        for cycle in range(4):
            with Child(data, "--seed", str(cycle), "--until-failed") as child:
                child.wait_until_ready()
                child.read_for(0.2)
                filler = fill(disk, 0)
                lines = child.finish(60)
            ledger.add(lines)
            filler.unlink()
            codes = {line["after"]: line["code"] for line in lines if line.get("after", "close") != "close"}
            assert set(codes.values()) == {"failed"}, codes
            found = read_shards(shutil.copytree(data, tmp_path / f"copy-{cycle}"))
            assert faults_of(found) == [], f"after filling it {cycle + 1} times"
            assert ledger.broken(found) == [], f"after filling it {cycle + 1} times"
    assert len(ledger.lines) > 100
