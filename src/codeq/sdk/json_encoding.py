"""Values as JSON text and back: what msgspec knows, and pydantic models besides."""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, cast, get_args

import msgspec

from codeq.domain.errors import InvalidRequest


def encode_json(value: Any) -> bytes:
    """Returns the value as JSON. Raises InvalidRequest for what JSON cannot hold, NaN and infinity among it."""
    if value is None:
        return b"null"
    try:
        text = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = _encode_models(value)
    # The encoder writes NaN as null, and a reader could not tell. Texts without a null need no second look.
    if text.partition(_NULL)[1] and _has_nan(value):  # the quickest way to search a short text
        raise InvalidRequest("cannot be written as JSON: NaN and infinity have no JSON form; send null or text")
    return text


def _encode_models(value: Any) -> bytes:
    """As the encoder, and pydantic models besides, which are asked for one by one."""
    try:
        return _encode(value, enc_hook=_encode_custom)
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise InvalidRequest(f"cannot be written as JSON: {fault}") from fault


def make_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Returns a function that decodes JSON text as this type. Raises TypeError if there can be none."""
    return msgspec.json.Decoder(kind, dec_hook=_decode_custom).decode


def _encode_custom(value: Any) -> Any:
    # Recognized by its methods: the SDK does not depend on pydantic.
    dump, kind = getattr(value, "model_dump", None), cast("Any", type(value))
    if callable(dump):
        return dump(mode="json", by_alias=_reads_its_aliases(kind))
    raise TypeError(f"{kind.__name__} is not a JSON value, dataclass, msgspec.Struct or pydantic model")


@lru_cache(maxsize=1024)
def _reads_its_aliases(model: Any) -> bool:
    """Returns whether a pydantic model, and those in it, read what they write under aliases: a `serialization_alias` is
    for writing alone."""
    models = [model]
    for each in models:  # which grows meanwhile
        for field in getattr(each, "model_fields", {}).values():
            read_as = getattr(field.validation_alias, "choices", (field.validation_alias,))
            if field.serialization_alias is not None and field.serialization_alias not in read_as:
                return False
            models += [part for part in _parts(field.annotation) if part not in models]
    return True


def _parts(kind: Any) -> Iterator[Any]:
    """Yields the models in a type such as `list[Line] | None`."""
    if hasattr(kind, "model_fields"):
        yield kind
    for argument in get_args(kind):
        yield from _parts(argument)


def _decode_custom(kind: Any, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    if kind is object:
        return value
    raise NotImplementedError(f"{kind!r} is not a JSON type, dataclass, TypedDict, msgspec.Struct or pydantic model")


def _has_nan(value: Any) -> bool:
    found = [msgspec.to_builtins(value, enc_hook=_encode_custom)]
    while found:
        each = found.pop()
        if isinstance(each, float) and not math.isfinite(each):
            return True
        if isinstance(each, dict):
            found.extend(each.values())
        elif isinstance(each, (list, tuple)):
            found.extend(each)
    return False


_encode = msgspec.json.encode
_NULL = b"null"
