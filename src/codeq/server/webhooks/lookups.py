"""Looks up host names without holding the event loop.

Bounded: names of one tenant that nobody answers for must not take the threads that other tenants' look-ups need.
"""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from codeq.domain.limits import WEBHOOK_LOOKUPS_MAX, WEBHOOK_TENANT_LOOKUPS_MAX

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host, the best first. Blocks. Raises OSError."""
LookUp = Callable[[str, int, str], Awaitable[Sequence[str]]]


WAIT_S = 5.0
"""How long a look-up waits until there is room for it."""


class LookUpFailed(Exception):
    """The name has no address, or nobody said so in time."""


class LookUpsBusy(LookUpFailed):
    """The name was not looked up, because others still are. Nothing is known of the receiver."""


def system_resolve(host: str, port: int) -> Sequence[str]:
    """Asks the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class LookUps:
    """Each look-up runs in a thread of its own, which cannot be interrupted: it counts until it has returned, also when
    its caller has given up. The threads are daemons, so that none of them delays the end of the process."""

    def __init__(self, resolve: Resolve = system_resolve, *, wait_s: float = WAIT_S) -> None:
        self._resolve = resolve
        self._wait_s = wait_s
        self._running: Counter[str] = Counter()
        self._total = 0
        self._ended = asyncio.Event()

    async def look_up(self, host: str, port: int, tenant: str) -> Sequence[str]:
        """Returns the host's addresses. Raises LookUpFailed; LookUpsBusy if too many look-ups run for a while."""
        if not self._has_room(tenant):
            await self._wait_for_room(tenant)
        self._running[tenant] += 1
        self._total += 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str] | OSError] = loop.create_future()

        def ended(found: Sequence[str] | OSError) -> None:
            self._running -= Counter({tenant: 1})  # leaves out tenants without any
            self._total -= 1
            self._ended.set()  # all who wait look whether there is room for them
            self._ended = asyncio.Event()
            if not answer.done():
                answer.set_result(found)

        def run() -> None:
            found: Sequence[str] | OSError
            try:
                found = self._resolve(host, port)
            except (OSError, UnicodeError) as fault:
                found = OSError(str(fault))
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(ended, found)

        try:
            threading.Thread(target=run, name="codeq-lookup", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            ended(OSError())
        found = await answer
        if isinstance(found, OSError) or not found:
            raise LookUpFailed("the host name has no address")
        return found

    def _has_room(self, tenant: str) -> bool:
        return self._running[tenant] < WEBHOOK_TENANT_LOOKUPS_MAX and self._total < WEBHOOK_LOOKUPS_MAX

    async def _wait_for_room(self, tenant: str) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._has_room(tenant):
                    await self._ended.wait()
        except TimeoutError:
            raise LookUpsBusy("too many host names are being looked up") from None
