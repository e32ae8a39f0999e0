"""How long callbacks hold the event loop, measured by how late a timer fires."""

import asyncio
from collections.abc import Callable
from time import perf_counter

TICK_S = 0.01
"""What a measurement may miss, since a callback may begin just before the timer is due. A tick costs about 10 µs."""


class LoopMonitor:
    """Reports at every tick how late the timer fired: as long as callbacks held the loop, less one tick at most."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._schedule()

    def stop(self) -> None:
        self._timer.cancel()

    def _schedule(self) -> None:
        self._due_s = perf_counter() + TICK_S
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._observe(max(0.0, perf_counter() - self._due_s))
        self._schedule()
