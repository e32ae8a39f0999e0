"""What a write did: a line for people, and a record for programs.

Spark commits a write in a process of its own, so the record is a file: the last one of this user on this machine, and
every one in `summaryPath` where that option is given, a line of JSON each.
"""

import os
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from codeq.pipeline.client import say


class Summary(Struct, frozen=True, kw_only=True):
    job: str
    """Names the job of a batch, or the query and batch of a stream."""
    batch: int | None = None
    """The number of a stream's batch."""
    enqueued: int = 0
    deduplicated: int = 0
    """Rows whose idempotency key had been used: by an earlier try of the same job, or by whoever chose the key."""
    rejected: int = 0
    reasons: dict[str, int] = {}
    """How many rows were rejected for what, by code."""


def record(summary: Summary, path: str | None) -> None:
    which = "job" if summary.batch is None else "batch"
    counts = f"{summary.enqueued} enqueued, {summary.deduplicated} deduplicated, {summary.rejected} rejected"
    say(f"{which} {summary.job}: {counts}")
    line = msgspec.json.encode(summary)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("ab") as file:
            file.write(line + b"\n")
    last = _last()
    last.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    half = last.with_name(f".{last.name}-{os.getpid()}")
    half.write_bytes(line)
    half.replace(last)


def last_write_summary(path: str | os.PathLike[str] | None = None) -> Summary:
    """Of the last write in `path`, which was its `summaryPath`; else of the last one of this user on this machine."""
    where = _last() if path is None else Path(path)
    try:
        *_, line = where.read_bytes().splitlines()
    except (OSError, ValueError):
        raise LookupError(f"nothing was written yet: there is no {where}") from None
    return msgspec.json.decode(line, type=Summary)


def _last() -> Path:
    return Path(tempfile.gettempdir()) / f"codeq-{os.getuid()}" / "last-write.json"
