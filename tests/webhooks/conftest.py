"""One server for the folder that may send to loopback, a receiver, and a new tenant for every test."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.server.server_process import Server, Tenant, start_server
from tests.webhooks.http_receiver import HttpReceiver

from codeq.wire.webhooks import secret_of

SECRET = secret_of(b"test" * 8)
SETTINGS = {
    "allow": "127.0.0.1",
    "secret": SECRET,
    "backoff_base_seconds": 0.05,
    "backoff_max_seconds": 0.2,
    "timeout_seconds": 3,
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("webhooks"), settings={"webhooks": SETTINGS}) as running:
        yield running


@pytest.fixture
def tenant(server: Server) -> Tenant:
    return server.tenant()


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as running:
        yield running
