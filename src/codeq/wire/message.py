"""What all messages have in common: camelCase names in JSON, and requests that refuse unknown fields."""

from typing import Annotated

from msgspec import Meta, Struct

from codeq.domain.limits import NAME_PATTERN

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=f"^{NAME_PATTERN}$")]
Seconds = Annotated[float, Meta(ge=0, le=31_622_400)]


class WireStruct(Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """The base of every message."""


class Request(
    WireStruct, rename="camel", forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True, gc=False
):
    """The base of every request: an unknown field is refused, because it is most likely a spelling mistake."""
