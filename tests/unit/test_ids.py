"""Task ids sort in the order in which they were made, contain their shard, and are UUIDs of version 7."""

import uuid
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeq.domain.ids import IdGenerator, is_task_id, shard_of, shard_of_key
from codeq.domain.limits import SHARDS_MAX

NOW = 1_700_000_000_000
times = st.integers(0, (1 << 47) - 1)


def no_noise(size: int) -> bytes:
    return bytes(size)


def all_noise(size: int) -> bytes:
    return b"\xff" * size


def mint_one(mint: IdGenerator, now_ms: int, shard: int | None = 0) -> str:
    [made] = mint.generate(now_ms, 1, [shard])
    return made


def millisecond(task_id: str) -> int:
    return int(task_id[:8] + task_id[9:13], 16)


@pytest.mark.parametrize("noise", [no_noise, all_noise])
@settings(max_examples=50, deadline=None)
@given(now_ms=times, shard=st.integers(0, SHARDS_MAX - 1))
def test_an_id_is_a_uuid_of_version_7(noise: object, now_ms: int, shard: int) -> None:
    made = mint_one(IdGenerator(no_noise if noise is no_noise else all_noise), now_ms, shard)
    parsed = uuid.UUID(made)
    assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, made)
    assert is_task_id(made)


@settings(max_examples=50, deadline=None)
@given(times)
def test_an_id_tells_the_millisecond_it_was_made_in(now_ms: int) -> None:
    assert millisecond(mint_one(IdGenerator(all_noise), now_ms)) == now_ms


@settings(max_examples=50, deadline=None)
@given(st.integers(0, SHARDS_MAX - 1))
def test_the_shard_of_an_id_is_the_one_it_was_made_for(shard: int) -> None:
    assert shard_of(mint_one(IdGenerator(all_noise), NOW, shard)) == shard


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(times, st.integers(0, 20)), max_size=20))
def test_ids_rise_in_the_order_they_are_made_even_when_the_clock_jumps(calls: list[tuple[int, int]]) -> None:
    mint = IdGenerator(no_noise)
    made = [task_id for now_ms, number in calls for task_id in mint.generate(now_ms, 3, [None] * number)]
    assert all(a < b for a, b in pairwise(made))


@settings(max_examples=50, deadline=None)
@given(times, times)
def test_ids_of_different_makers_sort_by_time(a_ms: int, b_ms: int) -> None:
    a, b = mint_one(IdGenerator(all_noise), a_ms), mint_one(IdGenerator(no_noise), b_ms)
    assert (a < b) is (a_ms < b_ms) or a_ms == b_ms


def test_more_ids_than_a_millisecond_can_count_are_still_different_and_rising() -> None:
    mint = IdGenerator(no_noise)
    made = mint.generate(NOW, 1, [0] * 5_000) + mint.generate(NOW, 1, [0] * 5_000)
    assert made == sorted(set(made))
    assert len(made) == 10_000
    assert all(is_task_id(task_id) for task_id in made)


def test_a_clock_that_runs_backwards_makes_no_id_twice() -> None:
    mint = IdGenerator(no_noise)
    before, after = mint_one(mint, NOW), mint_one(mint, NOW - 60_000)
    assert before < after


def test_two_makers_in_the_same_millisecond_differ_by_their_noise() -> None:
    assert mint_one(IdGenerator(no_noise), NOW) != mint_one(IdGenerator(all_noise), NOW)


def test_tasks_without_a_home_go_round_the_shards() -> None:
    mint = IdGenerator(no_noise)
    first = [shard_of(task_id) for task_id in mint.generate(NOW, 4, [None] * 6)]
    second = [shard_of(task_id) for task_id in mint.generate(NOW, 4, [None] * 2)]
    turns = first + second
    assert all((a + 1) % 4 == b for a, b in pairwise(turns))


def test_a_task_with_a_home_goes_there_and_leaves_the_turn_alone() -> None:
    made = IdGenerator(no_noise).generate(NOW, 4, [None, 3, 3, None])
    shards = [shard_of(task_id) for task_id in made]
    assert shards[1:3] == [3, 3]
    assert shards[3] == (shards[0] + 1) % 4


def test_no_ids_are_made_when_none_are_asked_for() -> None:
    assert IdGenerator(no_noise).generate(NOW, 1, []) == []


@settings(max_examples=50, deadline=None)
@given(st.text(), st.text(), st.integers(1, SHARDS_MAX))
def test_a_key_always_leads_to_the_same_shard(tenant: str, key: str, shards: int) -> None:
    assert shard_of_key(tenant, key, shards) == shard_of_key(tenant, key, shards)
    assert 0 <= shard_of_key(tenant, key, shards) < shards


def test_keys_spread_over_all_shards() -> None:
    assert {shard_of_key("acme", f"order-{i}", 8) for i in range(200)} == set(range(8))


def test_a_key_leads_to_the_same_shard_in_every_release() -> None:
    assert [shard_of_key("acme", key, 64) for key in ("a", "b", "order-1")] == [26, 32, 11]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "0192f0c1-2d3e-7abc-8def-0123456789ab\n",
        " 0192f0c1-2d3e-7abc-8def-0123456789ab",
        "0192F0C1-2D3E-7ABC-8DEF-0123456789AB",
        "0192f0c12d3e7abc8def0123456789ab",
        "0192f0c1-2d3e-4abc-8def-0123456789ab",
        "0192f0c1-2d3e-7abc-cdef-0123456789ab",
        "0192f0c1-2d3e-7abc-8def-0123456789ab0",
        "\u0660192f0c1-2d3e-7abc-8def-0123456789ab",
    ],
)
def test_what_is_not_an_id_is_told_apart(text: str) -> None:
    assert not is_task_id(text)


def test_an_id_of_version_7_is_known() -> None:
    assert is_task_id("0192f0c1-2d3e-7abc-8def-0123456789ab")
