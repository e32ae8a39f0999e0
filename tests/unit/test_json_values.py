"""JSON texts that say the same are the same, whatever their bytes."""

import pytest

from codeq.domain.json_values import same_value
from codeq.domain.limits import COMPARE_BYTES_MAX

SAME = [
    (b"1", b"1.0"),
    (b"100", b"1e2"),
    (b"0", b"-0.0"),
    (b'"\\u00e9"', '"é"'.encode()),
    (b'{"a":1,"b":{"c":2,"d":3}}', b'{ "b": {"d": 3, "c": 2}, "a": 1 }'),
    (b"[]", b" [ ] "),
]
DIFFERENT = [
    (b"1", b"true"),
    (b"0", b"false"),
    (b"1", b'"1"'),
    (b"[1,2]", b"[2,1]"),
    (b"{}", b"[]"),
    (b"null", b'{"a":null}'),
    (b"9007199254740993", b"9007199254740992.0"),
    (b"not JSON", b"not  JSON"),
    (b"[" * 50_000, b"[" * 50_001),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_value_in_other_bytes(one: bytes, other: bytes) -> None:
    """(13.24)"""
    assert same_value(one, other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_values(one: bytes, other: bytes) -> None:
    """(13.24)"""
    assert not same_value(one, other)


def test_long_texts_are_compared_as_bytes() -> None:
    """(13.24)"""
    text = b'"' + b"x" * COMPARE_BYTES_MAX + b'"'
    assert same_value(text, bytes(text))
    assert not same_value(text, text + b" ")
