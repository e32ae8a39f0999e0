"""The pytest fixture `codeq_queue`, which every test suite has where codeQ is installed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from codeq.testing import QueueForTests


@pytest.fixture
def codeq_queue() -> "Iterator[QueueForTests]":
    """A new, empty queue with a clock that the test moves; see `codeq.testing`."""
    from codeq import testing  # noqa: PLC0415 - loaded only by tests that use it

    yield from testing.fixture()
