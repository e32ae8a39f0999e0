"""Times as text: RFC 3339 in UTC, to the millisecond."""

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=4096)
def text(unix_ms: int) -> str:
    """Returns the time as text. Cached, because tasks that are shown together have mostly the same few times."""
    seconds, ms = divmod(unix_ms, 1000)
    return f"{_to_the_second(seconds)}.{ms:03d}Z"


def optional(unix_ms: int) -> str | None:
    """Returns the time as text; None for 0, which stands for a time that does not apply."""
    return text(unix_ms) if unix_ms else None


def parse(value: str) -> int:
    """Returns Unix milliseconds. Raises ValueError unless the text is RFC 3339 with an offset."""
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None or len(value) < 20 or value[10] not in "Tt ":
        raise ValueError("not an RFC 3339 time with an offset, such as 2026-01-31T12:00:00Z")
    return round(moment.astimezone(UTC).timestamp() * 1000)  # which refuses what has no UTC time in the years 1 to 9999


@lru_cache(maxsize=1024)
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
