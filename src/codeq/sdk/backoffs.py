"""How long failed tasks wait, in seconds: `codeq.fixed(1)`, `codeq.linear(5, 60)`, `codeq.exponential(1, 60)`."""

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.limits import BACKOFF_MS_MAX
from codeq.sdk.durations import Seconds, milliseconds_from


def fixed(delay: Seconds) -> Backoff:
    """The same wait after every failed attempt."""
    delay_ms = _ms(delay)
    return Backoff(BackoffKind.FIXED, delay_ms, delay_ms)


def linear(base: Seconds, most: Seconds = 900) -> Backoff:
    """`base` after the first failed attempt, twice that after the second, and so on, never above `most`."""
    return Backoff(BackoffKind.LINEAR, _ms(base), _ms(most))


def exponential(base: Seconds, most: Seconds = 900, *, jitter: bool = True) -> Backoff:
    """`base` after the first failed attempt, doubled after each further one, never above `most`. With `jitter` the wait
    is random between 0 and that, so that tasks which failed together are not retried together."""
    kind = BackoffKind.EXP_FULL_JITTER if jitter else BackoffKind.EXPONENTIAL
    return Backoff(kind, _ms(base), _ms(most))


def _ms(value: Seconds) -> int:
    return milliseconds_from(value, "a backoff", 0, BACKOFF_MS_MAX)
