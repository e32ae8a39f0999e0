"""Several validators as one: a token's claims are those of the first validator that accepts it."""

from typing import Any

from codeq.domain.errors import InvalidRequest
from codeq.server.auth.claims import Claims, Validator, make_validator
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
        return sum([validator.revision for validator in self._validators])


def make_multi(config: dict[str, Any]) -> MultiValidator:
    providers = config.get("providers")
    if not isinstance(providers, list) or not 2 <= len(providers) <= 4:
        raise InvalidRequest("auth provider 'multi' needs 2 to 4 `providers`")
    if any(child.get("type") == "multi" for child in providers):
        raise InvalidRequest("auth provider 'multi' cannot hold another 'multi'")
    return MultiValidator([make_validator(child["type"], child.get("config", {})) for child in providers])
