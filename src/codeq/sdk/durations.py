"""Durations and moments as callers give them (seconds, `timedelta`, `datetime`), in the queue's milliseconds."""

from datetime import datetime, timedelta

from codeq.domain.errors import InvalidRequest

Seconds = float | timedelta


def milliseconds(value: Seconds) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    try:
        return round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(f"a time is a number of seconds or a timedelta, not {value!r}") from None


def milliseconds_from(value: Seconds, what: str, least_ms: int, most_ms: int) -> int:
    """As `milliseconds`, within bounds. A server corrects some values outside of them, and a local store does not."""
    found = milliseconds(value)
    if not least_ms <= found <= most_ms:
        raise InvalidRequest(f"{what} must be from {least_ms / 1000:g} to {most_ms / 1000:.12g} seconds, not {value}")
    return found


def unix_ms(moment: datetime) -> int:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidRequest(f"a moment is a datetime with a time zone, such as datetime.now(UTC), not {moment!r}")
    return round(moment.timestamp() * 1000)
