"""The clock of a queue follows a clock that nobody sets, and returns slowly to the system's time (13.4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq.clock import CHECK_NS, SLEW_DIVISOR, SteadyClock

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
HOUR_S = 3600


class Machine:
    """A system's clock that a test sets, and a monotonic one that only runs."""

    def __init__(self) -> None:
        self.wall_ns = START_NS
        self.steady_ns = 5 * SECOND_NS

    def clock(self) -> SteadyClock:
        return SteadyClock(wall_ns=lambda: self.wall_ns, steady_ns=lambda: self.steady_ns)

    def run(self, seconds: float) -> None:
        self.wall_ns += round(seconds * SECOND_NS)
        self.steady_ns += round(seconds * SECOND_NS)

    def step(self, seconds: float) -> None:
        self.wall_ns += round(seconds * SECOND_NS)


def test_it_shows_the_system_s_time() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(100):
        machine.run(0.7)
        assert clock() == machine.wall_ns // 1_000_000


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_step_of_the_system_s_clock_neither_stops_time_nor_skips_any(step_s: int) -> None:
    machine = Machine()
    clock = machine.clock()
    before_ms = clock()
    machine.run(2)
    clock()
    machine.step(step_s)
    for second in range(1, 301):
        machine.run(1)
        passed_ms = clock() - before_ms - 2000
        assert abs(passed_ms - second * 1000) <= second * 1000 / SLEW_DIVISOR + 1


@pytest.mark.parametrize("step_s", [60, -60])
def test_it_returns_to_the_system_s_time(step_s: int) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.step(step_s)
    for _ in range(60 * SLEW_DIVISOR + 5):
        machine.run(1)
        clock()
    assert abs(clock() - machine.wall_ns // 1_000_000) <= 10


def test_it_does_not_overshoot_when_nobody_looks_for_a_day() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.step(-60)
    machine.run(2)
    clock()
    machine.run(24 * HOUR_S)
    assert abs(clock() - machine.wall_ns // 1_000_000) <= 10


def test_it_starts_where_it_is_told_to_and_goes_on_from_there() -> None:
    machine = Machine()
    clock = machine.clock()
    ahead_ms = START_NS // 1_000_000 + HOUR_S * 1000
    clock.start_at(ahead_ms - 2 * HOUR_S * 1000)
    assert clock() == START_NS // 1_000_000, "not backwards"
    clock.start_at(ahead_ms)
    assert clock() == ahead_ms
    machine.run(100)
    assert 99_000 <= clock() - ahead_ms <= 100_000


@given(
    st.lists(
        st.tuples(st.sampled_from(["run", "step"]), st.integers(-3 * HOUR_S * 1000, 3 * HOUR_S * 1000)), max_size=60
    )
)
def test_it_never_runs_backwards_and_never_faster_than_it_may(moves: list[tuple[str, int]]) -> None:
    machine = Machine()
    clock = machine.clock()
    last_ms = clock()
    for kind, ms in moves:
        if kind == "step":
            machine.step(ms / 1000)
        else:
            machine.run(abs(ms) / 1000)
        now_ms = clock()
        passed_ms = abs(ms) if kind == "run" else 0
        assert passed_ms - passed_ms / SLEW_DIVISOR - 1 <= now_ms - last_ms <= passed_ms + passed_ms / SLEW_DIVISOR + 1
        assert now_ms >= last_ms
        last_ms = now_ms


def test_the_system_s_clock_is_read_once_a_second_only() -> None:
    machine = Machine()
    reads = 0

    def wall_ns() -> int:
        nonlocal reads
        reads += 1
        return machine.wall_ns

    clock = SteadyClock(wall_ns=wall_ns, steady_ns=lambda: machine.steady_ns)
    for _ in range(1000):
        machine.run(CHECK_NS / SECOND_NS / 100)
        clock()
    assert reads <= 12
