"""The server on this machine: its default address, the token of a development server, and what counts as local."""

import ipaddress

DEFAULT_URL = "http://127.0.0.1:8080"
DEV_TOKEN = "dev-token"  # noqa: S105 - accepted on loopback only, by a server started with --dev


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
