"""Compares JSON texts by what they say: the order of fields, spaces and escapes do not matter, and 1 is 1.0."""

import msgspec

from codeq.domain.limits import COMPARE_BYTES_MAX


def same_value(one: bytes, other: bytes) -> bool:
    """Returns whether both texts are the same JSON value. Long texts, and what is not JSON, are compared as bytes."""
    if one == other:
        return True
    if max(len(one), len(other)) > COMPARE_BYTES_MAX:
        return False
    try:
        return _canonical(one) == _canonical(other)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError, OverflowError):
        return False


def _canonical(text: bytes) -> bytes:
    """Encoded again rather than compared as values of Python, where `True` equals 1."""
    return _encode(_decode(text))


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 1 << 63 else number


_decode = msgspec.json.Decoder(float_hook=_number).decode
_encode = msgspec.json.Encoder(order="deterministic").encode
