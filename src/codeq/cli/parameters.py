"""What people write on a command line: durations, moments, JSON; and what is said when it cannot be read."""

import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from codeq.cli.errors import Misuse

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")
_SECONDS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration(text: Any) -> float:
    """Seconds, from `90`, `1.5s`, `10m`, `2h` or `7d`."""
    found = _DURATION.fullmatch(str(text).strip())
    if not found:
        raise typer.BadParameter(f"a duration is a number, with ms, s, m, h or d if it is not seconds; not {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def moment(text: Any) -> datetime:
    """A moment, from RFC 3339 with an offset."""
    from codeq.wire import times

    try:
        times.parse(str(text))
        return datetime.fromisoformat(str(text))
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"a moment is like 2026-01-31T12:00:00Z, not {text!r}") from None


Duration = Annotated[float, typer.Option(parser=duration, metavar="DURATION")]


def json_text(text: str | bytes, what: str) -> bytes:
    """The JSON as it was written, once it is known to be JSON."""
    written = text.encode() if isinstance(text, str) else text
    try:
        msgspec.json.decode(written)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise Misuse(f"the {what} is not JSON: {fault} (a text is written as '\"text\"')") from None
    return written.strip()


def json_argument(given: str | None, file: Path | None, what: str) -> "msgspec.Raw | None":
    """JSON from the command line, from a file, or from standard input for `-`; None if there is none."""
    if given is not None and file is not None:
        raise Misuse(f"the {what} is given twice: on the command line and as a file")
    if given == "-" or (file is not None and str(file) == "-"):
        return msgspec.Raw(json_text(sys.stdin.buffer.read(), what))
    if file is not None:
        return msgspec.Raw(json_text(file.read_bytes(), what))
    return None if given is None else msgspec.Raw(json_text(given, what))
