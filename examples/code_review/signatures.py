"""Checks that a webhook comes from somebody who has the secret. Nothing of a body is read before."""

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256

Headers = Mapping[bytes, bytes]


def is_genuine(provider: str, secret: str, headers: Headers, body: bytes) -> bool:
    """Returns whether the request was made with this secret. Takes the same time for every wrong signature."""
    expected, header = _EXPECTED[provider](secret.encode(), body)
    return bool(secret) and hmac.compare_digest(headers.get(header, b""), expected)


def _github(secret: bytes, body: bytes) -> tuple[bytes, bytes]:
    return b"sha256=" + _hex_hmac(secret, body), b"x-hub-signature-256"


def _gitea(secret: bytes, body: bytes) -> tuple[bytes, bytes]:
    return _hex_hmac(secret, body), b"x-gitea-signature"


def _gitlab(secret: bytes, _: bytes) -> tuple[bytes, bytes]:
    """GitLab sends the secret itself, so the body is only as safe as the connection: use HTTPS."""
    return secret, b"x-gitlab-token"


def _hex_hmac(secret: bytes, body: bytes) -> bytes:
    return hmac.new(secret, body, sha256).hexdigest().encode()


_EXPECTED: Mapping[str, Callable[[bytes, bytes], tuple[bytes, bytes]]] = {
    "github": _github,
    "gitea": _gitea,
    "gitlab": _gitlab,
}
PROVIDERS = tuple(_EXPECTED)
