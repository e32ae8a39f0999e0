"""Validates one fixed token, for development and for machines that support nothing better."""

from hmac import compare_digest
from typing import Any

from codeq.domain.errors import InvalidRequest
from codeq.server.auth.claims import Claims
from codeq.wire.errors import Unauthenticated


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


def make_static(config: dict[str, Any]) -> StaticValidator:
    token = config.get("token")
    if not isinstance(token, str) or not token:
        raise InvalidRequest("auth provider 'static' needs a `token`")
    raw = config.get("raw", {})
    claims = Claims(
        subject=str(config.get("subject", "static")),
        scopes=frozenset(config.get("scopes", ())),
        event_types=tuple(config.get("eventTypes", ())),
        raw=raw,
    )
    return StaticValidator(token, claims)
