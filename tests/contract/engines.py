"""The engines that must fulfil the contract. A new engine is one more entry here, and no test changes."""

import contextlib
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from tests.contract import redis_engines

from codeq.domain.limits import RESTART_GRACE_MS
from codeq.store.data_dir import back_up, open_rocksdb, restore
from codeq.store.interface import Clock, Listener, Store

START_MS = 1_700_000_000_000


class FakeClock:
    """A clock that a test sets."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def start_at(self, ms: int) -> None:
        self.now_ms = max(self.now_ms, ms)

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms


class Open(Protocol):
    def __call__(
        self, path: Path, *, clock: Clock, shards: int | None, fsync: bool, grace_ms: int, listeners: Sequence[Listener]
    ) -> Store: ...


def copy_files(path: Path, target: Path) -> None:
    """Copies what a killed process leaves: the files as they are, not closed."""
    for _ in range(10):
        with contextlib.suppress(shutil.Error, FileNotFoundError):  # the engine has removed a file meanwhile
            before = _listing(path)
            shutil.copytree(path, target)
            if _listing(path) == before:
                return
        shutil.rmtree(target, ignore_errors=True)
    raise AssertionError(f"{path} kept changing while it was copied")


def _listing(path: Path) -> list[tuple[str, int]]:
    return sorted((str(file), file.stat().st_size) for file in path.rglob("*") if file.is_file())


@dataclass(frozen=True)
class Engine:
    name: str
    shards: int
    open_store: Open = open_rocksdb
    back_up: Callable[[Store, Path], Awaitable[None]] = back_up
    restore: Callable[[Path, Path], None] = restore
    crash: Callable[[Path, Path], None] = copy_files

    @property
    def is_local(self) -> bool:
        return self.open_store is open_rocksdb

    def open(
        self, path: Path, clock: FakeClock, *listeners: Listener, fsync: bool = False, grace_ms: int = RESTART_GRACE_MS
    ) -> Store:
        return self.open_store(
            path, clock=clock, shards=self.shards, fsync=fsync, grace_ms=grace_ms, listeners=listeners
        )


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("rocksdb", 1),
        Engine("rocksdb-3-shards", 3),
        Engine("redis", 1, redis_engines.open_node, crash=redis_engines.crash),
        Engine("redis-3-shards", 3, redis_engines.open_node, crash=redis_engines.crash),
        Engine("redis-full-filters", 1, redis_engines.open_with_full_filters, crash=redis_engines.crash),
        Engine("redis-cluster", 3, redis_engines.open_cluster, crash=redis_engines.crash),
    )
}

USUAL = [name for name in ENGINES if name not in ("redis-3-shards", "redis-full-filters")]
"""The cluster has three shards too; what a full filter can spoil has tests on every engine."""
on_every_engine = pytest.mark.parametrize("engine", sorted(ENGINES), indirect=True)

ON_FILES = [name for name in ENGINES if name.startswith("rocksdb")]
"""Engines with a data directory of their own: opened by one process, backed up by codeQ."""
on_files = pytest.mark.parametrize("engine", ON_FILES, indirect=True)
