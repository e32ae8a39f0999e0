"""Limits the rate of calls: token buckets per subject and per tenant, in memory.

A subject is who a token names within its tenant. Tokens of one subject share a bucket, so a new token, or another
spelling of the same header, does not get a new one.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Annotated

from msgspec import Meta, Struct

from codeq.server.auth.principal import Principal
from codeq.wire.errors import RateLimited, TooLarge

BUCKETS_MAX = 100_000
"""The least recently used buckets are dropped first; a dropped bucket counts as full."""

SCOPES = ("producer", "worker", "lease", "admin", "read")
"""Creates and cancels; claims; heartbeats, nacks, abandons and results; admin routes; other reads."""

Bucket = tuple[str, ...]
"""Names a bucket: scope and tenant, and the subject if the bucket is one of a subject."""


class Rate(Struct, frozen=True, kw_only=True):
    requests_per_minute: Annotated[int, Meta(ge=0)] = 0
    burst_size: Annotated[int, Meta(ge=0)] = 0

    @property
    def is_on(self) -> bool:
        return self.requests_per_minute > 0 and self.burst_size > 0


class Charge(Struct, frozen=True, gc=False):
    """What a route is counted as: the scope whose buckets it spends from, and its name in metrics and refusals."""

    scope: str
    operation: str


class RateLimiter:
    """Every authenticated request spends one token; a batch then spends one for each further item."""

    is_shared = False
    """Whether `refresh` must be awaited before a call that `is_stale`: other servers spend from the same buckets."""

    def __init__(
        self,
        per_subject: Mapping[str, Rate],
        per_tenant: Mapping[str, Rate],
        *,
        clock: Callable[[], float] = monotonic,
        on_hit: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._per_subject = {scope: rate for scope, rate in per_subject.items() if rate.is_on}
        self._per_tenant = {scope: rate for scope, rate in per_tenant.items() if rate.is_on}
        self.is_on = bool(self._per_subject or self._per_tenant)
        self._clock = clock
        self._on_hit = on_hit
        self._buckets: OrderedDict[Bucket, tuple[float, float]] = OrderedDict()

    def spend(self, charge: Charge, caller: Principal) -> None:
        """Spends a token for a request."""
        if self.is_on:
            self._take(charge, caller, 1)

    def spend_for_batch(self, charge: Charge, caller: Principal, items: int) -> None:
        """Spends for the items of a batch besides the first, for which the request has spent.

        Refuses the whole batch if not all of it can be paid for, and returns the request's token. TooLarge if even
        full buckets could not pay.
        """
        if not self.is_on or items <= 1:
            return
        burst = min((rate.burst_size for _, rate in self._rates(charge, caller)), default=items)
        if items > burst:
            self._on_hit(charge.scope, charge.operation)
            raise TooLarge(
                f"a batch may have at most {burst} items: the {charge.scope} rate limit admits no more at once"
            )
        for key, rate in self._rates(charge, caller):
            self._spend(key, self._left(key, rate), -1)
        self._take(charge, caller, items)

    def affordable(self, charge: Charge, caller: Principal, items: int) -> int:
        """Returns how many of `items` the caller has tokens for, with the one that the request has spent."""
        if not self.is_on or items == 1:
            return items
        lefts = [int(self._left(*bucket)) for bucket in self._rates(charge, caller)]
        return min(items, 1 + max(0, min(lefts, default=items)))

    def spend_for_part(self, charge: Charge, caller: Principal, items: int) -> int:
        """Spends for as many items of a batch as the caller has tokens for, and returns how many these are: one at
        least, for which the request has spent."""
        paid = self.affordable(charge, caller, items)
        if paid < items:
            self._on_hit(charge.scope, charge.operation)
        self.spend_for_batch(charge, caller, paid)
        return paid

    def spend_late(self, charge: Charge, caller: Principal, items: int) -> None:
        """Spends for items of a batch besides the first that are known only afterwards, such as claimed tasks. Calls
        that wait at the same time may leave the buckets in debt; later calls are refused until it is paid."""
        if self.is_on and items > 1:
            for key, rate in self._rates(charge, caller):
                self._spend(key, self._left(key, rate), items - 1)

    def is_stale(self, charge: Charge, caller: Principal) -> bool:  # noqa: ARG002 - nobody else spends
        return False

    async def refresh(self, charge: Charge, caller: Principal) -> None:
        """Does nothing here."""

    async def close(self) -> None:
        """Does nothing here."""

    def _rates(self, charge: Charge, caller: Principal) -> list[tuple[Bucket, Rate]]:
        scope = charge.scope
        found: list[tuple[Bucket, Rate]] = []
        if (rate := self._per_subject.get(scope)) is not None:
            found.append(((scope, caller.tenant, caller.subject), rate))
        if (rate := self._per_tenant.get(scope)) is not None:
            found.append(((scope, caller.tenant), rate))
        return found

    def _take(self, charge: Charge, caller: Principal, items: int) -> None:
        """Takes the tokens from all buckets of the caller, or from none."""
        buckets = [(key, rate, self._left(key, rate)) for key, rate in self._rates(charge, caller)]
        waits_s = [(items - left) * 60 / rate.requests_per_minute for _, rate, left in buckets if left < items]
        if waits_s:
            self._on_hit(charge.scope, charge.operation)
            raise RateLimited(
                "rate limit exceeded",
                scope=charge.scope,
                operation=charge.operation,
                retry_after_s=max(1, math.ceil(max(waits_s))),
            )
        for key, _, left in buckets:
            self._spend(key, left, items)

    def _rate(self, key: Bucket) -> Rate:
        return (self._per_subject if len(key) == 3 else self._per_tenant)[key[0]]

    def _spend(self, key: Bucket, left: float, tokens: float) -> None:
        self._put(key, left - tokens)

    def _left(self, key: Bucket, rate: Rate) -> float:
        left, seen_s = self._buckets.get(key, (float(rate.burst_size), 0.0))
        return min(rate.burst_size, left + (self._clock() - seen_s) * rate.requests_per_minute / 60)

    def _put(self, key: Bucket, left: float) -> None:
        self._buckets[key] = (left, self._clock())
        self._buckets.move_to_end(key)
        if len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)
