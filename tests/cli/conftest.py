"""One server with two shards for the whole folder, and a user with a tenant and a home of their own for every test."""

import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

# The tests' own modules are imported by their full name, which `--import-mode=importlib` leaves to the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cli.shell import Cli
from tests.server.server_process import Server, start_server

_numbers = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("server"), settings={"store": {"shards": 2}}) as running:
        yield running


@pytest.fixture
def cli(server: Server, tmp_path: Path) -> Cli:
    return Cli(server, f"cli-{next(_numbers)}", tmp_path / "home")


@pytest.fixture(autouse=True)
def _without_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CODEQ_") or name in ("COLUMNS", "LINES"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")
