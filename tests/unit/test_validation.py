"""Validation of values from outside: within the limits they pass unchanged, everything else is an InvalidRequest."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeq.domain import validation
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import ERROR_CHARS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, WORKER_CHARS_MAX

HALF = "\ud800"


@pytest.mark.parametrize("value", ["a", "send.mail", "A-1_b.C", "0", "x" * 64])
def test_a_name_of_letters_digits_and_three_signs_passes(value: str) -> None:
    assert validation.name(value, "command") == value


@pytest.mark.parametrize("value", ["a", "auth0|123", "alice@example.com", "spiffe://a/b", "a b", "~", "...", "x" * 255])
def test_a_tenant_may_be_what_issuers_put_into_sub(value: str) -> None:
    """(13.23)"""
    assert validation.tenant(value) == value


@pytest.mark.parametrize(
    "value",
    ["", " ", " a", "a ", ".", "..", "x" * 256, "a\n", "..\n", "a\0b", "a\x7f", "\x1b[31m", "é", HALF, None, 7, b"a"],
)
def test_a_tenant_is_printable_and_bounded(value: Any) -> None:
    """(13.23)"""
    with pytest.raises(InvalidRequest):
        validation.tenant(value)


@pytest.mark.parametrize(
    "value", ["", "x" * 65, "a b", "a/b", "a\n", "\na", "a\0b", "é", "٣", "*", "a:b", "{a}", HALF, None, 7, b"a"]
)
def test_any_other_name_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="command"):
        validation.name(value, "command")


def test_a_refused_name_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            validation.name("a b", "tenant")


def test_a_long_name_is_not_repeated_in_full_to_the_one_who_sent_it() -> None:
    with pytest.raises(InvalidRequest) as caught:
        validation.name("x" * 100_000, "tenant")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [["a"], {"a": 1}])
def test_a_name_or_worker_that_cannot_be_hashed_is_refused_like_any_other(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        validation.name(value, "command")
    with pytest.raises(InvalidRequest):
        validation.worker(value)


@pytest.mark.parametrize("value", [1, 5, 9])
def test_a_whole_number_within_its_bounds_passes(value: int) -> None:
    assert validation.integer(value, "limit", 1, 9) == value


@pytest.mark.parametrize("value", [0, 10, -1, 10**400, 5.0, "5", None, True, float("nan"), float("inf")])
def test_any_other_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="limit must be a whole number from 1 to 9"):
        validation.integer(value, "limit", 1, 9)


def test_a_number_too_long_to_be_written_is_refused_like_any_other() -> None:
    with pytest.raises(InvalidRequest):
        validation.integer(10**5000, "limit", 1, 9)


@pytest.mark.parametrize("value", [LEASE_MS_MIN, LEASE_MS_MAX])
def test_a_lease_may_be_as_short_and_as_long_as_the_limits_say(value: int) -> None:
    assert validation.lease_ms(value) == value


@pytest.mark.parametrize("value", [0, -1, LEASE_MS_MIN - 1, LEASE_MS_MAX + 1])
def test_a_lease_beyond_the_limits_is_refused(value: int) -> None:
    with pytest.raises(InvalidRequest):
        validation.lease_ms(value)


@pytest.mark.parametrize("value", ["w", "ann@host:1", "工人 7", "x" * WORKER_CHARS_MAX])
def test_a_worker_may_have_any_printable_name(value: str) -> None:
    assert validation.worker(value) == value


@pytest.mark.parametrize("value", ["", "x" * (WORKER_CHARS_MAX + 1), "a\nb", "a\0", "\x7f", HALF, None, 5])
def test_a_worker_without_a_proper_name_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="worker"):
        validation.worker(value)


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20))
def test_a_line_of_text_passes_unchanged(value: str) -> None:
    assert validation.text(value, "key", 20) == value


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=5), st.sampled_from("\0\t\n\r\x1b\x7f"), st.text(max_size=5))
def test_text_with_a_control_character_is_refused(before: str, control: str, behind: str) -> None:
    with pytest.raises(InvalidRequest):
        validation.text(before + control + behind, "key", 20)


def test_text_is_measured_from_its_least_to_its_most() -> None:
    assert [validation.text("x" * n, "key", 3, least=1) for n in (1, 3)] == ["x", "xxx"]
    for n in (0, 4):
        with pytest.raises(InvalidRequest):
            validation.text("x" * n, "key", 3, least=1)


def test_an_error_message_keeps_its_lines() -> None:
    assert validation.message("Traceback\n\tline 1\n") == "Traceback\n\tline 1\n"


def test_a_long_error_message_is_cut_rather_than_refused() -> None:
    assert validation.message("é" * (ERROR_CHARS_MAX + 5)) == "é" * ERROR_CHARS_MAX


def test_half_of_a_surrogate_pair_is_not_text() -> None:
    with pytest.raises(InvalidRequest):
        validation.message("boom " + HALF)
    with pytest.raises(InvalidRequest):
        validation.text(HALF, "key", 5)


@pytest.mark.parametrize("value", [None, 5, ValueError("boom"), b"boom"])
def test_an_error_message_that_is_not_text_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        validation.message(value)
