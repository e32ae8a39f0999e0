"""One development server for the whole folder, and a new tenant for every test."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The tests' own modules are imported by their full name, which `--import-mode=importlib` leaves to the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.server.server_process import Server, Tenant, start_server
from tests.server.stores import ENGINE, run_on_every_engine


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_on_every_engine(metafunc, "test_endpoints_")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Shared by all tests that change nothing for others: each has its own tenant. Do not stop it."""
    engine = getattr(request, "param", ENGINE)
    with start_server(tmp_path_factory.mktemp("server"), engine=engine) as running:
        yield running


@pytest.fixture
def tenant(server: Server) -> Tenant:
    """Returns a tenant of the shared server that no other test uses."""
    return server.tenant()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the tests that check what all others called last."""
    items.sort(key=lambda item: item.path.name == "test_endpoints_all.py")
