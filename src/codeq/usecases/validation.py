"""Whether a value that came from outside keeps to the limits. Each check answers the value or raises InvalidRequest."""

import re
from functools import lru_cache
from urllib.parse import urlsplit

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import (
    BACKOFF_MS_MAX,
    ERROR_CHARS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    NAME_PATTERN,
    WEBHOOK_CHARS_MAX,
    WORKER_CHARS_MAX,
)

_NAME = re.compile(NAME_PATTERN)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


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
