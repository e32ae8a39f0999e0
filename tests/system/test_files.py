"""A data directory is opened by one process, refused when it is damaged or short, and copied whole."""

import asyncio
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from tests.system.audit import audit, read_shards
from tests.system.ledger import Child

import codeq
from codeq.domain.errors import InvalidRequest, StoreCorrupt, StoreLocked, StoreMismatch
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database, batch

TASKS = 200


def test_a_directory_open_in_another_process_is_locked_until_that_ends(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Child(data) as child:
        child.wait_until_ready()
        with pytest.raises(StoreLocked, match=r"data.* is open in another process .*close that first"):
            codeq.open(data)
        assert child.returncode is None
    codeq.open(data).close()
    assert audit(data) == []


def test_a_directory_open_twice_in_one_process_is_locked(tmp_path: Path) -> None:
    with codeq.open(tmp_path / "data") as queue:
        with pytest.raises(StoreLocked, match="close that first"):
            codeq.open(tmp_path / "data")
        queue.enqueue("job", 1)  # the first one is not harmed
    codeq.open(tmp_path / "data").close()


def test_a_flipped_byte_in_the_middle_of_the_log_is_refused_and_recovery_keeps_what_precedes_it(tmp_path: Path) -> None:
    data = _killed(tmp_path)
    log = _log(data)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0x10
    log.write_bytes(content)
    before = _bytes(data)
    with pytest.raises(StoreCorrupt, match="recover=True"):
        codeq.open(data)
    assert log.read_bytes() == before[log.relative_to(data)], "the evidence is kept"
    with codeq.open(data, recover=True) as queue:
        left = _payloads(queue)
        assert left == list(range(len(left)))
        assert 0 < len(left) < TASKS
        queue.enqueue("job", "more")
    assert audit(data) == []
    with codeq.open(data) as queue:
        assert _payloads(queue) == [*left, "more"]


def test_a_log_that_is_shorter_than_was_acknowledged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codeq.store.rocksdb.high_water_mark._PERIOD_S", 0.0)
    data = _killed(tmp_path)
    log = _log(data)
    os.truncate(log, log.stat().st_size - 10)
    with pytest.raises(StoreCorrupt, match="fewer writes than were acknowledged"):
        codeq.open(data)
    with pytest.raises(StoreCorrupt):  # a second attempt changes nothing
        codeq.open(data)
    with codeq.open(data, recover=True) as queue:
        assert _payloads(queue) == list(range(TASKS - 1))
    assert audit(data) == []
    codeq.open(data).close()


def test_a_log_that_is_missing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codeq.store.rocksdb.high_water_mark._PERIOD_S", 0.0)
    data = _killed(tmp_path)
    _log(data).unlink()
    with pytest.raises(StoreCorrupt):
        codeq.open(data)


def test_a_torn_write_that_nobody_was_promised_is_dropped_without_a_word(tmp_path: Path) -> None:
    data = _killed(tmp_path)  # here the file `witness` was written with the first task and not since
    log = _log(data)
    os.truncate(log, log.stat().st_size - 10)
    with codeq.open(data) as queue:
        assert _payloads(queue) == list(range(TASKS - 1))
    assert audit(data) == []


def test_zeros_where_a_write_that_nobody_was_promised_was_to_be_are_dropped_without_a_word(tmp_path: Path) -> None:
    data = _killed(tmp_path)
    log = _log(data)
    # What ext4 leaves after a power cut when another file's fsync has made the new length of the log durable, but not
    # yet its last blocks: seen in 3 to 5 of 100 power losses with three shards.
    with log.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(bytes(100))
    with codeq.open(data) as queue:
        assert _payloads(queue) == list(range(TASKS - 1))
    assert audit(data) == []


def test_a_refusal_leaves_the_log_as_it_was_even_if_it_ends_in_a_zero(tmp_path: Path) -> None:
    async def main() -> None:
        async with await codeq.open_async(tmp_path / "living", sweeping=False) as queue:
            for number in range(300):
                await queue.enqueue("job", number)
            await queue.core.store.trim(before_ms=0, keep_max=45)  # its last bytes are the number 256
            await queue.core.store.flush()
            shutil.copytree(tmp_path / "living", tmp_path / "data")

    asyncio.run(main())
    log = _log(tmp_path / "data")
    content = bytearray(log.read_bytes())
    assert content[-1] == 0
    content[len(content) // 2] ^= 0x10
    log.write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreCorrupt):
            codeq.open(tmp_path / "data")
    assert log.read_bytes() == content


def test_every_queue_is_there_again_after_reopening(tmp_path: Path) -> None:
    tenants, commands = ("aaa", "bbb", "ccc"), ("x", "y", "z")
    with codeq.open(tmp_path / "data", sweeping=False) as queue:
        for tenant in tenants:
            new_tasks = [codeq.NewTask(command=command, delay_ms=n * 1000) for command in commands for n in range(3)]
            queue.for_tenant(tenant).enqueue_many(new_tasks)
    with codeq.open(tmp_path / "data", sweeping=False) as queue:
        for tenant in tenants:
            counts = queue.for_tenant(tenant).queues()
            assert {command: (c.pending, c.delayed) for command, c in counts.items()} == dict.fromkeys(commands, (1, 2))
            assert len(queue.for_tenant(tenant).list(limit=1000).tasks) == 9


def test_scans_keep_within_their_bounds(tmp_path: Path) -> None:
    database = Database(tmp_path / "rocksdb")
    content = batch()
    names = [bytes([letter]) + b"/" + number.to_bytes(8, "big") for letter in b"abcde" for number in range(50)]
    for name in names:
        content.put(name, b"v")
    database.write(content)
    for start, end in ((b"b/", b"b0"), (b"c/", b"e0"), (b"d/", b"d/" + (7).to_bytes(8, "big")), (b"bb", b"bc")):
        within = [name for name in names if start <= name < end]
        found = []
        for key, _ in database.scan(start, end):
            found.append(key)
            list(database.scan(b"a/", b"a0"))  # another scan at work must not move the bound of this one
        assert found == within
        assert list(database.scan_back(start, end)) == within[::-1]
        last = database.last(start, end)
        assert (last[0] if last else None) == (within[-1] if within else None)
    database.close()


def test_an_older_copy_under_a_newer_witness_is_refused(tmp_path: Path) -> None:
    data, old = tmp_path / "data", tmp_path / "old"
    with codeq.open(data) as queue:
        queue.enqueue("job", 1)
    shutil.copytree(data, old)
    with codeq.open(data) as queue:
        queue.enqueue("job", 2)
    shutil.rmtree(data / "shard-0000" / "rocksdb")
    shutil.copytree(old / "shard-0000" / "rocksdb", data / "shard-0000" / "rocksdb")
    with pytest.raises(StoreCorrupt, match="older copy"):
        codeq.open(data)
    with codeq.open(data, recover=True) as queue:
        assert _payloads(queue) == [1]


def test_a_directory_of_a_newer_format_is_refused_and_not_a_byte_changes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with codeq.open(data) as queue:
        queue.enqueue("job", 1)
    manifest = json.loads((data / "codeq.json").read_text())
    (data / "codeq.json").write_text(json.dumps({**manifest, "format": manifest["format"] + 1, "new": [1, 2]}))
    before = _bytes(data)
    for recover in (False, True):
        with pytest.raises(StoreMismatch, match="newer codeQ"):
            codeq.open(data, recover=recover)
    assert _bytes(data) == before


def test_a_shard_of_a_newer_format_is_refused_and_not_a_key_changes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with codeq.open(data) as queue:
        queue.enqueue("job", 1)
    database = Database(data / "shard-0000" / "rocksdb")
    change = batch()
    change.put(keys.FORMAT, keys.number(1 << 20))
    database.write(change)
    database.close()
    before = read_shards(data)[0].of
    witness = (data / "shard-0000" / "witness").read_bytes()
    for recover in (False, True):
        with pytest.raises(StoreMismatch, match="newer codeQ"):
            codeq.open(data, recover=recover)
    # RocksDB itself rewrites its log into tables whenever it is opened; what it holds must stay the same.
    assert read_shards(data)[0].of == before
    assert (data / "shard-0000" / "witness").read_bytes() == witness


def test_another_number_of_shards_is_refused_and_not_a_byte_changes(tmp_path: Path) -> None:
    codeq.open(tmp_path / "data", shards=2).close()
    before = _bytes(tmp_path / "data")
    with pytest.raises(StoreMismatch, match="2 shards, not 3"):
        codeq.open(tmp_path / "data", shards=3)
    assert _bytes(tmp_path / "data") == before


@pytest.mark.parametrize("shards", [1, 3])
def test_a_backup_taken_under_load_is_whole_and_opens(shards: int, tmp_path: Path) -> None:
    promised = asyncio.run(_back_up_under_load(tmp_path, shards))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup-0", "backup-1", "backup-2", "data"]
    for number in range(3):
        codeq.restore(tmp_path / f"backup-{number}", tmp_path / f"restored-{number}")
        assert audit(tmp_path / f"restored-{number}") == []
    with codeq.open(tmp_path / "restored-2") as queue:
        for task_id in promised:
            assert queue.get(task_id).payload == 1
        queue.enqueue("job", 2)
    assert audit(tmp_path / "restored-2") == []
    assert audit(tmp_path / "data") == []


async def _back_up_under_load(folder: Path, shards: int) -> list[str]:
    """Makes three backups under load; returns the tasks that were acknowledged before the last one began."""
    acknowledged: list[str] = []
    promised: list[str] = []
    stop = asyncio.Event()

    async def produce(queue: codeq.AsyncQueue) -> None:
        while not stop.is_set():
            acknowledged.append((await queue.enqueue("job", 1, priority=len(acknowledged) % 3)).id)

    async def work(queue: codeq.AsyncQueue) -> None:
        while not stop.is_set():
            jobs = await queue.claim(limit=3, wait=0.05)
            await queue.complete_many(jobs[:1])
            for job in jobs[1:]:
                await queue.nack(job, "again", delay=0)

    async with await codeq.open_async(folder / "data", shards=shards) as queue:
        busy = [asyncio.create_task(role(queue)) for role in (produce, produce, work, work)]
        for number in range(3):
            while len(acknowledged) < 100 * (number + 1):
                await queue.enqueue("beside", 1)
            promised = list(acknowledged)
            await queue.backup(folder / f"backup-{number}")
        stop.set()
        await asyncio.gather(*busy)
    return promised


def test_a_backup_is_not_written_over_and_not_restored_over_anything(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with codeq.open(data) as queue:
        queue.enqueue("job", 1)
        queue.backup(backup)
        with pytest.raises(InvalidRequest, match="exists already"):
            queue.backup(backup)
    before = _bytes(data)
    with pytest.raises(InvalidRequest, match="is not empty"):
        codeq.restore(backup, data)
    assert _bytes(data) == before
    with pytest.raises(InvalidRequest, match="not a codeQ backup"):
        codeq.restore(tmp_path / "nothing", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    codeq.restore(backup, tmp_path / "empty")
    with codeq.open(tmp_path / "empty") as queue:
        assert _payloads(queue) == [1]


def test_only_the_owner_can_look_into_a_data_directory(tmp_path: Path) -> None:
    previous = os.umask(0o000)
    try:
        with codeq.open(tmp_path / "data", shards=2) as queue:
            queue.enqueue("job", 1)
            queue.backup(tmp_path / "backup")
        codeq.restore(tmp_path / "backup", tmp_path / "restored")
        codeq.open(tmp_path / "restored").close()
    finally:
        os.umask(previous)
    for name in ("data", "restored"):
        folder = tmp_path / name
        for directory in (folder, folder / "shard-0000", folder / "shard-0001"):
            assert _mode(directory) == 0o700, directory
        assert _mode(folder / "shard-0000" / "witness") == 0o600


def test_only_the_owner_can_look_into_a_backup(tmp_path: Path) -> None:
    with codeq.open(tmp_path / "data") as queue:
        queue.backup(tmp_path / "backup")
    assert _mode(tmp_path / "backup") == 0o700


def _killed(folder: Path) -> Path:
    """Returns a directory as a killed process leaves it: TASKS tasks, each acknowledged, all still in RocksDB's log."""
    with codeq.open(folder / "living", sweeping=False) as queue:
        for number in range(TASKS):
            queue.enqueue("job", number)
        shutil.copytree(folder / "living", folder / "data")
    return folder / "data"


def _log(data: Path) -> Path:
    return max((data / "shard-0000" / "rocksdb").glob("*.log"), key=lambda path: path.stat().st_size)


def _payloads(queue: codeq.Queue) -> list[object]:
    """Returns all payloads, oldest task first."""
    return [queue.get(task.id).payload for task in reversed(queue.list(limit=1000).tasks)]


def _bytes(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
