"""What a data directory contains, and how it is opened, backed up and restored."""

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from codeq.domain.errors import InvalidRequest, StoreCorrupt, StoreError, StoreMismatch
from codeq.domain.limits import FILES_BESIDE_TABLES, OPEN_TABLES_MAX, OPEN_TABLES_MIN, RESTART_GRACE_MS, SHARDS_MAX
from codeq.log_id import new_log_id
from codeq.store.codec import FORMAT
from codeq.store.interface import Clock, Listener, Store
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import read_keys
from codeq.store.rocksdb.only_process import OnlyProcess
from codeq.store.rocksdb.shard import RocksShard
from codeq.store.sharded import ShardedStore, shard_name

ARTIFACTS = "artifacts"
"""The directory with the files of results, unless they are stored elsewhere."""
_MANIFEST = "codeq.json"


class _Manifest(Struct, frozen=True):
    shards: int
    log: str = ""
    """The id of the event log. A backup has none: whatever is opened from it continues a log of its own."""


def open_rocksdb(
    path: Path,
    *,
    clock: Clock,
    shards: int | None = None,
    fsync: bool = True,
    recover: bool = False,
    grace_ms: int = RESTART_GRACE_MS,
    listeners: Sequence[Listener] = (),
    open_files_max: int | None = None,
    make_log_id: Callable[[], str] = new_log_id,
) -> Store:
    """Opens the directory, or creates it. `shards` is fixed at creation; None for the existing number, or one.

    `open_files_max` is for all shards together, as far as RocksDB can do with it.
    Time goes on from the newest event, should the system's clock have been set back since.
    """
    manifest = _agree_on_manifest(path, shards, make_log_id)
    number = manifest.shards
    peers = OnlyProcess(listeners)
    opened: list[RocksShard] = []
    try:
        for i in range(number):
            shard = RocksShard(
                path / shard_name(i),
                peers=peers,
                clock=clock,
                fsync=fsync,
                recover=recover,
                open_tables_max=_open_tables(open_files_max, number),
                log_id=manifest.log,
            )
            opened.append(shard)
        # Before leases are extended: one shard may have newer events than another.
        clock.start_at(max(shard.newest_ms for shard in opened))
        for shard in opened:
            shard.restore_leases(grace_ms)
    except BaseException:
        for shard in opened:
            shard.release()
        raise
    return opened[0] if number == 1 else ShardedStore(opened)


async def back_up(store: Store, target: Path, *, artifacts: Path | None = None) -> None:
    """Writes a copy of an open store into the new directory `target`. It appears there whole or not at all.

    Each shard is copied as it is at one moment, one shard after the other; then the files in `artifacts`, so that those
    of every result in the copy are in it too. The copy has everything that was acknowledged before the call. Other
    calls run meanwhile; a caller must not cancel this one.
    """
    part = await asyncio.to_thread(_new_part, target)
    try:
        copy = part / "copy"
        await store.checkpoint(copy / shard_name(0) if store.shards == 1 else copy)
        if artifacts is not None:
            await asyncio.to_thread(_copy_artifacts, artifacts, copy / ARTIFACTS)
        await asyncio.to_thread(_publish, copy, target, store.shards)
    finally:
        await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)


def _new_part(target: Path) -> Path:
    """Makes the directory that the copy is written into: beside the target, which must not exist."""
    if target.exists():
        raise InvalidRequest(f"{target} exists already; a backup needs a new directory")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as fault:
        raise StoreError(f"cannot back up to {target}: {fault}") from fault


def _copy_artifacts(source: Path, target: Path) -> None:
    """Links the files, which are never changed, or copies them to another file system. Those that are deleted meanwhile
    belong to no task any more."""
    try:
        for folder, _, names in os.walk(source):
            place = target / Path(folder).relative_to(source)
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    _link_or_copy(Path(folder, name), place / name)
    except OSError as fault:
        raise StoreError(f"cannot back up the artifacts in {source}: {fault}") from fault


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def _publish(copy: Path, target: Path, shards: int) -> None:
    _write_manifest(copy, _Manifest(shards))
    try:
        _seal(copy)
        copy.rename(target)
        _sync(target.parent)
    except OSError as fault:
        raise StoreError(f"cannot back up to {target}: {fault}") from fault


def restore(backup: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Copies a backup into the new or empty directory `path`, ready to be opened. Its event log gets a new id."""
    backup, path = Path(backup), Path(path)
    manifest = _read_manifest(backup)
    if manifest is None:
        raise InvalidRequest(f"{backup} is not a codeQ backup: it has no {_MANIFEST}")
    if path.exists() and any(path.iterdir()):
        raise InvalidRequest(f"{path} is not empty; restore into a new directory, then move it in place")
    part = path.with_name(f".{path.name}-restoring")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(mode=0o700, parents=True)  # before anything is in it, whatever mode the backup has
        shutil.copytree(backup, part, dirs_exist_ok=True, copy_function=shutil.copyfile)
        _write_manifest(part, _Manifest(manifest.shards))  # also if it is the copy of a data directory, with an id
        _seal(part)
        if path.exists():
            path.rmdir()
        part.rename(path)
    except OSError as fault:
        shutil.rmtree(part, ignore_errors=True)
        raise StoreError(f"cannot restore {backup} to {path}: {fault}") from fault


def _open_tables(files_max: int | None, shards: int) -> int:
    """Returns how many table files each shard may keep open."""
    if files_max is None:
        return OPEN_TABLES_MAX
    return min(OPEN_TABLES_MAX, max(OPEN_TABLES_MIN, files_max // shards - FILES_BESIDE_TABLES))


def repair(path: Path, *, clock: Clock) -> int:
    """Compares the indexes and counts of a directory that no process has open with its tasks, and puts tasks that are
    in no index back where they belong. Returns how many.

    Records that cannot be read stay listed by `unreadable`; of those that were listed before, only they do.
    """
    manifest = _read_manifest(path)
    if manifest is None:
        raise InvalidRequest(f"{path} is not a codeQ data directory: it has no {_MANIFEST}")
    restored = 0
    for i in range(manifest.shards):
        shard = RocksShard(path / shard_name(i), peers=OnlyProcess(()), clock=clock, repair=True)
        try:
            clock.start_at(shard.newest_ms)
            shard.restore_leases(RESTART_GRACE_MS)
            restored += shard.restored
            asyncio.run(shard.close())
        finally:
            shard.release()
    return restored


def unreadable(path: Path, limit: int) -> list[tuple[str, bytes]]:
    """Returns shard and key of records that were set aside because they could not be read, up to `limit` per shard.

    The directory may be in use.
    """
    found: list[tuple[str, bytes]] = []
    manifest = _read_manifest(path)
    for number in range(manifest.shards if manifest is not None else 0):
        name = shard_name(number)
        stored = read_keys(path / name / "rocksdb", keys.UNREADABLE, keys.after(keys.UNREADABLE), limit)
        found += [(name, key.removeprefix(keys.UNREADABLE)) for key in stored]
    return found


def _agree_on_manifest(path: Path, wanted: int | None, make_log_id: Callable[[], str]) -> _Manifest:
    if wanted is not None and not 1 <= wanted <= SHARDS_MAX:
        raise InvalidRequest(f"shards must be 1 to {SHARDS_MAX}, not {wanted}")
    existing = _read_manifest(path)
    if existing is not None and wanted not in (None, existing.shards):
        raise StoreMismatch(
            f"{path} has {existing.shards} shards, not {wanted}, and tasks cannot change their shard. Open it with "
            f"shards={existing.shards}, or drain it into a new directory with {wanted}"
        )
    if existing is not None and existing.log:
        return existing
    agreed = _Manifest(existing.shards if existing is not None else wanted or 1, make_log_id())
    _write_manifest(path, agreed)
    return agreed


def _read_manifest(path: Path) -> _Manifest | None:
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        format_, shards, log = int(manifest["format"]), int(manifest["shards"]), str(manifest.get("log", ""))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as fault:
        raise StoreCorrupt(f"{path / _MANIFEST} is damaged ({fault}); restore it from a backup") from fault
    if format_ > FORMAT:
        raise StoreMismatch(
            f"{path} was written by a newer codeQ (format {format_}, this one knows {FORMAT}); nothing was changed"
        )
    return _Manifest(shards, log)


def _write_manifest(path: Path, manifest: _Manifest) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path / f".{_MANIFEST}"
        with part.open("w") as file:
            json.dump({"format": FORMAT, "shards": manifest.shards, "log": manifest.log}, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path / _MANIFEST)
        _sync(path)
    except OSError as fault:
        raise StoreError(f"cannot use {path} as a data directory: {fault}") from fault


def _seal(folder: Path) -> None:
    """Lets nobody but the owner read the files, and forces them to disk."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        _sync(path)


def _sync(path: Path) -> None:
    """Forces a file or a directory to disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
