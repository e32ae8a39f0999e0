"""A data directory: what is in it, how it is opened, copied and put back."""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from codeq.domain.errors import InvalidRequest, StoreCorrupt, StoreError, StoreMismatch
from codeq.domain.limits import RESTART_GRACE_MS, SHARDS_MAX
from codeq.store.codec import FORMAT
from codeq.store.interface import Clock, Listener, Store
from codeq.store.rocksdb.shard import RocksShard
from codeq.store.sharded import ShardedStore, shard_name

_MANIFEST = "codeq.json"


def open_rocksdb(
    path: Path,
    *,
    clock: Clock,
    shards: int | None = None,
    fsync: bool = True,
    recover: bool = False,
    grace_ms: int = RESTART_GRACE_MS,
    listeners: Sequence[Listener] = (),
) -> Store:
    """Open the directory, or make it. `shards` is fixed when it is made; None takes what is there, or one."""
    number = _agree_on_shards(path, shards)
    opened: list[RocksShard] = []
    try:
        for i in range(number):
            shard = RocksShard(
                path / shard_name(i),
                listeners=listeners,
                clock=clock,
                fsync=fsync,
                recover=recover,
                grace_ms=grace_ms,
            )
            opened.append(shard)
    except BaseException:
        for shard in opened:
            shard.release()
        raise
    return opened[0] if number == 1 else ShardedStore(opened)


async def back_up(store: Store, target: Path) -> None:
    """Write a copy of an open store into the new directory `target`. It appears there whole or not at all."""
    if target.exists():
        raise InvalidRequest(f"{target} exists already; a backup needs a new directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Files are linked, not copied, where the file system allows it: so the copy is made beside its target first.
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        copy = part / "copy"
        copy.mkdir(mode=0o700)
        await store.checkpoint(copy / shard_name(0) if store.shards == 1 else copy)
        _write_manifest(copy, store.shards)
        copy.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def restore(backup: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Copy a backup into the new or empty directory `path`, ready to be opened."""
    backup, path = Path(backup), Path(path)
    if _read_manifest(backup) is None:
        raise InvalidRequest(f"{backup} is not a codeQ backup: it has no {_MANIFEST}")
    if path.exists() and any(path.iterdir()):
        raise InvalidRequest(f"{path} is not empty; restore into a new directory, then move it in place")
    part = path.with_name(f".{path.name}-restoring")
    shutil.rmtree(part, ignore_errors=True)
    try:
        shutil.copytree(backup, part)
        part.chmod(0o700)
        for file in part.rglob("*"):
            _sync(file)
        _sync(part)
        if path.exists():
            path.rmdir()
        part.rename(path)
    except OSError as fault:
        shutil.rmtree(part, ignore_errors=True)
        raise StoreError(f"cannot restore {backup} to {path}: {fault}") from fault


def _agree_on_shards(path: Path, wanted: int | None) -> int:
    if wanted is not None and not 1 <= wanted <= SHARDS_MAX:
        raise InvalidRequest(f"shards must be 1 to {SHARDS_MAX}, not {wanted}")
    existing = _read_manifest(path)
    if existing is None:
        number = wanted or 1
        _write_manifest(path, number)
        return number
    if wanted is not None and wanted != existing:
        raise StoreMismatch(
            f"{path} has {existing} shards, not {wanted}, and tasks cannot change their shard. Open it with "
            f"shards={existing}, or drain it into a new directory with {wanted}"
        )
    return existing


def _read_manifest(path: Path) -> int | None:
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        format_, shards = int(manifest["format"]), int(manifest["shards"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as fault:
        raise StoreCorrupt(f"{path / _MANIFEST} is damaged ({fault}); restore it from a backup") from fault
    if format_ > FORMAT:
        raise StoreMismatch(
            f"{path} was written by a newer codeQ (format {format_}, this one knows {FORMAT}); nothing was changed"
        )
    return shards


def _write_manifest(path: Path, shards: int) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path / f".{_MANIFEST}"
        with part.open("w") as file:
            json.dump({"format": FORMAT, "shards": shards}, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path / _MANIFEST)
        _sync(path)
    except OSError as fault:
        raise StoreError(f"cannot use {path} as a data directory: {fault}") from fault


def _sync(path: Path) -> None:
    """Force a file or a directory to disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
