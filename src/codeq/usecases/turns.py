"""Which long call continues: one piece in each iteration of the event loop, tenants in turn, short calls first.

    wait ─▶ _waiting ─ _grant ─▶ the call runs a piece ─▶ _piece_ended ─ no other tenant makes short calls ─▶ _grant
                         ▲                                     └──── else a pause of four pieces ───────────────┘

A tenant with many connections gets no more pieces than one with a single connection. While other tenants make short
calls, pieces are short, and between two of them there is a pause: a short call passes the loop several times (it is
read, stored, flushed and answered), and would else wait for a piece each time.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

from codeq.domain.limits import LOOP_HOLD_MS, LOOP_PAUSE_MS_MAX, LOOP_SHARED_HOLD_MS, LOOP_SHARED_PAUSES, SHORT_CALL_MS

_LONG_AGO_S = float("-inf")


class Turns:
    """Used by all long calls of a store. Costs nothing while there are none, except `note_short_call`."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_granting = False
        """Whether `_grant` is scheduled, or a piece runs in this iteration or the next."""
        self._granted_s = _LONG_AGO_S
        self._until_s = _LONG_AGO_S
        """When the piece that runs now must end."""
        self._next_s = _LONG_AGO_S
        """When the next piece may begin, if other tenants make short calls."""
        self._last_tenant = ""
        self._last_s = _LONG_AGO_S
        self._others_s = _LONG_AGO_S
        """When a tenant other than the last made its last short call."""

    def note_short_call(self, tenant: str, now_s: float) -> None:
        """Says that a short call of this tenant has begun, at this time of `perf_counter`."""
        if tenant != self._last_tenant:
            self._others_s = self._last_s
            self._last_tenant = tenant
        self._last_s = now_s

    def is_shared(self, tenant: str) -> bool:
        """Returns whether another tenant has made a short call just now."""
        return self._is_shared(tenant, perf_counter())

    async def wait(self, tenant: str) -> float:
        """Returns at this tenant's turn: the time of `perf_counter` until which the call may use the event loop."""
        now_s = perf_counter()
        if now_s < self._until_s and not self._waiting:
            return self._until_s  # several calls share a piece
        if self._is_granting or self._must_pause(tenant, now_s):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, deque()).append(turn)
            if not self._is_granting:
                self._schedule()
            await turn
            now_s = perf_counter()
        else:  # no other long call has run in this iteration
            self._begin_piece(now_s)
        self._until_s = now_s + (LOOP_SHARED_HOLD_MS if self._is_shared(tenant, now_s) else LOOP_HOLD_MS) / 1000
        return self._until_s

    def _is_shared(self, tenant: str, now_s: float) -> bool:
        others_s = self._others_s if tenant == self._last_tenant else self._last_s
        return now_s - others_s < SHORT_CALL_MS / 1000

    def _must_pause(self, tenant: str, now_s: float) -> bool:
        return now_s < self._next_s and self._is_shared(tenant, now_s)

    def _schedule(self) -> None:
        """Schedules the next piece: at once, or after the pause."""
        self._is_granting = True
        loop, now_s = asyncio.get_running_loop(), perf_counter()
        if self._must_pause(next(iter(self._waiting)), now_s):
            loop.call_later(self._next_s - now_s, self._grant)
        else:
            loop.call_soon(self._grant)

    def _grant(self) -> None:
        """Lets the first call of the tenant whose turn it is run a piece, in the next iteration."""
        while self._waiting:
            tenant, calls = next(iter(self._waiting.items()))
            turn = calls.popleft()
            if calls:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]
            if not turn.done():  # else the call was cancelled
                turn.set_result(None)
                self._begin_piece(perf_counter())
                return
        self._is_granting = False

    def _begin_piece(self, now_s: float) -> None:
        self._is_granting = True
        self._granted_s = now_s
        asyncio.get_running_loop().call_soon(self._piece_ended)  # which runs after the piece

    def _piece_ended(self) -> None:
        self._until_s = _LONG_AGO_S
        now_s = perf_counter()
        pause_s = min(LOOP_SHARED_PAUSES * (now_s - self._granted_s), LOOP_PAUSE_MS_MAX / 1000)
        self._next_s = now_s + pause_s
        if self._waiting:
            self._schedule()
        else:
            self._is_granting = False


class TenantsLock:
    """A lock that those who wait for it get tenants in turn, however many calls of one of them wait."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def held(self, tenant: str) -> AsyncIterator[None]:
        if self._is_held:
            await self._wait(tenant)
        self._is_held = True
        try:
            yield
        finally:
            self._pass_on(tenant)

    async def _wait(self, tenant: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was this call's turn already
                self._pass_on(tenant)
            raise

    def _pass_on(self, tenant: str) -> None:
        """Wakes the next call, for which the lock stays held; releases it if nobody waits. `tenant` has had it."""
        if tenant in self._waiting:
            self._waiting.move_to_end(tenant)
        while self._waiting:
            following, calls = next(iter(self._waiting.items()))
            turn = calls.popleft()
            if not calls:
                del self._waiting[following]
            if not turn.done():  # else the call was cancelled
                turn.set_result(None)
                return
        self._is_held = False
