"""Bloom filters in two periods: what they remember, for how long, and at what cost."""

import msgspec

from codeq.server.settings import FilterSettings
from codeq.store.redis import filters
from codeq.store.redis.filters import Filters, FilterSize, RotatingFilter

SIZE = FilterSize(items=1000, error_rate=0.01, seconds=60)


class Clock:
    now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_an_item_is_known_for_one_period_at_least_and_two_at_most() -> None:
    clock = Clock()
    seen = RotatingFilter(SIZE, clock=clock)
    seen.add("early")
    clock.now_s += 59
    seen.add("late")
    clock.now_s += 60  # a period later both are of the one before
    assert "early" in seen
    assert "late" in seen
    seen.add("next")
    clock.now_s += 60
    assert "next" in seen
    assert "late" not in seen


def test_nothing_is_known_after_a_pause_of_two_periods() -> None:
    clock = Clock()
    seen = RotatingFilter(SIZE, clock=clock)
    seen.add(b"item")
    clock.now_s += 120
    assert b"item" not in seen
    assert seen.size_bytes == 0


def test_what_is_added_again_is_known_for_a_further_period() -> None:
    clock = Clock()
    seen = RotatingFilter(SIZE, clock=clock)
    for _ in range(10):
        seen.add("item")
        clock.now_s += 50
        assert "item" in seen


def test_a_full_period_ends_early_so_that_false_positives_stay_rare() -> None:
    seen = RotatingFilter(SIZE, clock=Clock())
    for number in range(50_000):
        seen.add(str(number))
    assert all(str(number) in seen for number in range(49_000, 50_000))
    assert sum(f"other {number}" in seen for number in range(10_000)) < 500


def test_memory_is_taken_with_the_first_item_only() -> None:
    seen = RotatingFilter(filters.GHOST, clock=Clock())
    assert "item" not in seen
    assert seen.size_bytes == 0
    seen.add("item")
    assert 14_000_000 < seen.size_bytes < 15_000_000


def test_a_filter_without_items_knows_nothing() -> None:
    seen = RotatingFilter(FilterSize(items=0, error_rate=0.01, seconds=60), clock=Clock())
    seen.add("item")
    assert "item" not in seen
    assert seen.size_bytes == 0


def test_checks_and_hits_are_counted() -> None:
    seen = RotatingFilter(SIZE, clock=Clock())
    assert "item" not in seen
    seen.add("item")
    assert "item" in seen
    assert (seen.checks, seen.hits) == (2, 1)


def test_the_default_settings_are_the_default_sizes() -> None:
    settings = msgspec.to_builtins(FilterSettings())
    sizes = {"idempotency": filters.IDEMPOTENCY, "ghost": filters.GHOST, "cleanup": filters.CLEANUP}
    assert settings == {name: msgspec.to_builtins(size) for name, size in sizes.items()}
    assert set(settings) == set(Filters().by_name())
