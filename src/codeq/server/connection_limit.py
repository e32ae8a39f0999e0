"""How many connections are held at once: in total, below the limit on open files, and per address."""

import resource

from codeq.domain.limits import FILES_BESIDE_TABLES, OPEN_TABLES_MAX
from codeq.server.auth.callers import caller_address

FILES_LIMIT_MAX = 1 << 20
"""The limit on open files is not raised past this: what walks over all descriptors gets slow."""
FILES_OTHER = 128
"""Descriptors for everything but tables and connections: the log, the event loop, fetched keys, refused connections."""
PER_ADDRESS_LEAST = 64


class ConnectionLimit:
    """Counts connections by address; those of an IPv6 network of 64 bits, which one host may have, as one address."""

    def __init__(self, total_max: int, per_address_max: int = 0) -> None:
        """Without `per_address_max`, an address may hold a quarter of all connections, and 64 at least."""
        self.total_max = total_max
        self.per_address_max = per_address_max or max(PER_ADDRESS_LEAST, total_max // 4)
        self._total = 0
        self._by_address: dict[str, int] = {}

    def add(self, host: str) -> bool:
        """Counts a connection, also one too many. Returns whether it is within the limits."""
        address = caller_address(host, "", ())
        self._total += 1
        held = self._by_address[address] = self._by_address.get(address, 0) + 1
        return self._total <= self.total_max and held <= self.per_address_max

    def remove(self, host: str) -> None:
        address = caller_address(host, "", ())
        self._total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def raise_file_limit() -> int:
    """Raises the process's limit on open files as far as it may. Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_LIMIT_MAX)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return FILES_LIMIT_MAX if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def connections_that_fit(file_limit: int, shards: int) -> int:
    """Returns how many connections leave the store the descriptors that it may need; one at least."""
    store_files = min(file_limit // 2, shards * (OPEN_TABLES_MAX + FILES_BESIDE_TABLES))
    return max(1, file_limit - store_files - FILES_OTHER)
