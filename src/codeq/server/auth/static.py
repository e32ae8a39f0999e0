"""Validates one fixed token, for development and for machines that support nothing better."""

from hmac import compare_digest
from typing import Annotated, Any

from msgspec import Meta, Struct

from codeq.domain.errors import InvalidRequest
from codeq.server.auth.claims import Claims, read_config
from codeq.wire.errors import Unauthenticated
from codeq.wire.local_server import DEV_TOKEN

TOKEN_CHARS_MIN = 16
"""Random letters and digits of this length are 95 bits, which nobody guesses over a network."""


class StaticValidator:
    is_ready = True
    revision = 0

    def __init__(self, token: str, claims: Claims) -> None:
        self._token = token.encode()
        self._claims = claims

    async def validate(self, token: str) -> Claims:
        if not compare_digest(token.encode(), self._token):
            raise Unauthenticated("the token is not accepted")
        return self._claims

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class StaticConfig(Struct, frozen=True, kw_only=True, rename="camel"):
    token: Annotated[str, Meta(min_length=1)]
    subject: str = "static"
    scopes: list[str] = []
    event_types: list[str] = []
    raw: dict[str, Any] = {}


def make_static(options: dict[str, Any]) -> StaticValidator:
    config = read_config("static", options, StaticConfig)
    claims = Claims(
        subject=config.subject, scopes=frozenset(config.scopes), event_types=tuple(config.event_types), raw=config.raw
    )
    return StaticValidator(config.token, claims)


def check_tokens(provider: str, options: dict[str, Any], *, is_local: bool) -> None:
    """Refuses fixed tokens that can be guessed: that of development servers, and short ones for other machines."""
    if provider == "multi":
        for child in options["providers"]:
            check_tokens(child.get("type", ""), child.get("config", {}), is_local=is_local)
    elif provider == "static":
        token = options["token"]
        if token == DEV_TOKEN:
            raise InvalidRequest(f"everybody knows the token {DEV_TOKEN!r}: it is for `codeq serve --dev`")
        if len(token) < TOKEN_CHARS_MIN and not is_local:
            raise InvalidRequest(
                f"a static token has at least {TOKEN_CHARS_MIN} characters, unless http.host is a loopback address"
            )
