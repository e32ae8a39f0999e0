"""Validates signed tokens (JWT) with the public keys of their issuer (JWKS)."""

from pathlib import Path
from typing import Any

import jwt
import msgspec

from codeq.domain.errors import InvalidRequest
from codeq.server.auth.claims import Claims
from codeq.server.auth.keyset import Fetch, KeySet, fetch_from
from codeq.wire.errors import Unauthenticated

TOKEN_CHARS_MAX = 8192
LIFETIME_S_MAX = 31 * 86_400
"""A token that is valid for longer than a month is a password."""

_REFUSED = "the token is not accepted"


class JwksValidator:
    def __init__(self, keys: KeySet, *, issuer: str, audience: str, skew_s: int) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._skew_s = skew_s

    async def start(self) -> None:
        await self._keys.start()

    async def close(self) -> None:
        await self._keys.close()

    @property
    def is_ready(self) -> bool:
        return self._keys.is_ready

    @property
    def revision(self) -> int:
        return self._keys.revision

    async def validate(self, token: str) -> Claims:
        if len(token) > TOKEN_CHARS_MAX or token.count(".") != 2:
            raise Unauthenticated(_REFUSED)
        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except jwt.PyJWTError:
            raise Unauthenticated(_REFUSED) from None
        key = await self._keys.find(kid) if isinstance(kid, str) and len(kid) <= 256 else None
        if key is None:
            raise Unauthenticated(_REFUSED)
        try:
            raw = jwt.decode(
                token,
                key.material,
                algorithms=list(key.algorithms),
                issuer=self._issuer,
                audience=self._audience,
                leeway=self._skew_s,
                options={"require": ["exp", "iat", "sub", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            raise Unauthenticated(_REFUSED) from None
        return self._claims(raw)

    def _claims(self, raw: dict[str, Any]) -> Claims:
        expires, issued, subject = raw["exp"], raw["iat"], raw["sub"]
        whole = all(isinstance(moment, int) and not isinstance(moment, bool) for moment in (expires, issued))
        if not whole or expires - issued > LIFETIME_S_MAX or not isinstance(subject, str) or not subject:
            raise Unauthenticated(_REFUSED)
        events = raw.get("eventTypes", [])
        if not isinstance(events, list) or not all(isinstance(event, str) for event in events):
            raise Unauthenticated(_REFUSED)
        scope = raw.get("scope", "")
        return Claims(
            subject=subject,
            scopes=frozenset(scope.split()) if isinstance(scope, str) else frozenset(),
            event_types=tuple(events),
            expires_s=expires + self._skew_s,
            raw=raw,
        )


def make_jwks(config: dict[str, Any]) -> JwksValidator:
    """Requires `jwksUrl` or `jwksFile`, `issuer` and `audience`; `clockSkewSeconds` is 60 at most."""
    missing = [name for name in ("issuer", "audience") if not config.get(name)]
    if missing or not (config.get("jwksUrl") or config.get("jwksFile")):
        raise InvalidRequest(
            f"auth provider 'jwks' needs jwksUrl (or jwksFile), issuer and audience; missing: {missing}"
        )
    skew_s = int(config.get("clockSkewSeconds", 60))
    if not 0 <= skew_s <= 60:
        raise InvalidRequest(f"clockSkewSeconds must be 0 to 60, not {skew_s}")
    fetch = _read(Path(config["jwksFile"])) if config.get("jwksFile") else fetch_from(str(config["jwksUrl"]))
    return JwksValidator(KeySet(fetch), issuer=config["issuer"], audience=config["audience"], skew_s=skew_s)


def _read(path: Path) -> Fetch:
    async def fetch() -> Any:
        return msgspec.json.decode(path.read_bytes())

    return fetch
