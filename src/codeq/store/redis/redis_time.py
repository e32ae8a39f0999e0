"""The time of the Redis server, so that the clocks of the machines that share it do not matter."""

import time
from collections.abc import Callable
from typing import Any


class RedisTime:
    """Unix nanoseconds by Redis's clock: asked for once in a while, and continued by a clock that nobody sets.

    Not known before the first `ask`.
    """

    def __init__(self, steady_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._steady_ns = steady_ns
        self._offset_ns = 0

    def __call__(self) -> int:
        return self._steady_ns() + self._offset_ns

    async def ask(self, connection: Any, key: str) -> None:
        """Takes over the time of the node that has the key. The answer is as old as half of its way."""
        asked_ns = self._steady_ns()
        seconds, micros = await connection.time_of(key)
        answered_ns = self._steady_ns()
        self._offset_ns = (int(seconds) * 1_000_000 + int(micros)) * 1000 - (asked_ns + answered_ns) // 2
