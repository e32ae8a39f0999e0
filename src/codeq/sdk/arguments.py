"""Checks what callers pass to the verbs, before it is sent."""

from collections.abc import Sequence

from codeq.domain.errors import InvalidRequest, NotFound
from codeq.domain.limits import ERROR_CHARS_MAX, LEASE_MS_MAX, LEASE_MS_MIN
from codeq.domain.requests import BulkResult, Filter, Selection
from codeq.sdk.durations import Seconds, milliseconds, milliseconds_from
from codeq.wire.errors import error_of

BULK_MAX = 100_000


def lease_ms(lease: Seconds) -> int:
    return milliseconds_from(lease, "a lease", LEASE_MS_MIN, LEASE_MS_MAX)


def wait_ms(wait: Seconds, most_ms: int) -> int:
    found_ms = milliseconds(wait)
    if found_ms < 0:
        raise InvalidRequest(f"a wait is not negative: {wait}")
    return min(found_ms, most_ms)


def reason_text(text: str) -> str:
    """Cuts a long text and escapes broken characters, rather than refusing them: no report is lost for its message."""
    if not isinstance(text, str):
        raise InvalidRequest(f"a reason is text, not {text!r:.80}")
    return text[:ERROR_CHARS_MAX].encode("utf-8", "backslashreplace").decode()[:ERROR_CHARS_MAX]


def selection(command: str | None, ids: Sequence[str] | None, error: str | None, limit: int) -> Selection:
    if ids is not None and not ids:
        return ids
    if ids is not None and (command is not None or error is not None):
        raise InvalidRequest("dead tasks are chosen by ids, or by command and error; not by both")
    if not 1 <= limit <= BULK_MAX:
        raise InvalidRequest(f"limit must be from 1 to {BULK_MAX}, not {limit}")
    return Filter(command=command, error=error) if ids is None else ids


def check_changed(task_id: str, result: BulkResult) -> None:
    if not result.changed:
        code = result.refused.get(task_id, NotFound.code)
        raise error_of(code, f"task {task_id} is not in the dead-letter queue")
