"""One development server for the whole folder, and a tenant of its own for every test."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

# The tests' own modules are imported by their full name, which `--import-mode=importlib` leaves to the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.server.server_process import Server, start_server
from tests.worker.workers import Tenant

import codeq

LIMIT_S = 90


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Do not stop it."""
    with start_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[codeq.Queue]:
    with codeq.open(tmp_path_factory.mktemp("embedded")) as queue:
        yield queue


@pytest.fixture
def tenant(server: Server) -> Iterator[Tenant]:
    """A new tenant of the server: its address, a token for everything, and a client."""
    with Tenant(server.base, server) as made:
        yield made


@pytest.fixture(params=["server", "embedded"])
def queue(request: pytest.FixtureRequest) -> codeq.Client | codeq.Queue:
    """The queues of a new tenant, on a server and inside the process in turn."""
    return _queue(request)


@pytest.fixture(params=["embedded", pytest.param("server", marks=pytest.mark.slow)])
def either(request: pytest.FixtureRequest) -> codeq.Client | codeq.Queue:
    """As `queue`, for tests that take long and find little more on a server."""
    return _queue(request)


def _queue(request: pytest.FixtureRequest) -> codeq.Client | codeq.Queue:
    if request.param == "server":
        made: Tenant = request.getfixturevalue("tenant")
        return made.client
    shared: codeq.Queue = request.getfixturevalue("embedded")
    return shared.for_tenant(request.node.name[:60].translate({ord("["): "-", ord("]"): "-"}))


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """Every test here ends in time, even where the code under test waits for ever."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"the test still runs after {LIMIT_S} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
