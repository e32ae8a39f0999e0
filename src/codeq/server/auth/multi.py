"""Several validators as one: a token's claims are those of the first validator that accepts it."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from codeq.domain.errors import InvalidRequest
from codeq.server.auth.claims import Claims, Validator, make_validator, read_config
from codeq.wire.errors import EdgeError, Unauthenticated, Unavailable


class MultiValidator:
    def __init__(self, validators: list[Validator]) -> None:
        self._validators = validators

    async def validate(self, token: str) -> Claims:
        refusal: EdgeError = Unauthenticated("the token is not accepted")
        for validator in self._validators:
            try:
                return await validator.validate(token)
            except Unavailable as fault:
                refusal = fault  # this validator might have accepted it
            except Unauthenticated:
                continue
        raise refusal

    async def start(self) -> None:
        for validator in self._validators:
            await validator.start()

    async def close(self) -> None:
        for validator in self._validators:
            await validator.close()

    @property
    def is_ready(self) -> bool:
        return all(validator.is_ready for validator in self._validators)

    @property
    def revision(self) -> int:
        revision = 0
        for validator in self._validators:  # asked for at every request: a comprehension would cost twice as much
            revision += validator.revision
        return revision


class ChildConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str = ""
    config: dict[str, Any] = {}


class MultiConfig(Struct, frozen=True, kw_only=True):
    providers: Annotated[list[ChildConfig], Meta(min_length=2, max_length=4)]


def make_multi(options: dict[str, Any]) -> MultiValidator:
    children = read_config("multi", options, MultiConfig).providers
    if any(child.type == "multi" for child in children):
        raise InvalidRequest("auth provider 'multi' cannot hold another 'multi'")
    return MultiValidator([make_validator(child.type, child.config) for child in children])
