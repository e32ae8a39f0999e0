"""On which engine the servers of the tests store their tasks: RocksDB, or Redis with `CODEQ_TEST_STORE=redis`.

    make test-redis
    CODEQ_TEST_STORE=redis pytest tests/server tests/sdk tests/worker tests/cli

Without the variable, some files run on both. On Redis, every data directory is a prefix in one Redis, so that a server
started again on it finds its tasks. Tests that are about files of RocksDB are skipped with their reason.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.contract.redis_engines import durable_node_url

VARIABLE = "CODEQ_TEST_STORE"
ENGINES = ("rocksdb", "redis")
ENGINE = os.environ.get(VARIABLE, "rocksdb")
assert ENGINE in ENGINES, f"{VARIABLE} is one of {ENGINES}, not {ENGINE!r}"


def on_rocksdb(reason: str) -> pytest.MarkDecorator:
    """Marks tests that can only be about RocksDB, and says why."""
    return pytest.mark.skipif(ENGINE != "rocksdb", reason=reason)


def run_on_every_engine(metafunc: pytest.Metafunc, prefix: str) -> None:
    """Runs the tests of files that begin so on a shared server of each engine, or on that of the variable alone."""
    if "server" in metafunc.fixturenames and metafunc.definition.path.name.startswith(prefix):
        engines = ENGINES if ENGINE == "rocksdb" else (ENGINE,)
        metafunc.parametrize("server", engines, indirect=True, scope="session")


def with_store(
    settings: Mapping[str, Any] | None, env: Mapping[str, str] | None, *, data: Path, engine: str = ENGINE
) -> dict[str, Any]:
    """Returns the settings with the engine under test, unless the test itself has chosen one."""
    wanted = dict(settings or {})
    store = dict(wanted.get("store") or {})
    if engine == "rocksdb" or "url" in store or "CODEQ_STORE_URL" in (env or {}):
        return wanted
    files = {"url": f"file://{artifacts_folder(data, engine)}", **(wanted.get("artifacts") or {})}
    return wanted | {"store": {"url": durable_node_url(), "prefix": prefix_of(data), **store}, "artifacts": files}


def artifacts_folder(data: Path, engine: str = ENGINE) -> Path:
    """Returns where a server with this data directory stores files of results, unless its settings say otherwise."""
    return data / "artifacts" if engine == "rocksdb" else data.with_name(f"{data.name}-artifacts")


def prefix_of(data: Path) -> str:
    return "t" + hashlib.sha1(str(data).encode()).hexdigest()[:16]
