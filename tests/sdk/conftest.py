"""One development server for the whole folder, and four kinds of clients with the same verbs."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The tests' own modules are imported by their full name, which `--import-mode=importlib` leaves to the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.sdk.clients import KINDS, Clients, Connect
from tests.sdk.proxy import Proxy
from tests.server.server_process import Server, start_server
from tests.server.stores import ENGINE, run_on_every_engine

from codeq.sdk.blocking import BlockingVerbs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_on_every_engine(metafunc, "test_claim")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Each test has a tenant of its own. Do not stop it. It waits for no disk: that is tested elsewhere."""
    folder, engine = tmp_path_factory.mktemp("server"), getattr(request, "param", ENGINE)
    with start_server(folder, settings={"store": {"durability": "process"}}, engine=engine) as running:
        yield running


@pytest.fixture(scope="session")
def clients(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    with Clients(server, tmp_path_factory.mktemp("embedded")) as opened:
        yield opened


@pytest.fixture(params=KINDS)
def queue(request: pytest.FixtureRequest, clients: Clients) -> BlockingVerbs:
    """The queues of a new tenant, for each kind of client in turn."""
    return clients.queue(request.param)


@pytest.fixture(params=["Client", "AsyncClient"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients of a server, of each kind in turn."""
    with Connect(request.param) as clients:
        yield clients


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy before the server, which follows a script."""
    with Proxy(server.port) as between:
        yield between
