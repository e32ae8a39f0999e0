"""What a token contains, and the protocol by which plugins read tokens.

A plugin is a factory `(config: dict) -> Validator`, registered under the entry point group `codeq.auth`.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from codeq.domain.errors import InvalidRequest


class Claims(Struct, frozen=True, kw_only=True):
    subject: str
    scopes: frozenset[str] = frozenset()
    event_types: tuple[str, ...] = ()
    expires_s: float | None = None
    """Unix seconds; None for tokens that do not expire."""
    raw: Mapping[str, Any] = {}


class Validator(Protocol):
    async def validate(self, token: str) -> Claims:
        """Returns the token's claims. Raises Unauthenticated for a bad token, Unavailable if it cannot be checked."""

    async def start(self) -> None:
        """Fetches what is needed beforehand. Must not fail because an issuer is down."""

    async def close(self) -> None: ...

    @property
    def is_ready(self) -> bool:
        """Whether tokens can be checked now."""

    @property
    def revision(self) -> int:
        """Changes whenever an earlier result may no longer hold."""


Factory = Callable[[dict[str, Any]], Validator]
Config = TypeVar("Config", bound=Struct)


def provider_name(provider: str, config: Mapping[str, Any]) -> str:
    """Returns the provider: the one that is named, or `jwks` where a key set is configured."""
    return provider or ("jwks" if "jwksUrl" in config or "jwksFile" in config else "")


def make_validator(provider: str, config: dict[str, Any]) -> Validator:
    name = provider_name(provider, config)
    found = [point for point in entry_points(group="codeq.auth") if point.name == name]
    if not found:
        known = sorted({point.name for point in entry_points(group="codeq.auth")})
        raise InvalidRequest(f"there is no auth provider {name!r}; installed are {', '.join(known)}")
    factory: Factory = found[0].load()
    return factory(config)


def read_config(provider: str, config: Any, kind: type[Config]) -> Config:
    """Reads the options of a provider. Raises InvalidRequest for those that are missing, wrong or unknown."""
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    unknown = [str(name) for name in config if name not in known] if isinstance(config, dict) else []
    if unknown:
        raise InvalidRequest(f"auth provider {provider!r} has no option {unknown[0]!r}; known: {', '.join(known)}")
    try:
        return msgspec.convert(config, kind)
    except msgspec.ValidationError as fault:
        raise InvalidRequest(f"auth provider {provider!r}: {fault}") from None
