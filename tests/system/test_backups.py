"""A backup of a store in use: others go on, also where the files must be copied, and a kill leaves nothing (13.27)."""

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest
from tests.system.disks import small_disk

import codeq


async def _fill(queue: codeq.AsyncQueue) -> None:
    """Leaves some twenty megabytes in memory, which the copy has to write first."""
    dice = random.Random(1)
    for _ in range(60):
        payloads = [b'"' + dice.randbytes(450).hex().encode() + b'"' for _ in range(300)]
        await queue.enqueue_many([codeq.NewTask(command="work", payload=payload) for payload in payloads])


async def _ticks_during_a_backup(data: Path, target: Path) -> int:
    """Returns how often the event loop came round while the backup was made."""
    async with await codeq.open_async(data, durability="process", sweeping=False) as queue:
        await _fill(queue)
        copying = asyncio.create_task(queue.backup(target))
        ticks = 0
        while not copying.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await copying
    return ticks


def test_a_backup_does_not_hold_the_event_loop(tmp_path: Path) -> None:
    assert asyncio.run(_ticks_during_a_backup(tmp_path / "data", tmp_path / "backup")) >= 10


def test_a_backup_on_another_file_system_is_whole(tmp_path: Path) -> None:
    with small_disk(tmp_path, 160) as disk:
        asyncio.run(_ticks_during_a_backup(tmp_path / "data", disk / "backup"))
        codeq.restore(disk / "backup", tmp_path / "restored")
        assert os.listdir(disk) == ["backup"]
    with codeq.open(tmp_path / "restored", sweeping=False) as queue:
        assert queue.queues()["work"].pending == 18_000


def test_what_a_killed_backup_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    codeq.open(tmp_path / "data").close()
    left = tmp_path / "data" / "shard-0000" / ".checkpoint-left"
    left.mkdir()
    (left / "000001.sst").write_bytes(b"x")
    codeq.open(tmp_path / "data").close()
    assert not left.exists()


def test_a_restored_directory_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    with codeq.open(tmp_path / "data", shards=2) as queue:
        queue.enqueue("work", 1)
        queue.backup(tmp_path / "backup")
    for path in (tmp_path / "backup").rglob("*"):  # as a copy by other tools may have it
        path.chmod(0o755 if path.is_dir() else 0o644)
    codeq.restore(tmp_path / "backup", tmp_path / "restored")
    restored = tmp_path / "restored"
    modes = {path.stat().st_mode & 0o777: path.is_dir() for path in [restored, *restored.rglob("*")]}
    assert modes == {0o700: True, 0o600: False}
    with pytest.raises(codeq.errors.InvalidRequest):
        codeq.restore(tmp_path / "backup", restored)


def _with_a_file(data: Path, content: bytes) -> str:
    with codeq.open(data, sweeping=False) as queue:
        task = queue.enqueue("work")
        [job] = queue.claim("work")
        queue.attach(job, "report.bin", content)
        queue.complete(job)
    return task.id


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_backup_contains_the_files_of_results(elsewhere: bool, tmp_path: Path) -> None:
    content = random.Random(1).randbytes(9_000_000)
    task_id = _with_a_file(tmp_path / "data", content)
    with small_disk(tmp_path, 160) as disk:
        target = (disk if elsewhere else tmp_path) / "backup"
        with codeq.open(tmp_path / "data", sweeping=False) as queue:
            queue.backup(target)
        shutil.rmtree(tmp_path / "data")
        codeq.restore(target, tmp_path / "restored")
    with codeq.open(tmp_path / "restored") as queue:
        assert queue.read_artifact(task_id, "report.bin") == content
