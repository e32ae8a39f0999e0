"""Checks values from outside against the limits. Each function returns the value, or raises InvalidRequest.

Use cases, the SDK before it sends, and the Spark sink share them.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from codeq.domain import limits
from codeq.domain.backoff import Backoff, BackoffKind, PartialBackoff
from codeq.domain.errors import InvalidRequest
from codeq.domain.queue import WEBHOOKS, EffectivePolicy, OnExpiry, QueuePolicy, effective_policy
from codeq.domain.requests import NewTask
from codeq.domain.webhooks import parse_url
from codeq.domain.workers import WorkerInfo

_NAME = re.compile(limits.NAME_PATTERN)
_TENANT = re.compile(limits.TENANT_PATTERN)
_WORKER_NAME = re.compile(limits.WORKER_NAME_PATTERN)
_FAR_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: the latest date that the wire format can express."""
_ETAG = re.compile(r"[0-9]{1,19}(-[0-9]{1,19})?|\*", re.ASCII)
_NAME_CACHED_CHARS_MAX = 256
"""Longer text is no name, and must not be remembered: a cache is bounded in bytes by what may enter it."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def new_task(value: NewTask, now_ms: int | None = None) -> NewTask:
    """Checks every limit of a new task. Whether `run_at_ms` is too far ahead needs the queue's `now_ms`."""
    name(value.command, "command")
    if type(value.payload) is not bytes or len(value.payload) > limits.PAYLOAD_BYTES_MAX:
        payload(value.payload)
    if type(value.priority) is not int or value.priority:
        integer(value.priority, "priority", limits.PRIORITY_MIN, limits.PRIORITY_MAX)
    if value.delay_ms:
        integer(value.delay_ms, "delay in milliseconds", 0, limits.DELAY_MS_MAX)
    if value.run_at_ms is not None:
        latest_ms = _FAR_MS if now_ms is None else now_ms + limits.DELAY_MS_MAX
        integer(value.run_at_ms, "run time in Unix milliseconds (a year ahead at most)", 0, latest_ms)
    if value.max_attempts is not None:
        integer(value.max_attempts, "max attempts", limits.ATTEMPTS_MIN, limits.ATTEMPTS_MAX)
    if value.backoff is not None:
        backoff(value.backoff)
    if value.idempotency_key is not None:
        text(value.idempotency_key, "idempotency key", limits.IDEMPOTENCY_KEY_CHARS_MAX, least=1)
    if value.webhook is not None:
        url(value.webhook, "webhook")
    if value.trace_parent is not None or value.trace_state is not None:
        _trace(value)
    return value


def _trace(value: NewTask) -> None:
    if value.trace_parent is not None:
        text(value.trace_parent, "trace parent", limits.TRACE_CHARS_MAX)
    if value.trace_state is not None:
        text(value.trace_state, "trace state", limits.TRACE_CHARS_MAX)


def payload(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidRequest(f"a payload is JSON in bytes, not {type(value).__name__}")
    if len(value) > limits.PAYLOAD_BYTES_MAX:
        raise InvalidRequest(
            f"the payload has {len(value)} bytes, at most {limits.PAYLOAD_BYTES_MAX} are taken; "
            "store it elsewhere and send a reference"
        )
    return value


def result(value: bytes) -> bytes:
    if len(value) > limits.RESULT_BYTES_MAX:
        raise InvalidRequest(
            f"the result has {len(value)} bytes, at most {limits.RESULT_BYTES_MAX} are taken; use an artifact"
        )
    return value


def policy(policy: QueuePolicy, command: str) -> None:
    """Checks every limit of the policy of a command. A stored policy is loaded at every start, so it must be valid."""
    if policy.backoff is not None and not isinstance(policy.backoff, PartialBackoff):
        raise InvalidRequest("backoff is a Backoff or a PartialBackoff")
    value = effective_policy(policy, EffectivePolicy())
    integer(value.max_attempts, "max attempts", limits.ATTEMPTS_MIN, limits.ATTEMPTS_MAX)
    integer(value.max_deliveries, "max deliveries", 1, limits.DELIVERIES_MAX)
    lease_ms(value.lease_ms)
    backoff(value.backoff)
    integer(value.retention_ms, "retention in milliseconds", 0, limits.RETENTION_MS_MAX)
    integer(value.dead_retention_ms, "dead retention in milliseconds", 0, limits.RETENTION_MS_MAX)
    integer(value.max_consumers, "max consumers", 0, limits.CONSUMERS_MAX)
    if value.on_expiry not in list(OnExpiry):
        raise InvalidRequest(f"on_expiry must be one of {', '.join(OnExpiry)}")
    if not isinstance(value.paused, bool):
        raise InvalidRequest("paused is true or false")
    if not isinstance(value.priority_tiers, tuple):
        raise InvalidRequest("priority tiers are a tuple of whole numbers")
    tiers = [integer(tier, "priority tier", 0, limits.TIER_MAX) for tier in value.priority_tiers]
    if len(set(tiers)) < len(tiers):
        raise InvalidRequest("priority tiers have a tier twice")
    if value.dead_letter_ref is not None:
        text(value.dead_letter_ref, "dead letter reference", limits.TOPIC_REF_CHARS_MAX)
        if value.dead_letter_ref == command:
            raise InvalidRequest("the dead letter reference must name another topic")


def etag(value: str) -> str:
    if not isinstance(value, str) or not _ETAG.fullmatch(value):
        raise InvalidRequest(
            f"if_match is the etag or version of a policy, 0 for none or * for any; not {_shown(value)}"
        )
    return value


def batch(bodies: Sequence[bytes], items: str, content: str) -> int:
    """Checks how many items one batch has, and how many bytes of content. Returns how many bytes."""
    if len(bodies) > limits.BATCH_TASKS_MAX:
        raise InvalidRequest(f"a batch has at most {limits.BATCH_TASKS_MAX} {items}, not {len(bodies)}")
    size = sum([len(body) for body in bodies])
    if size > limits.BATCH_BYTES_MAX:
        raise InvalidRequest(f"a batch has at most {limits.BATCH_BYTES_MAX} bytes of {content}, not {size}")
    return size


def name(value: str, what: str) -> str:
    if not isinstance(value, str) or len(value) > _NAME_CACHED_CHARS_MAX or not _is_name(value):
        raise InvalidRequest(f"{what} must be 1 to 64 letters, digits, '_', '.' or '-', not {_shown(value)}")
    return value


def queue_name(value: str, what: str) -> str:
    """Checks the command of a queue that an operator looks at or configures: a user's, or the system's."""
    return value if value == WEBHOOKS else name(value, what)


def tenant(value: str) -> str:
    if not isinstance(value, str) or not _is_tenant(value):
        raise InvalidRequest(
            f"tenant must be 1 to 255 printable ASCII characters, without spaces at the ends, not {_shown(value)}"
        )
    return value


def integer(value: int, what: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidRequest(f"{what} must be a whole number from {least} to {most}, not {_shown(value)}")
    return value


def worker(value: str) -> str:
    return text(value, "worker", limits.WORKER_CHARS_MAX, least=1)


def is_worker_name(value: str) -> bool:
    return _WORKER_NAME.fullmatch(value) is not None


@lru_cache(maxsize=1024)
def worker_info(value: WorkerInfo) -> WorkerInfo:
    """Checks what a worker tells about itself: only its size and its characters, as nothing depends on it. Each claim
    of a worker tells the same, in at most 5 KB."""
    if not isinstance(value.name, str) or not is_worker_name(value.name):
        raise InvalidRequest("a worker's name is 1 to 100 letters, digits and '_.:@+-', such as host:pid")
    text(value.host, "host of the worker", limits.WORKER_TEXT_CHARS_MAX)
    text(value.version, "version of the worker", limits.WORKER_TEXT_CHARS_MAX)
    integer(value.pid, "process id of the worker", 0, (1 << 63) - 1)
    integer(value.slots, "slots of the worker", 0, limits.WORKER_SLOTS_MAX)
    if value.commands is not None:
        if len(value.commands) > limits.CLAIM_COMMANDS_MAX:
            raise InvalidRequest(f"a worker works on at most {limits.CLAIM_COMMANDS_MAX} commands")
        for command in value.commands:
            name(command, "command")
    return value


def request_id(value: str) -> str:
    return text(value, "request id", limits.REQUEST_ID_CHARS_MAX, least=1)


def lease_ms(value: int) -> int:
    return integer(value, "lease in milliseconds", limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)


def backoff(value: Backoff) -> Backoff:
    if not isinstance(value, Backoff):
        raise InvalidRequest(f"a backoff is made by codeq.fixed, linear or exponential, not {_shown(value)}")
    if value.kind not in list(BackoffKind):
        raise InvalidRequest(f"backoff must be one of {', '.join(BackoffKind)}")
    integer(value.base_ms, "backoff base in milliseconds", 0, limits.BACKOFF_MS_MAX)
    integer(value.max_ms, "backoff maximum in milliseconds", 0, limits.BACKOFF_MS_MAX)
    return value


def text(value: str, what: str, most: int, *, least: int = 0) -> str:
    """Checks a line of text: no control characters, which are not allowed in names, keys and headers."""
    is_fitting = isinstance(value, str) and least <= len(value) <= most
    if is_fitting and value.isascii() and value.isprintable():
        return value
    if not is_fitting or _CONTROL.search(value):
        raise InvalidRequest(f"{what} must be text of {least} to {most} characters without control characters")
    return _encodable(value, what)


def url(value: str, what: str) -> str:
    parse_url(value, what)
    return value


def message(value: str) -> str:
    """Returns an error's text, cut rather than refused: a long stack trace is no reason to lose a result."""
    if not isinstance(value, str):
        raise InvalidRequest(f"an error is text, not {_shown(value)}")
    return _encodable(value[: limits.ERROR_CHARS_MAX], "error")


@lru_cache(maxsize=4096)
def _is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None


@lru_cache(maxsize=4096)
def _is_tenant(value: str) -> bool:
    return _TENANT.fullmatch(value) is not None


def _shown(value: object) -> str:
    """Returns the beginning of the value for an error message; past 64 bits a number is only called too large."""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "one that is far too large"
    return repr(value)[:80]


def _encodable(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} holds half of a surrogate pair, which is not text") from None
    return value
