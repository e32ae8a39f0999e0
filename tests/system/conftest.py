"""Ends every test here in time, even if the code under test is in an endless loop, and sets the clocks of servers."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

LIMIT_S = 150
"""A file may set another."""


@pytest.fixture(autouse=True)
def _in_time(request: pytest.FixtureRequest) -> Iterator[None]:
    limit_s = getattr(request.module, "LIMIT_S", LIMIT_S)

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"the test still runs after {limit_s} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s, 5)  # again and again: closing may hang as well
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture(scope="session")
def clock_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What to put into LD_PRELOAD, so that STEP_FILE says by how many seconds the system's clock is off."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: apt-get install gcc")
    made = tmp_path_factory.mktemp("clock") / "stepclock.so"
    source = Path(__file__).with_name("stepclock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made
