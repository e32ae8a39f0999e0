"""How long a failed task waits: every policy, its bounds, and numbers that would overflow elsewhere."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.limits import BACKOFF_MS_MAX

LEAST, MOST = 0.0, math.nextafter(1.0, 0.0)
HUGE = 10**18


def low() -> float:
    return LEAST


def high() -> float:
    return MOST


def unused_random() -> float:
    raise AssertionError("a policy without jitter draws no random number")


def waits(kind: BackoffKind, tries: int = 6, base_ms: int = 100, max_ms: int = 1_000) -> list[int]:
    return [Backoff(kind, base_ms, max_ms).delay_ms(attempts, unused_random) for attempts in range(1, tries + 1)]


def test_fixed_waits_the_same_every_time() -> None:
    assert waits(BackoffKind.FIXED) == [100] * 6


def test_linear_waits_longer_by_the_base_each_time_up_to_the_maximum() -> None:
    assert waits(BackoffKind.LINEAR, max_ms=450) == [100, 200, 300, 400, 450, 450]


def test_exponential_doubles_up_to_the_maximum() -> None:
    assert waits(BackoffKind.EXPONENTIAL) == [100, 200, 400, 800, 1_000, 1_000]


def test_equal_jitter_waits_between_half_and_all_of_the_exponential() -> None:
    policy = Backoff(BackoffKind.EXP_EQUAL_JITTER, 100, 1_000)
    assert [policy.delay_ms(attempts, low) for attempts in range(1, 7)] == [50, 100, 200, 400, 500, 500]
    assert [policy.delay_ms(attempts, high) for attempts in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]


def test_full_jitter_waits_between_nothing_and_all_of_the_exponential() -> None:
    policy = Backoff(BackoffKind.EXP_FULL_JITTER, 100, 1_000)
    assert [policy.delay_ms(attempts, low) for attempts in range(1, 7)] == [0] * 6
    assert [policy.delay_ms(attempts, high) for attempts in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]


def test_full_jitter_reaches_every_millisecond_equally() -> None:
    policy = Backoff(BackoffKind.EXP_FULL_JITTER, 4, 4)
    drawn = [policy.delay_ms(1, lambda share=share: share / 100) for share in range(100)]  # type: ignore[misc]
    assert {wait: drawn.count(wait) for wait in set(drawn)} == {0: 20, 1: 20, 2: 20, 3: 20, 4: 20}


def test_the_default_is_full_jitter_from_five_seconds_to_fifteen_minutes() -> None:
    assert Backoff() == Backoff(BackoffKind.EXP_FULL_JITTER, 5_000, 900_000)


@pytest.mark.parametrize("kind", BackoffKind)
def test_a_base_of_nothing_waits_for_nothing(kind: BackoffKind) -> None:
    policy = Backoff(kind, 0, 900_000)
    assert {policy.delay_ms(attempts, high) for attempts in (1, 2, 50, 100)} == {0}


@pytest.mark.parametrize("kind", BackoffKind)
def test_a_maximum_of_nothing_waits_for_nothing(kind: BackoffKind) -> None:
    assert Backoff(kind, 5_000, 0).delay_ms(3, high) == 0


@pytest.mark.parametrize("kind", BackoffKind)
@pytest.mark.parametrize("attempts", [1, 64, 100, 10**9])
def test_no_number_is_too_large_to_wait_at_most_a_day(kind: BackoffKind, attempts: int) -> None:
    assert Backoff(kind, HUGE, HUGE).delay_ms(attempts, high) == BACKOFF_MS_MAX


@pytest.mark.parametrize("kind", [BackoffKind.EXPONENTIAL, BackoffKind.EXP_EQUAL_JITTER, BackoffKind.EXP_FULL_JITTER])
def test_the_hundredth_attempt_of_the_smallest_base_waits_the_maximum(kind: BackoffKind) -> None:
    assert Backoff(kind, 1, BACKOFF_MS_MAX).delay_ms(100, high) == BACKOFF_MS_MAX


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(BackoffKind),
    st.integers(0, BACKOFF_MS_MAX),
    st.integers(0, BACKOFF_MS_MAX),
    st.integers(1, 100),
    st.floats(0, 1, exclude_max=True),
)
def test_every_wait_is_a_whole_number_from_nothing_to_the_maximum(
    kind: BackoffKind, base_ms: int, max_ms: int, attempts: int, share: float
) -> None:
    wait = Backoff(kind, base_ms, max_ms).delay_ms(attempts, lambda: share)
    assert isinstance(wait, int)
    assert 0 <= wait <= max_ms


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(BackoffKind), st.integers(0, 10_000), st.integers(1, 99), st.floats(0, 1, exclude_max=True))
def test_a_later_attempt_never_waits_less_at_the_same_draw(
    kind: BackoffKind, base_ms: int, attempts: int, share: float
) -> None:
    policy = Backoff(kind, base_ms)
    assert policy.delay_ms(attempts, lambda: share) <= policy.delay_ms(attempts + 1, lambda: share)
