"""One suite for every engine: each test gets a `world` per engine, and asynchronous tests are run here."""

import asyncio
import inspect
import signal
import sys
from pathlib import Path

import pytest

# The tests' own modules are imported by their full name, which `--import-mode=importlib` leaves to the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.contract.engines import ENGINES, USUAL, Engine, FakeClock
from tests.contract.world import World, Worlds

TEST_S_MAX = 30
"""A test that takes longer hangs; it is stopped where it waits, so that the trace shows where."""


@pytest.fixture(params=USUAL)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def worlds(engine: Engine, tmp_path: Path, clock: FakeClock) -> Worlds:
    """Opens as many stores as a test needs, in its own folder."""
    return Worlds(engine, tmp_path, clock)


@pytest.fixture
def world(worlds: Worlds) -> World:
    return worlds.open()


@pytest.fixture
def synced_world(worlds: Worlds) -> World:
    """As `world`, with every result forced to disk."""
    return worlds.open("synced", fsync=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    def stop(*_: object) -> None:
        raise TimeoutError(f"still busy after {TEST_S_MAX} s")  # not waiting, but in an endless loop

    async def run() -> None:
        try:
            await asyncio.wait_for(test(**arguments), TEST_S_MAX)
        finally:
            worlds = pyfuncitem.funcargs["worlds"]
            assert isinstance(worlds, Worlds)
            await worlds.close()

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(TEST_S_MAX + 5)
    try:
        asyncio.run(run())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return True
