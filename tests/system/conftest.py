"""Ends every test here in time, even if the code under test is in an endless loop."""

import signal
from collections.abc import Iterator
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
