"""Which connections begin a request in an iteration of the event loop, if more want to than others can wait for.

Hundreds of connections that each send a request when they have the answer to the last one bring as many requests into
every iteration, and a call of another tenant, which passes the loop several times, would wait for all of them each
time. So an iteration begins what takes a few milliseconds. The other connections go on in the next ones, tenants in
turn; a tenant with few of them is served before.
"""

import asyncio
from collections import OrderedDict, deque
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codeq.server.connection import Connection

CROWD = 32
"""Connections of a server from which on requests are counted, and how many of these begin in an iteration at most while
several tenants make calls."""
FEW = 2
"""How many of one tenant begin in an iteration in any case, unless others of it wait."""
SHARED_S = 0.1
"""For how long after a request of its a tenant counts as one that makes calls."""
ALONE_HOLD_S, SHARED_HOLD_S = 0.020, 0.003
"""What an iteration should take while one tenant makes calls, or several."""


class Admission:
    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Connection]] = OrderedDict()
        """By tenant."""
        self._begun: dict[str, int] = {}
        """In this iteration, by tenant."""
        self._total = 0
        self._most = float(CROWD)
        """How many may begin in an iteration while it is shared: fewer, the longer these take."""
        self._began_s = 0.0
        self._last_tenant = ""
        self._last_s = self._others_s = float("-inf")
        """When a request came last, and when one of another tenant than that."""

    def admits(self, connection: "Connection") -> bool:
        """Returns whether the connection may go on now; else it takes its turn in a later iteration."""
        tenant, now_s = connection.tenant, perf_counter()
        if tenant != self._last_tenant:
            self._last_tenant, self._others_s = tenant, self._last_s
        self._last_s = now_s
        if tenant in self._waiting or (self._begun.get(tenant, 0) >= FEW and self._is_full(now_s)):
            connection.waits_for_turn = True
            if not connection.is_half_closed:
                connection.pause_reading(True)
            self._waiting.setdefault(tenant, deque()).append(connection)
            return False
        if not self._total and not self._waiting:
            self._began_s = now_s
            asyncio.get_running_loop().call_soon(self._next_iteration)
        self._count(tenant)
        return True

    def _count(self, tenant: str) -> None:
        self._total += 1
        self._begun[tenant] = self._begun.get(tenant, 0) + 1

    def _is_full(self, now_s: float) -> bool:
        if now_s - self._others_s > SHARED_S:
            return now_s - self._began_s > ALONE_HOLD_S
        return self._total >= self._most or now_s - self._began_s > SHARED_HOLD_S

    def _next_iteration(self) -> None:
        self._begun.clear()
        self._total = 0
        if not self._waiting:
            self._most = float(CROWD)
            return
        now_s = perf_counter()
        took_s = max(now_s - self._began_s, SHARED_HOLD_S / CROWD)
        self._most = min(CROWD, max(FEW, self._most * SHARED_HOLD_S / took_s))
        self._began_s = now_s
        asyncio.get_running_loop().call_soon(self._next_iteration)
        while self._waiting and not (self._total and self._is_full(perf_counter())):
            tenant, connections = self._waiting.popitem(last=False)
            connection = connections.popleft()
            if connections:
                self._waiting[tenant] = connections
            if not connection.is_lost:
                self._count(tenant)
                connection.take_turn()
