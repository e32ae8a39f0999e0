"""Orders: what a producer says of a task, in the words of the queue; and times, in its milliseconds."""

from datetime import datetime, timedelta
from typing import Any

from codeq.domain.errors import InvalidRequest
from codeq.domain.requests import NewTask
from codeq.sdk.jobs import encode_json
from codeq.sdk.tracing import current_trace

Seconds = float | timedelta


def new_task(command: str, payload: Any, options: dict[str, Any]) -> NewTask:
    """Takes the options of `enqueue` and those of `NewTask`. The present span becomes the parent of the work."""
    written = encode_json(payload)
    parent, state = current_trace()
    if not options:
        return NewTask(command=command, payload=written, trace_parent=parent, trace_state=state)
    given = {"trace_parent": parent, "trace_state": state, **options}
    delay, run_at = given.pop("delay", None), given.pop("run_at", None)
    if delay is not None:
        given["delay_ms"] = milliseconds(delay)
    if run_at is not None:
        given["run_at_ms"] = unix_ms(run_at)
    try:
        return NewTask(command=command, payload=written, **given)
    except TypeError as fault:
        raise InvalidRequest(f"there is no such option: {fault}") from None


def milliseconds(value: Seconds) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    try:
        return round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(f"a time is a number of seconds or a timedelta, not {value!r}") from None


def milliseconds_from(value: Seconds, what: str, least_ms: int, most_ms: int) -> int:
    """As `milliseconds`, within bounds. A server forgives some of what is outside, and a store inside does not."""
    found = milliseconds(value)
    if not least_ms <= found <= most_ms:
        raise InvalidRequest(f"{what} must be from {least_ms / 1000:g} to {most_ms / 1000:g} seconds, not {value}")
    return found


def unix_ms(moment: datetime) -> int:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidRequest(f"a moment is a datetime with a time zone, such as datetime.now(UTC), not {moment!r}")
    return round(moment.timestamp() * 1000)
