"""Limits the rate of calls over all servers of one store: the buckets are shared, and each server has a copy of them.

A call is decided by the copy, at once. What was spent is sent at most every SEND_EVERY_S, and the answer, with what the
other servers spent, becomes the copy. A bucket of which nothing was heard for STALE_S is asked for before the call is
decided. So servers that admit calls of one caller in the same moment may together admit more than the bucket has, each
at most its copy. That leaves the bucket in debt, which is paid before further calls are admitted: over time the rate is
exact. While the shared buckets cannot be reached, the copy is a bucket of this server alone.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from codeq.domain.errors import StoreError
from codeq.server.auth.principal import Principal
from codeq.server.logs import log
from codeq.server.ratelimit import BUCKETS_MAX, Bucket, Charge, Rate, RateLimiter

SEND_EVERY_S = 0.02
"""At most this often, because a call to Redis costs as much as a fast request."""
STALE_S = 1.0
ASK_S_MAX = 0.25
"""How long a call waits for a bucket that is asked for; then the copy decides."""
RETRY_S = 1.0
"""How long nothing is asked after a failure."""
BUCKETS_AT_ONCE = 500


class SharedBuckets(Protocol):
    async def spend(self, spendings: Sequence[tuple[tuple[str, ...], float, int, int]]) -> list[float]:
        """Spends tokens (name, tokens, tokens per minute, tokens of a full bucket); returns what each has left."""

    async def close(self) -> None: ...


class SharedRateLimiter(RateLimiter):
    """As `RateLimiter`, with `refresh` to be awaited first where `is_stale`."""

    is_shared = True

    def __init__(
        self,
        per_subject: Mapping[str, Rate],
        per_tenant: Mapping[str, Rate],
        shared: SharedBuckets,
        *,
        clock: Callable[[], float] | None = None,
        on_hit: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        super().__init__(per_subject, per_tenant, on_hit=on_hit, **({"clock": clock} if clock is not None else {}))
        self._shared = shared
        self._unsent: dict[Bucket, float] = {}
        self._heard_s: dict[Bucket, float] = {}
        self._asking: dict[tuple[Bucket, ...], asyncio.Task[None]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._failed_s: float | None = None

    def is_stale(self, charge: Charge, caller: Principal) -> bool:
        """Whether a bucket of the caller must be asked for first."""
        if not self.is_on:
            return False
        now_s = self._clock()
        if self._failed_s is not None and now_s - self._failed_s < RETRY_S:
            return False
        heard_s = self._heard_s
        return any(now_s - heard_s.get(key, -STALE_S) >= STALE_S for key, _ in self._rates(charge, caller))

    async def refresh(self, charge: Charge, caller: Principal) -> None:
        """Asks for the caller's buckets if nothing was heard of them lately. Calls that ask together share it."""
        if not self.is_stale(charge, caller):
            return
        names = tuple(key for key, _ in self._rates(charge, caller))
        asking = self._asking.get(names)
        if asking is None:
            asking = self._asking[names] = asyncio.get_running_loop().create_task(self._exchange(names))
            asking.add_done_callback(lambda _: self._asking.pop(names, None))
        await asyncio.wait([asking], timeout=ASK_S_MAX)
        if not asking.done():
            self._failed("no answer in time")

    async def close(self) -> None:
        """Sends what is left, and closes the connection."""
        for task in [*self._asking.values(), *([self._sending] if self._sending is not None else [])]:
            task.cancel()
            await asyncio.wait([task])
        if self._unsent and self._failed_s is None:
            await self._exchange(list(self._unsent)[:BUCKETS_AT_ONCE])
        await self._shared.close()

    def _spend(self, key: Bucket, left: float, tokens: float) -> None:
        super()._spend(key, left, tokens)
        self._unsent[key] = self._unsent.get(key, 0) + tokens
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())
            self._sending.add_done_callback(self._sent)

    async def _send(self) -> None:
        """Sends until nothing is left to send; the first time at once."""
        while self._unsent:
            await self._exchange(list(self._unsent)[:BUCKETS_AT_ONCE])
            await asyncio.sleep(SEND_EVERY_S if self._failed_s is None else RETRY_S)

    def _sent(self, sending: "asyncio.Task[None]") -> None:
        self._sending = None
        if not sending.cancelled():
            sending.result()

    async def _exchange(self, names: Sequence[Bucket]) -> None:
        """Sends what was spent in these buckets, and copies what they have. After a failure what was sent is not sent
        again: it may have been counted, and a caller must not pay twice."""
        rates = [self._rate(name) for name in names]
        spendings = [
            (name, self._unsent.pop(name, 0), rate.requests_per_minute, rate.burst_size)
            for name, rate in zip(names, rates, strict=True)
        ]
        try:
            lefts = await self._shared.spend(spendings)
        except StoreError as fault:
            self._failed(str(fault))
            return
        if self._failed_s is not None:
            self._failed_s = None
            log(logging.INFO, "rate limits are shared with other servers again")
        if len(self._heard_s) > BUCKETS_MAX:
            self._heard_s.clear()  # each is asked for again
        now_s = self._clock()
        for name, left in zip(names, lefts, strict=True):
            self._put(name, left - self._unsent.get(name, 0))
            self._heard_s[name] = now_s

    def _failed(self, reason: str) -> None:
        if self._failed_s is None:
            log(logging.WARNING, "rate limits are those of this server alone until Redis answers", reason=reason)
        self._failed_s = self._clock()
