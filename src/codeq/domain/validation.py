"""Checks of values that come from outside against the limits. Each returns the value, or raises InvalidRequest.

They are shared by everybody who accepts a value: use cases, the SDK before it sends, and the Spark sink.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import (
    ATTEMPTS_MAX,
    ATTEMPTS_MIN,
    BACKOFF_MS_MAX,
    BATCH_BYTES_MAX,
    BATCH_TASKS_MAX,
    CONSUMERS_MAX,
    DELAY_MS_MAX,
    DELIVERIES_MAX,
    ERROR_CHARS_MAX,
    IDEMPOTENCY_KEY_CHARS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    NAME_PATTERN,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    RETENTION_MS_MAX,
    TRACE_CHARS_MAX,
    WEBHOOK_CHARS_MAX,
    WORKER_CHARS_MAX,
)
from codeq.domain.queue import OnExpiry, QueuePolicy
from codeq.domain.requests import NewTask

_NAME = re.compile(NAME_PATTERN)
_FAR_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, which is as far as a date goes on the wire."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def new_task(value: NewTask, now_ms: int | None = None) -> NewTask:
    """Every limit of a new task. Only who keeps the queue's time can tell whether `run_at_ms` is too far ahead."""
    name(value.command, "command")
    if not isinstance(value.payload, bytes):
        raise InvalidRequest(f"a payload is JSON in bytes, not {type(value.payload).__name__}")
    if len(value.payload) > PAYLOAD_BYTES_MAX:
        raise InvalidRequest(
            f"the payload has {len(value.payload)} bytes, at most {PAYLOAD_BYTES_MAX} are taken; store it elsewhere "
            "and send a reference"
        )
    if type(value.priority) is not int or value.priority:
        whole(value.priority, "priority", PRIORITY_MIN, PRIORITY_MAX)
    if value.delay_ms:
        whole(value.delay_ms, "delay in milliseconds", 0, DELAY_MS_MAX)
    if value.run_at_ms is not None:
        latest_ms = _FAR_MS if now_ms is None else now_ms + DELAY_MS_MAX
        whole(value.run_at_ms, "run time in Unix milliseconds (a year ahead at most)", 0, latest_ms)
    if value.max_attempts is not None:
        whole(value.max_attempts, "max attempts", ATTEMPTS_MIN, ATTEMPTS_MAX)
    if value.backoff is not None:
        backoff(value.backoff)
    _texts(value)
    return value


def _texts(value: NewTask) -> None:
    if value.idempotency_key is not None:
        text(value.idempotency_key, "idempotency key", IDEMPOTENCY_KEY_CHARS_MAX, least=1)
    if value.webhook is not None:
        web_address(value.webhook, "webhook")
    if value.trace_parent is not None:
        text(value.trace_parent, "trace parent", TRACE_CHARS_MAX)
    if value.trace_state is not None:
        text(value.trace_state, "trace state", TRACE_CHARS_MAX)


def policy(value: QueuePolicy) -> QueuePolicy:
    """Every limit of a queue's policy. A stored policy is read again at every start, so it must be right."""
    whole(value.max_attempts, "max attempts", ATTEMPTS_MIN, ATTEMPTS_MAX)
    whole(value.max_deliveries, "max deliveries", 1, DELIVERIES_MAX)
    lease_ms(value.lease_ms)
    backoff(value.backoff)
    whole(value.retention_ms, "retention in milliseconds", 0, RETENTION_MS_MAX)
    whole(value.dead_retention_ms, "dead retention in milliseconds", 0, RETENTION_MS_MAX)
    whole(value.max_consumers, "max consumers", 0, CONSUMERS_MAX)
    if value.on_expiry not in list(OnExpiry):
        raise InvalidRequest(f"on_expiry must be one of {', '.join(OnExpiry)}")
    if not isinstance(value.paused, bool):
        raise InvalidRequest("paused is true or false")
    return value


def batch(bodies: Sequence[bytes], items: str, content: str) -> None:
    """How many items one batch may have, and how many bytes of content."""
    if len(bodies) > BATCH_TASKS_MAX:
        raise InvalidRequest(f"a batch has at most {BATCH_TASKS_MAX} {items}, not {len(bodies)}")
    size = sum([len(body) for body in bodies])
    if size > BATCH_BYTES_MAX:
        raise InvalidRequest(f"a batch has at most {BATCH_BYTES_MAX} bytes of {content}, not {size}")


def name(value: str, what: str) -> str:
    if not isinstance(value, str) or not _is_name(value):
        raise InvalidRequest(f"{what} must be 1 to 64 letters, digits, '_', '.' or '-', not {_shown(value)}")
    return value


def whole(value: int, what: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidRequest(f"{what} must be a whole number from {least} to {most}, not {_shown(value)}")
    return value


def worker(value: str) -> str:
    return text(value, "worker", WORKER_CHARS_MAX, least=1)


def lease_ms(value: int) -> int:
    return whole(value, "lease in milliseconds", LEASE_MS_MIN, LEASE_MS_MAX)


def backoff(value: Backoff) -> Backoff:
    if not isinstance(value, Backoff) or value.kind not in list(BackoffKind):
        raise InvalidRequest(f"backoff must be one of {', '.join(BackoffKind)}")
    whole(value.base_ms, "backoff base in milliseconds", 0, BACKOFF_MS_MAX)
    whole(value.max_ms, "backoff maximum in milliseconds", 0, BACKOFF_MS_MAX)
    return value


def text(value: str, what: str, most: int, *, least: int = 0) -> str:
    """A line of text: no control characters, which have no place in names, keys and headers."""
    is_fitting = isinstance(value, str) and least <= len(value) <= most
    if is_fitting and value.isascii() and value.isprintable():
        return value
    if not is_fitting or _CONTROL.search(value):
        raise InvalidRequest(f"{what} must be text of {least} to {most} characters without control characters")
    return _encodable(value, what)


def web_address(value: str, what: str) -> str:
    try:
        parts = urlsplit(text(value, what, WEBHOOK_CHARS_MAX, least=1))
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise InvalidRequest(f"{what} must be an http or https address with a host")
    return value


def message(value: str) -> str:
    """An error's text. Cut rather than refused: a long stack trace is no reason to lose a result."""
    if not isinstance(value, str):
        raise InvalidRequest(f"an error is text, not {_shown(value)}")
    return _encodable(value[:ERROR_CHARS_MAX], "error")


@lru_cache(maxsize=4096)
def _is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None


def _shown(value: object) -> str:
    """A piece of the value for the one who sent it; numbers too long to be written are only called long."""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "one that is far too large"
    return repr(value)[:80]


def _encodable(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} holds half of a surrogate pair, which is not text") from None
    return value
