"""Counts what each tenant holds at once, such as connections, and refuses more than its limit."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from codeq.domain.errors import QuotaExceeded

RETRY_AFTER_S = 1
"""A connection or a long poll may end at any moment."""

REFUSAL_PAUSE_S = 0.2
"""How long a tenant waits for the answer that it is at a limit. One that repeats the call at once takes little from the
others: each of its connections makes five such calls a second."""


class TenantSlots:
    def __init__(self, most: int, *, limit: str, what: str) -> None:
        """`most` is 0 for no limit; `limit` is the name of the limit, `what` the name of the things for people."""
        self._most = most
        self._limit = limit
        self._what = what
        self.taken: Counter[str] = Counter()

    def take(self, tenant: str) -> None:
        if self._most and self.taken[tenant] >= self._most:
            raise QuotaExceeded(
                f"the tenant has {self._most} {self._what} at once, as many as it may have",
                limit=self._limit,
                retry_after_s=RETRY_AFTER_S,
            )
        self.taken[tenant] += 1

    def free(self, tenant: str) -> None:
        self.taken[tenant] -= 1
        if not self.taken[tenant]:
            del self.taken[tenant]

    @contextmanager
    def held(self, tenant: str) -> Iterator[None]:
        self.take(tenant)
        try:
            yield
        finally:
            self.free(tenant)
