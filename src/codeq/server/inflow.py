"""Which connection goes on next, of those that send much or pipeline many requests: one at a time, tenants in turn.

A connection receives for as long as its socket has data. With dozens that send files at once, megabytes would arrive in
each iteration of the event loop, or thousands of requests to be answered at once, and a short call, which passes the
loop several times, would wait for them each time. So each connection waits for its turn after a piece, or after some
requests. While other tenants make short calls, there is a pause between two turns, as between the pieces of long calls.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codeq.server.connection import Connection

PIECE_BYTES = 256 * 1024
"""What a connection receives before others have their turn: about a fifth of a millisecond."""
PAUSE_S = 0.001
"""As short as timers are: a piece takes about a fifth of it."""


class Inflow:
    def __init__(self, is_shared: Callable[[str], bool] = lambda _: False) -> None:
        """`is_shared` says whether a tenant other than this one makes short calls just now."""
        self._is_shared = is_shared
        self._waiting: OrderedDict[str, deque[Connection]] = OrderedDict()
        """By tenant."""
        self._is_scheduled = False

    @property
    def is_busy(self) -> bool:
        """Whether connections wait for their turn."""
        return bool(self._waiting)

    def count(self, connection: "Connection", size: int) -> None:
        """Counts what a connection has received. After a piece it waits for its turn."""
        connection.received_bytes += size
        if connection.received_bytes >= PIECE_BYTES:
            self.wait(connection)

    def wait(self, connection: "Connection") -> None:
        """Has the connection receive nothing until it is its turn."""
        connection.received_bytes = 0
        if connection.waits_for_turn:
            return
        connection.waits_for_turn = True
        if not connection.is_half_closed:
            connection.pause_reading(True)
        self._waiting.setdefault(connection.tenant, deque()).append(connection)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        if self._is_shared(next(iter(self._waiting))):
            loop.call_later(PAUSE_S, self._next)
        else:
            loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_scheduled = False
        while self._waiting:
            tenant, connections = next(iter(self._waiting.items()))
            connection = connections.popleft()
            if connections:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]
            if not connection.is_lost:
                connection.take_turn()
                break
        if self._waiting and not self._is_scheduled:
            self._schedule()
