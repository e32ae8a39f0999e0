"""How a delivery may end, as handlers say it (Retry, Fail, Bury, Snooze) and as the worker reports it."""

from enum import StrEnum
from typing import Any

from msgspec import Struct

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import BACKOFF_MS_MAX
from codeq.sdk.durations import Seconds, milliseconds


class Retry(Exception):
    """Raised or returned by a handler to have the task tried again: after `delay` seconds, or after its backoff."""

    def __init__(self, delay: Seconds | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry requested")
        self.delay = None if delay is None else _delay_s(delay, "a retry")
        """In seconds; None for the backoff of the task."""


class Fail(Exception):
    """Raised or returned by a handler to end the task as FAILED, without another try."""

    def __init__(self, error: str, result: Any = None) -> None:
        super().__init__(error)
        self.result = result


class Bury(Exception):
    """Raised or returned by a handler to move the task to the dead-letter queue now, where it can be replayed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Snooze(Exception):
    """Raised or returned by a handler to have the task delivered again after `delay` seconds, without counting an
    attempt. It counts as a delivery, of which a task has 100 by default."""

    def __init__(self, delay: Seconds) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = _delay_s(delay, "a snooze")
        """In seconds."""


class Interrupted(BaseException):
    """Raised inside a handler whose result is no longer needed. It is not an Exception, so that `except Exception` does
    not catch it; clean up and let it pass."""


class TimedOut(TimeoutError):
    """The handler ran longer than its timeout."""


class Crash(Exception):
    """The process that executed the handler has ended."""


class OutcomeKind(StrEnum):
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    ABANDON = "abandon"
    DROP = "drop"
    """Nothing is reported: the lease was lost, so the report would be refused."""


class JobOutcome(Struct, frozen=True, array_like=True, gc=False):
    """How a delivery ended. Beyond the domain's `Outcome` it can be a retry or an abandon, which are not results."""

    kind: OutcomeKind
    result: bytes | None = None
    error: str | None = None
    """One line; an error of the handler is followed by the end of its traceback."""
    delay_ms: int | None = None
    is_last: bool = False
    """A retry that goes to the dead-letter queue, whatever attempts are left."""


ABANDONED = JobOutcome(OutcomeKind.ABANDON)
DROPPED = JobOutcome(OutcomeKind.DROP)
RETURNED_NONE = JobOutcome(OutcomeKind.COMPLETE, b"null")
ASKED_FOR = (Retry, Fail, Bury, Snooze)
"""What a handler raises or returns to decide the outcome itself."""


def _delay_s(delay: Seconds, what: str) -> float:
    delay_ms = milliseconds(delay)
    if not 0 <= delay_ms <= BACKOFF_MS_MAX:
        raise InvalidRequest(f"{what} is 0 s to {BACKOFF_MS_MAX // 3_600_000} h later, not {delay}")
    return delay_ms / 1000
