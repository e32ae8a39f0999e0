"""How long failed tasks wait, in seconds: `codeq.fixed(1)`, `codeq.linear(5, 60)`, `codeq.exponential(1, 60)`."""

from typing import Literal

from codeq.domain.backoff import Backoff, BackoffKind, PartialBackoff
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import BACKOFF_MS_MAX
from codeq.sdk.durations import Seconds, milliseconds_from


def fixed(delay: Seconds) -> Backoff:
    """The same wait after every failed attempt."""
    delay_ms = _ms(delay)
    return Backoff(BackoffKind.FIXED, delay_ms, delay_ms)


def linear(base: Seconds, most: Seconds = 900) -> Backoff:
    """`base` after the first failed attempt, twice that after the second, and so on, never above `most`."""
    return Backoff(BackoffKind.LINEAR, _ms(base), _ms(most))


def exponential(base: Seconds, most: Seconds = 900, *, jitter: bool | Literal["equal"] = True) -> Backoff:
    """`base` after the first failed attempt, doubled after each further one, never above `most`. With `jitter` the wait
    is random between 0 and that, so that tasks which failed together are not retried together; with "equal" it is half
    of that, plus a random part of the other half."""
    kind = BackoffKind.EXP_FULL_JITTER if jitter else BackoffKind.EXPONENTIAL
    return Backoff(BackoffKind.EXP_EQUAL_JITTER if jitter == "equal" else kind, _ms(base), _ms(most))


def partial_backoff(
    kind: BackoffKind | str | None = None, *, base: Seconds | None = None, most: Seconds | None = None
) -> PartialBackoff:
    """Parts of a backoff for the policy of a queue. A part that is None follows the server's setting."""
    try:
        known = None if kind is None else BackoffKind(kind)
    except ValueError:
        raise InvalidRequest(f"a backoff is one of {', '.join(BackoffKind)}, not {kind!r}") from None
    return PartialBackoff(known, None if base is None else _ms(base), None if most is None else _ms(most))


def _ms(value: Seconds) -> int:
    return milliseconds_from(value, "a backoff", 0, BACKOFF_MS_MAX)
