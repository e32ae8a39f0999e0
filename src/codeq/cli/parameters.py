"""Parses durations, timestamps and JSON given on the command line."""

import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import typer

from codeq.cli.errors import UsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")
_SECONDS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration(text: Any) -> float:
    """Seconds, from `90`, `1.5s`, `10m`, `2h` or `7d`."""
    found = _DURATION.fullmatch(str(text).strip())
    if not found:
        raise typer.BadParameter(f"a duration is a number of seconds, or ends in ms, s, m, h or d; not {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def timestamp(text: Any) -> datetime:
    """A time, from RFC 3339 with an offset."""
    from codeq.wire import times

    try:
        times.parse(str(text))
        return datetime.fromisoformat(str(text))
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"a time is written as 2026-01-31T12:00:00Z, not {text!r}") from None


def json_argument(given: str | None, file: Path | None, what: str) -> msgspec.Raw | None:
    """JSON from the command line, from a file, or from standard input for `-`; None if neither is given."""
    if given is not None and file is not None:
        raise UsageError(f"the {what} is given twice: on the command line and as a file")
    if given == "-" or (file is not None and str(file) == "-"):
        return _raw_json(sys.stdin.buffer.read(), what)
    if file is not None:
        return _raw_json(file.read_bytes(), what)
    return None if given is None else _raw_json(given.encode(), what)


def _raw_json(text: bytes, what: str) -> msgspec.Raw:
    """The JSON as it was written, checked."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise UsageError(f"the {what} is not JSON: {fault} (a text is written as '\"text\"')") from None
    return msgspec.Raw(text.strip())
