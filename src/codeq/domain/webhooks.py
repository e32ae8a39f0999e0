"""Which URLs a webhook may have, and which addresses the server may connect to for one.

A tenant chooses the URL and the server connects to it, from inside its own network: without these rules a webhook would
reach what only the server can reach (server-side request forgery). There are two checks. `WebhookRules.check` needs no
look-up: it is made when a task is enqueued, and again before each delivery. `WebhookRules.check_address` is made for
every address that a name resolves to, right before the connection to that very address.
"""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from msgspec import Struct

from codeq.domain.errors import InvalidRequest, WebhookRefused
from codeq.domain.limits import WEBHOOK_CHARS_MAX

Address = IPv4Address | IPv6Address

_URL = re.compile(r"(https?)://([^/?#]*)([^#]*)(?:#.*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
_CHARACTERS = re.compile(r"[!-\[\]-~]+")
"""Printable ASCII without spaces and backslashes, which parsers disagree about."""
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_LOCAL_NAMES = ("localhost", "local", "internal", "home.arpa")
"""Names that, with all names below them, no public server has (RFC 6761, 6762, 8375; ICANN for `internal`)."""

_NOT_PUBLIC_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier-grade NAT; Alibaba's metadata at 100.100.100.200
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # Azure's own services, which answer inside its networks only
            "169.254.0.0/16",  # link-local; most clouds' metadata at 169.254.169.254
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments; Oracle's metadata at 192.0.0.192
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_PUBLIC_V6 = IPv6Network("2000::/3")
"""All that is assigned for unicast on the internet. Outside of it are loopback, IPv4-mapped and -compatible addresses,
NAT64 (64:ff9b::), unique local (fc00::/7), link-local (fe80::/10), site-local (fec0::/10), multicast and more."""
_NOT_PUBLIC_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, and Teredo, which has an IPv4 address inside
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which has an IPv4 address inside
            "3fff::/20",  # documentation
        ),
    )
)
# `ipaddress.is_global` is no substitute: it is true for 224.0.0.1, 192.0.0.192, 64:ff9b::a00:1, 2002:7f00:1:: and more.


def is_public(address: Address) -> bool:
    """Returns whether the address is one of a host on the internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return (
        address in _PUBLIC_V6 and address.scope_id is None and not any(address in network for network in _NOT_PUBLIC_V6)
    )


class WebhookUrl(Struct, frozen=True, gc=False):
    """A URL taken apart once: what was checked is what is connected to and sent."""

    scheme: str
    host: str
    """In lower case and without a final dot: a name, or an address without brackets."""
    port: int
    target: str
    """Path and query."""
    address: str | None
    """Set if the host is an address."""

    @property
    def is_default_port(self) -> bool:
        return self.port == _DEFAULT_PORT[self.scheme]

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.is_default_port else f":{self.port}")


_DEFAULT_PORT = {"http": 80, "https": 443}


def parse_url(value: str, what: str = "webhook") -> WebhookUrl:
    """Raises InvalidRequest for anything but an http or https URL that every parser understands in the same way."""
    if not isinstance(value, str) or len(value) > WEBHOOK_CHARS_MAX:
        raise InvalidRequest(f"{what} must be an http or https URL of at most {WEBHOOK_CHARS_MAX} characters")
    if not _CHARACTERS.fullmatch(value):
        raise InvalidRequest(
            f"{what} must be a URL in ASCII without spaces, control characters and backslashes; "
            "percent-encode the others, and write international names as xn--..."
        )
    parts = _URL.fullmatch(value)
    if parts is None:
        raise InvalidRequest(f"{what} must be an http or https address with a host")
    scheme, authority, target = parts[1].lower(), parts[2], parts[3]
    if "@" in authority:
        raise InvalidRequest(f"{what} must not contain a user name or password")
    named = _AUTHORITY.fullmatch(authority)
    if named is None:
        raise InvalidRequest(f"{what} must be an http or https address with a host")
    port = int(named[3]) if named[3] else _DEFAULT_PORT[scheme]
    if not 1 <= port <= 65_535:
        raise InvalidRequest(f"{what} has a port that does not exist")
    host, address = _host(named[1], named[2], what)
    return WebhookUrl(scheme, host, port, target if target.startswith("/") else f"/{target}", address)


def _host(bracketed: str | None, plain: str | None, what: str) -> tuple[str, str | None]:
    """Returns the host, and the same if it is an address. Of an IPv4 address only the usual form is accepted: `127.1`,
    `0x7f000001` and `0177.0.0.1` are also 127.0.0.1 to some, names to others."""
    try:
        if bracketed is not None:
            address = str(IPv6Address(bracketed))
            return address, address
        name = (plain or "").lower().removesuffix(".")
        if _NUMBER.fullmatch(name.rpartition(".")[2]):
            address = str(IPv4Address(name))
            return address, address
    except ValueError:
        raise WebhookRefused(f"{what} has a host that is no usual form of an address, such as 192.0.2.1") from None
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{what} has a host that is not a name")
    return name, None


class AllowList(Struct, frozen=True):
    """Hosts that are not public and to which webhooks may go nevertheless."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    names: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    """Each with a dot in front: all names below it."""

    def has_name(self, name: str) -> bool:
        return name in self.names or (bool(self.suffixes) and name.endswith(self.suffixes))

    def has_address(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def read_allow_list(text: str) -> AllowList:
    """Reads addresses, networks, host names and `*.domain`, separated by commas. Raises ValueError."""
    networks, names, suffixes = [], set(), []
    for part in filter(None, (part.strip().lower() for part in text.split(","))):
        name = part.removesuffix(".")
        if ":" in part or "/" in part or _NUMBER.fullmatch(name.rpartition(".")[2]):
            networks.append(ip_network(part))
        elif _NAME.fullmatch(name.removeprefix("*.")):
            suffixes += [name[1:]] if name.startswith("*.") else []
            names |= set() if name.startswith("*.") else {name}
        else:
            raise ValueError(f"{part!r} is no address, network, host name or *.domain")
    return AllowList(tuple(networks), frozenset(names), tuple(suffixes))


class WebhookRules(Struct, frozen=True):
    """Where webhooks may go. As built by default: to public hosts only."""

    allow: AllowList = AllowList()
    https_only: bool = False

    def check(self, value: str, what: str = "webhook") -> WebhookUrl:
        """Returns the URL, taken apart. Raises WebhookRefused if it is known without a look-up that it leads to a host
        that is not public, and InvalidRequest if it is no usable URL."""
        url = parse_url(value, what)
        if self.https_only and url.scheme != "https":
            raise WebhookRefused(f"{what} must be an https URL: this server sends to no others")
        if url.address is not None:
            self.check_address(url, url.address, what)
        elif self._is_local(url.host) and not self.allow.has_name(url.host):
            raise WebhookRefused(f"{what} must lead to a public host; {url.host!r} is a name of private networks")
        return url

    def check_address(self, url: WebhookUrl, found: str, what: str = "webhook") -> None:
        """Raises WebhookRefused unless the address that the URL's host resolved to may be connected to.

        The message does not have it: what names mean inside the server's network is not for tenants to know.
        """
        try:
            address = ip_address(found)
        except ValueError:
            raise WebhookRefused(f"{what} leads to a host with an unusable address") from None
        if is_public(address) or self.allow.has_name(url.host) or self.allow.has_address(address):
            return
        raise WebhookRefused(
            f"{what} must lead to a public host; the address of {url.host!r} is private, reserved or local "
            "(operators: see webhooks.allow)"
        )

    @staticmethod
    def _is_local(name: str) -> bool:
        return any(name == local or name.endswith(f".{local}") for local in _LOCAL_NAMES)
