"""Limits the rate of calls: token buckets per bearer token and per tenant, in memory."""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from msgspec import Struct

from codeq.wire.errors import RateLimited

BUCKETS_MAX = 100_000
"""The least recently used buckets are dropped first; a dropped bucket counts as full."""


class Rate(Struct, frozen=True, kw_only=True):
    requests_per_minute: int = 0
    burst_size: int = 0

    @property
    def is_on(self) -> bool:
        return self.requests_per_minute > 0 and self.burst_size > 0


class RateLimiter:
    def __init__(
        self,
        per_token: dict[str, Rate],
        per_tenant: dict[str, Rate],
        *,
        clock: Callable[[], float] = monotonic,
        on_hit: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._per_token = {scope: rate for scope, rate in per_token.items() if rate.is_on}
        self._per_tenant = {scope: rate for scope, rate in per_tenant.items() if rate.is_on}
        self._clock = clock
        self._on_hit = on_hit
        self._buckets: OrderedDict[tuple[str, str, str], tuple[float, float]] = OrderedDict()

    def spend(self, scope: str, operation: str, *, token: str, tenant: str, items: int = 1) -> None:
        """Spends one token per item. A batch larger than the burst waits for a full bucket, and then empties it."""
        if not self._per_token and not self._per_tenant:
            return
        rate = self._per_token.get(scope)
        if rate:
            key = hashlib.sha256(token.encode()).hexdigest()
            self._take((scope, "token", key), rate, items, operation)
        rate = self._per_tenant.get(scope)
        if rate:
            self._take((scope, "tenant", tenant), rate, items, operation)

    def _take(self, key: tuple[str, str, str], rate: Rate, items: int, operation: str) -> None:
        now_s = self._clock()
        per_second = rate.requests_per_minute / 60
        left, seen_s = self._buckets.get(key, (float(rate.burst_size), now_s))
        left = min(rate.burst_size, left + (now_s - seen_s) * per_second)
        wanted = min(items, rate.burst_size)
        if left < wanted:
            self._on_hit(key[0], operation)
            raise RateLimited(
                "rate limit exceeded",
                scope=key[0],
                operation=operation,
                retry_after_s=max(1, math.ceil((wanted - left) / per_second)),
            )
        self._buckets[key] = (left - wanted, now_s)
        self._buckets.move_to_end(key)
        if len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)
