"""How many pages of tasks are read and encoded at once: each may take 8 MB twice, and calls of many may take turns."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TENANT_PAGES_MAX = 4
PAGES_MAX = 16


class PageReads:
    def __init__(self) -> None:
        self._all = asyncio.Semaphore(PAGES_MAX)
        self._tenants: dict[str, asyncio.Semaphore] = {}
        self._calls: Counter[str] = Counter()

    @asynccontextmanager
    async def held(self, tenant: str) -> AsyncIterator[None]:
        """Waits until the tenant has few enough of these calls, first come, first served."""
        pages = self._tenants.setdefault(tenant, asyncio.Semaphore(TENANT_PAGES_MAX))
        self._calls[tenant] += 1
        try:
            async with pages, self._all:
                yield
        finally:
            self._calls[tenant] -= 1
            if not self._calls[tenant]:
                del self._calls[tenant], self._tenants[tenant]
