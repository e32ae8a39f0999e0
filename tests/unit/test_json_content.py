"""The checks of JSON from outside agree with the decoder's own, whatever the size of the value."""

import asyncio
import random
from typing import Any

import msgspec
import pytest

from codeq.domain import validation
from codeq.domain.errors import InvalidRequest
from codeq.server import json_content
from codeq.server.json_content import DEPTH_MAX, PIECEWISE_BYTES, Content
from codeq.server.json_items import split_items

PAYLOAD = Content("payload", lambda message: message, validation.payload)
PADDING = b'"' + b"x" * PIECEWISE_BYTES + b'"'
"""Makes a value large enough to be checked in pieces."""


def accepts(raw: bytes) -> bool:
    try:
        PAYLOAD.check(raw)
    except InvalidRequest:
        return False
    return True


def decodes(raw: bytes) -> bool:
    try:
        msgspec.json.encode(msgspec.json.decode(raw))
    except (msgspec.DecodeError, UnicodeError, ValueError):
        return False
    return True


SAMPLES = [
    b"1", b"-0.5e3", b"1e999", b"01", b"tru", b"true", b'"a"', b'"\\x"', b'"\\u12"', b'"\\ud800"', b'"\\udc00"',
    b'"\\"[[["',    b'"\\ud83d\\ude00"', b'"\xff"', b'"\xed\xa0\x80"', b'"a\nb"',
    b'"\\\\"', b'"\\\\\\""', b"{}",
    b'{"a":[1,2,{"b":null}]}', b"[1 2]", b"[1,]", b"{1:2}", b"[}", b'{"a" 1}', b"[[],[]]", b'{"a":"[[[[","b":"\\\\"}',
    b"123456789012345678901234567890", b"-", b"1.",
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_value_is_accepted_exactly_if_the_decoder_accepts_it(sample: bytes) -> None:
    """In one go if it is small, and in pieces if it is large. (13.16)"""
    assert accepts(sample) == decodes(sample)
    large = b"[" + PADDING + b"," + sample + b"]"
    assert accepts(large) == decodes(large)


@pytest.mark.parametrize("piece", range(2, 30))
def test_it_does_not_matter_where_a_large_value_is_cut(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """(13.16)"""
    monkeypatch.setattr(json_content, "_PIECE", piece)
    for sample in SAMPLES:
        large = b'{"\\\\k\\"ey" : [true, -1.25e-7 ,' + PADDING + b',"\\\\",' + sample + b',null,"a\\"b",1]}'
        assert accepts(large) == decodes(large), sample


@pytest.mark.parametrize("before", [b"1", PADDING], ids=["small", "large"])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"[":', b"1}")], ids=["arrays", "objects"])
def test_a_value_is_refused_from_the_same_depth_on(before: bytes, brackets: tuple[bytes, bytes]) -> None:
    """A payload is one level inside the body, and here one more inside an array. (13.16)"""
    opening, closing = brackets
    levels = DEPTH_MAX - 2
    inner = opening * levels + (b"1" if opening != b"[" else b"") + closing.replace(b"1", b"") * levels
    assert accepts(b"[%b,%b]" % (before, inner))
    deeper = opening * (levels + 1) + (b"1" if opening != b"[" else b"") + closing.replace(b"1", b"") * (levels + 1)
    assert not accepts(b"[%b,%b]" % (before, deeper))


def test_brackets_inside_strings_are_not_levels() -> None:
    """(13.16)"""
    quoted = msgspec.json.encode('[[["\\' * 20)
    assert accepts(b"[" + b",".join([quoted] * 2000) + b"]")


def random_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(7 if depth < 5 else 5)
    if kind < 5:
        texts = ["", '"', "\\", '\\"', "[{", "}],", "a" * chance.randrange(40), "é", "\n"]
        return [None, chance.random() < 0.5, chance.randrange(10**6), chance.random(), chance.choice(texts)][kind]
    inner = [random_value(chance, depth + 1) for _ in range(chance.randrange(6))]
    return inner if kind == 5 else {f"{i}\\": value for i, value in enumerate(inner)}


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_is_split_as_the_decoder_splits_it(seed: int) -> None:
    """Wherever an item, a string or an escape crosses from one piece into the next. (13.16)"""
    chance = random.Random(seed)
    items = [random_value(chance) for _ in range(chance.randrange(1, 200))]
    items.append("\\" * chance.randrange(20_000))
    items.append(["x" * chance.randrange(20_000), [[]] * chance.randrange(10_000)])
    body = b' {"tasks" :\n[' + b" ,\n".join(msgspec.json.encode(item) for item in items) + b" ]\n} "
    found = [msgspec.json.decode(item) for item in split_items(body, "tasks") if item is not None]
    assert found == items


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"results":[1]}', b'{"tasks":[1],"tasks":[2]}', b'{"tasks":[1]', b'{"tasks":[1}}', b'{"tasks":["a]}',
     b'{"tasks":1}', b'{"a":1,"tasks":[1]}', b'{"tasks":[1]} x', b'{"tasks":[1,1' + b",1" * 1000 + b"]}"],
)  # fmt: skip
def test_a_large_body_that_is_no_batch_is_refused(body: bytes) -> None:
    """(13.16)"""
    with pytest.raises(InvalidRequest):
        list(split_items(body, "tasks"))


def test_an_empty_batch_has_no_items() -> None:
    assert [item for item in split_items(b'{"tasks":[ ]}', "tasks") if item is not None] == []


def test_other_calls_run_while_a_large_value_is_checked() -> None:
    """A megabyte of brackets is checked in many pieces. (13.16)"""

    class Counting:
        pieces = 0

        async def yield_if_spent(self) -> None:
            self.pieces += 1

    budget = Counting()
    dense = b"[" + b",".join([b"[]"] * 300_000) + b"]"
    asyncio.run(PAYLOAD.check_in_pieces(dense, budget))  # type: ignore[arg-type]
    assert budget.pieces > 20
