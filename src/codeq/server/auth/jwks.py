"""Validates signed tokens (JWT) with the public keys of their issuer (JWKS)."""

import json
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import jwt
import msgspec
from jwt.utils import base64url_decode
from msgspec import Meta, Struct

from codeq.domain.errors import InvalidRequest
from codeq.server.auth.claims import Claims, read_config
from codeq.server.auth.keyset import Fetch, Key, KeySet, fetch_from
from codeq.wire.errors import Unauthenticated

TOKEN_CHARS_MAX = 8192
KID_CHARS_MAX = 256
LIFETIME_S_MAX = 31 * 86_400
"""A token that is valid for longer than a month is a password."""

FORGED_MAX = 10_000
"""Tokens with a wrong signature that are remembered, by their hash: checking a signature costs half a millisecond."""

_FAR_S = 1 << 53
_REFUSED = "the token is not accepted"


class JwksValidator:
    def __init__(self, keys: KeySet, *, issuer: str, audience: str, skew_s: int) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._skew_s = skew_s
        self._forged: OrderedDict[bytes, Key] = OrderedDict()
        """By hash of the token: the key that did not sign it. A key that is fetched again is another one."""

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
        header, payload, _ = token.split(".")
        named = _strict_object(header)
        kid = named.get("kid")
        if "crit" in named or not isinstance(kid, str) or len(kid) > KID_CHARS_MAX:
            raise Unauthenticated(_REFUSED)  # extensions in `crit` must be understood (RFC 7515), and we know none
        key = await self._keys.find(kid)
        if key is None:
            raise Unauthenticated(_REFUSED)
        raw = self._verified(token, key)
        _strict_object(payload)
        return self._claims(raw)

    def _verified(self, token: str, key: Key) -> dict[str, Any]:
        digest = sha256(token.encode()).digest()
        if self._forged.get(digest) is key:
            raise Unauthenticated(_REFUSED)
        try:
            return jwt.decode(
                token,
                key.material,
                algorithms=list(key.algorithms),
                issuer=self._issuer,
                audience=self._audience,
                leeway=self._skew_s,
                options={"require": ["exp", "iat", "sub", "iss", "aud"]},
            )
        except jwt.InvalidSignatureError:
            self._forged[digest] = key
            if len(self._forged) > FORGED_MAX:
                self._forged.popitem(last=False)
            raise Unauthenticated(_REFUSED) from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise Unauthenticated(_REFUSED) from None

    def _claims(self, raw: dict[str, Any]) -> Claims:
        expires, issued, subject = raw["exp"], raw["iat"], raw["sub"]
        if (
            not _is_time(expires)
            or not _is_time(issued)
            or expires - issued > LIFETIME_S_MAX
            or not isinstance(subject, str)
            or not subject
        ):
            raise Unauthenticated(_REFUSED)
        events = raw.get("eventTypes", [])
        if not isinstance(events, list) or not all(isinstance(event, str) for event in events):
            raise Unauthenticated(_REFUSED)
        scope = raw.get("scope", "")
        scopes = scope.split() if isinstance(scope, str) else scope
        if not isinstance(scopes, list) or not all(isinstance(one, str) for one in scopes):
            raise Unauthenticated(_REFUSED)
        return Claims(
            subject=subject,
            scopes=frozenset(scopes),
            event_types=tuple(events),
            expires_s=expires + self._skew_s,
            raw=raw,
        )


def _is_time(value: object) -> bool:
    """Whether this is a NumericDate of RFC 7519: seconds, whole or not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_FAR_S < value < _FAR_S


def _strict_object(part: str) -> dict[str, Any]:
    """Returns the JSON object of a part of a token. Refuses names that occur twice: readers differ on them."""
    try:
        value = json.loads(base64url_decode(part), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unauthenticated(_REFUSED)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name occurs twice")
    return value


class JwksConfig(Struct, frozen=True, kw_only=True, rename="camel"):
    jwks_url: str = ""
    jwks_file: str = ""
    issuer: Annotated[str, Meta(min_length=1)]
    audience: Annotated[str, Meta(min_length=1)]
    clock_skew_seconds: Annotated[int, Meta(ge=0, le=60)] = 60


def make_jwks(options: dict[str, Any]) -> JwksValidator:
    config = read_config("jwks", options, JwksConfig)
    if bool(config.jwks_url) == bool(config.jwks_file):
        raise InvalidRequest("auth provider 'jwks' needs either jwksUrl or jwksFile")
    fetch = _read(Path(config.jwks_file)) if config.jwks_file else fetch_from(config.jwks_url)
    return JwksValidator(
        KeySet(fetch), issuer=config.issuer, audience=config.audience, skew_s=config.clock_skew_seconds
    )


def _read(path: Path) -> Fetch:
    async def fetch() -> Any:
        return msgspec.json.decode(path.read_bytes())

    return fetch
