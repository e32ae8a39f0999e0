"""Stops sending to a host that fails again and again, until a trial shows that it works.

    closed ─ FAILURES_MAX failures in a row ─▶ open for a while ─▶ one trial ─ success ─▶ closed
                                                 ▲                    └─ failure ─┐
                                                 └───────── for twice as long ────┘

One breaker per tenant and host: a tenant that makes a host fail must not stop what others send to it.
"""

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from codeq.domain.limits import WEBHOOK_BREAKERS_MAX

FAILURES_MAX = 10
OPEN_S_MIN, OPEN_S_MAX = 5.0, 60.0
TRIAL_S = 60.0
"""After which a trial whose outcome was never reported counts as over."""


class _Breaker:
    __slots__ = ("failures", "is_tried", "open_s", "until_s")

    def __init__(self) -> None:
        self.failures = 0
        self.is_tried = False
        self.open_s = 0.0
        self.until_s = 0.0


class Breakers:
    """The breakers of hosts that have failed lately. Others have none."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._breakers: OrderedDict[tuple[str, str], _Breaker] = OrderedDict()

    @property
    def open(self) -> int:
        """How many are open."""
        return sum(breaker.failures >= FAILURES_MAX for breaker in self._breakers.values())

    def wait_s(self, tenant: str, host: str) -> float:
        """Returns 0 if something may be sent to the host: always, or as the trial. Else how long to wait."""
        breaker = self._breakers.get((tenant, host))
        if breaker is None or breaker.failures < FAILURES_MAX:
            return 0.0
        now_s = self._clock()
        if now_s < breaker.until_s:
            return breaker.until_s - now_s
        breaker.until_s = now_s + TRIAL_S
        breaker.is_tried = True
        return 0.0

    def succeeded(self, tenant: str, host: str) -> None:
        self._breakers.pop((tenant, host), None)

    def trial_not_made(self, tenant: str, host: str) -> None:
        """Lets the next delivery be the trial."""
        breaker = self._breakers.get((tenant, host))
        if breaker is not None:
            breaker.until_s = 0.0

    def failed(self, tenant: str, host: str) -> None:
        breaker = self._breakers.setdefault((tenant, host), _Breaker())
        self._breakers.move_to_end((tenant, host))
        breaker.failures += 1
        if breaker.failures == FAILURES_MAX or breaker.is_tried:  # not for those that were under way when it opened
            breaker.is_tried = False
            breaker.open_s = min(max(breaker.open_s * 2, OPEN_S_MIN), OPEN_S_MAX)
            breaker.until_s = self._clock() + breaker.open_s
        if len(self._breakers) > WEBHOOK_BREAKERS_MAX:
            self._breakers.popitem(last=False)
