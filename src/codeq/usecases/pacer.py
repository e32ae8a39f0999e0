"""Spreads calls over iterations of the event loop, if thousands are due in one."""

import asyncio
from collections import deque
from collections.abc import Callable

CALLS_MAX = 32
"""Calls in one iteration: the end of a long poll takes up to 0.2 ms."""


class Pacer:
    def __init__(self) -> None:
        self._left = CALLS_MAX
        self._waiting: deque[Callable[[], object]] = deque()

    def run(self, call: Callable[[], object]) -> None:
        """Calls at once, or in a later iteration if there were enough calls in this one."""
        if self._left == CALLS_MAX:
            asyncio.get_running_loop().call_soon(self._continue)
        if self._left:
            self._left -= 1
            call()
        else:
            self._waiting.append(call)

    def _continue(self) -> None:
        self._left = CALLS_MAX
        for _ in range(min(len(self._waiting), CALLS_MAX)):
            self.run(self._waiting.popleft())
