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


class LookUpFailed(Exception):
    """The name has no address, or nobody said so in time."""


def system_resolve(host: str, port: int) -> Sequence[str]:
    """Asks the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class LookUps:
    """Each look-up runs in a thread of its own, which cannot be interrupted: it counts until it has returned, also when
    its caller has given up. The threads are daemons, so that none of them delays the end of the process."""

    def __init__(self, resolve: Resolve = system_resolve) -> None:
        self._resolve = resolve
        self._running: Counter[str] = Counter()

    async def look_up(self, host: str, port: int, tenant: str) -> Sequence[str]:
        """Returns the host's addresses. Raises LookUpFailed, at once if too many look-ups are running already."""
        if self._running[tenant] >= WEBHOOK_TENANT_LOOKUPS_MAX or self._running.total() >= WEBHOOK_LOOKUPS_MAX:
            raise LookUpFailed("too many host names are being looked up")
        self._running[tenant] += 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str] | OSError] = loop.create_future()

        def ended(found: Sequence[str] | OSError) -> None:
            self._running -= Counter({tenant: 1})  # leaves out tenants without any
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
