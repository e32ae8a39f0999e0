"""How many uploads or downloads run at once: in total, because each takes memory, and per tenant.

A tenant beside others has at most a quarter of what they leave it, and one at least. So a few tenants whose clients are
slow never have all places.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from codeq.server.tenant_slots import TenantSlots
from codeq.wire.errors import Unavailable


class Transfers:
    def __init__(self, total_max: int, tenant_max: int, *, what: str) -> None:
        """`what` is `uploads` or `downloads`."""
        self._total_max = total_max
        self._what = what
        self._tenants = TenantSlots(tenant_max, limit=what, what=what)
        self.running = 0

    @contextmanager
    def held(self, tenant: str) -> Iterator[None]:
        mine = self._tenants.taken[tenant]
        others = self.running - mine
        with self._tenants.held(tenant):
            share = max(1, (self._total_max - others) // 4) if others else self._total_max
            if mine >= share or self.running >= self._total_max:
                raise Unavailable(f"there are {self.running} {self._what} at once; try again in a moment")
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1
