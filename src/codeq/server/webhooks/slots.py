"""How many deliveries may be under way: in all, of one tenant, and to one host of a tenant.

A tenant has at most a quarter of what the others leave it, and one at least, up to its own limit. So a few tenants
whose receivers are slow never have all slots: those who come later find some, fewer each, and what is sent to a dead
receiver ends by itself after the time-out.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from codeq.domain.limits import WEBHOOK_BYTES_MAX


class SlotLimits(Struct, frozen=True, kw_only=True):
    total: int = 128
    tenant: int = 16
    host: int = 8


class Slots:
    def __init__(self, limits: SlotLimits) -> None:
        self._limits = limits
        self._used: Counter[str] = Counter()
        self._free = limits.total
        self._bytes = 0

    @property
    def used(self) -> int:
        return self._limits.total - self._free

    @property
    def is_full(self) -> bool:
        return self._free <= 0 or self._bytes >= WEBHOOK_BYTES_MAX

    def reserve(self, tenant: str) -> int:
        """Takes slots for the tenant, and returns how many: none if it has as many as it may have."""
        used = self._used[tenant]
        share = max(1, (self._free + used) // 4)
        number = 0 if self.is_full else min(self._limits.tenant, share) - used
        if number > 0:
            self._used[tenant] += number
            self._free -= number
        return max(number, 0)

    def release(self, tenant: str, number: int = 1) -> None:
        self._free += number
        self._used[tenant] -= number
        if not self._used[tenant]:
            del self._used[tenant]

    def hold_bytes(self, number: int) -> None:
        """Counts bytes in memory; negative when they are released."""
        self._bytes += number


class HostSlots:
    """The slots of each host to which something is being sent. A delivery waits for one within its tenant's own."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._hosts: dict[tuple[str, str], tuple[asyncio.Semaphore, list[None]]] = {}

    @asynccontextmanager
    async def slot(self, tenant: str, host: str, *, wait_s: float) -> AsyncIterator[None]:
        """Raises TimeoutError if there is none in time."""
        semaphore, users = self._hosts.setdefault((tenant, host), (asyncio.Semaphore(self._limit), []))
        users.append(None)
        try:
            async with asyncio.timeout(wait_s):
                await semaphore.acquire()
            try:
                yield
            finally:
                semaphore.release()
        finally:
            users.pop()
            if not users:
                self._hosts.pop((tenant, host), None)
