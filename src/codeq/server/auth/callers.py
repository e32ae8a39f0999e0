"""Who a caller is before its token is known: the address it calls from, and how often it failed to authenticate."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from time import monotonic

from codeq.wire.errors import RateLimited

CALLER: ContextVar[str] = ContextVar("caller", default="")
"""The address from which the token of this call came, for validators that limit what one caller may cost."""

CALLERS_MAX = 10_000
"""Callers whose failures are counted at once; the least recent ones are dropped first."""
WINDOW_S = 60.0

Networks = Sequence[IPv4Network | IPv6Network]


def read_networks(text: str) -> Networks:
    """Returns the networks of a comma-separated list. Raises ValueError if one of them is none."""
    return [ip_network(part.strip()) for part in text.split(",") if part.strip()]


def caller_address(peer: str, forwarded: str, proxies: Networks) -> str:
    """Returns the address that calls: the peer of the connection, or the one that trusted proxies name as theirs.

    An IPv6 address stands for its /64, which is what one customer has.
    """
    address = _address(peer)
    hops = forwarded.split(",")
    while address is not None and hops and any(address in network for network in proxies):
        hop = _address(hops.pop().strip())
        if hop is None:
            break
        address = hop
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return str(address) if address is not None else peer


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


class FailureLimit:
    """Limits the failed authentications of each caller per minute. Past that, its unknown tokens are not checked."""

    def __init__(
        self,
        per_minute: int = 0,
        *,
        on_hit: Callable[[str, str], None] = lambda *_: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._per_minute = per_minute
        self._on_hit = on_hit
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """By caller: the number of failures, and when its minute began."""

    def check(self, caller: str) -> None:
        """Raises RateLimited if the caller has used up its failures of this minute."""
        number, since_s = self._failures.get(caller, (0, 0.0))
        left_s = since_s + WINDOW_S - self._clock()
        if number and number >= self._per_minute and left_s > 0:
            self._on_hit("authentication", "authenticate")
            raise RateLimited(
                "too many tokens from this address were not accepted",
                scope="authentication",
                operation="authenticate",
                retry_after_s=max(1, math.ceil(left_s)),
            )

    def add(self, caller: str) -> None:
        if not self._per_minute:
            return
        now_s = self._clock()
        number, since_s = self._failures.get(caller, (0, now_s))
        if now_s - since_s >= WINDOW_S:
            number, since_s = 0, now_s
        self._failures[caller] = (number + 1, since_s)
        self._failures.move_to_end(caller)
        if len(self._failures) > CALLERS_MAX:
            self._failures.popitem(last=False)
