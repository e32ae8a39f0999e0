"""The clock of a queue: the system's time when it was opened, continued by a clock that nobody sets.

Leases and delays are measured with it, so a step of the system's clock, in either direction, ends none early and none
late. It finds its way back to the system's time slowly, as time services do, by running a hundredth faster or slower.
"""

import time
from collections.abc import Callable
from functools import partial

SLEW_DIVISOR = 100
"""One hundredth: a lease of five minutes ends three seconds early or late, and an hour is made up for in four days."""

CHECK_NS = 1_000_000_000
"""How often the system's clock is looked at."""

TOLERANCE_NS = 10_000_000
"""A difference below this is the noise of reading two clocks."""

_since_boot_ns = partial(time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Counts the time that the machine was suspended, as CLOCK_MONOTONIC does on macOS but not on Linux."""


class SteadyClock:
    """Unix milliseconds, never backwards and never in jumps. Implements `store.interface.Clock`; for one thread."""

    def __init__(
        self, *, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = _since_boot_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        wall_at_start_ns = wall_ns()
        self._since_ns = self._checked_ns = steady_ns()
        """When it was adjusted, and when the system's clock was looked at."""
        self._ahead_ns = wall_at_start_ns - self._since_ns
        """What the steady clock lacks to the time."""
        self._behind_ns = 0
        """How much later the system's clock was when it was looked at, less what has been made up for; negative if it
        was earlier."""
        self._adjust_ns = self._checked_ns + CHECK_NS
        """When the steady clock is not enough: every verb asks for the time, so nothing else is done before."""

    def __call__(self) -> int:
        steady_ns = self._steady_ns()
        if steady_ns >= self._adjust_ns:
            self._adjust(steady_ns)
        return (steady_ns + self._ahead_ns) // 1_000_000

    def start_at(self, ms: int) -> None:
        """Puts the clock forward to this time if it is behind it."""
        if ms > self():
            self._ahead_ns = ms * 1_000_000 - self._steady_ns()

    def _adjust(self, steady_ns: int) -> None:
        if self._behind_ns:
            slew_ns = (steady_ns - self._since_ns) // SLEW_DIVISOR
            corrected_ns = max(-slew_ns, min(slew_ns, self._behind_ns))
            self._behind_ns -= corrected_ns
            self._ahead_ns += corrected_ns
        self._since_ns = steady_ns
        if steady_ns - self._checked_ns >= CHECK_NS:
            self._checked_ns = steady_ns
            behind_ns = self._wall_ns() - steady_ns - self._ahead_ns
            self._behind_ns = behind_ns if abs(behind_ns) > TOLERANCE_NS else 0
        self._adjust_ns = steady_ns if self._behind_ns else self._checked_ns + CHECK_NS
