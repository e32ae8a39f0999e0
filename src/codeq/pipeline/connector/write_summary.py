"""Records what each write did: a line in the log, and a JSON record that programs can read.

Spark commits a write in a process of its own, so the record is a file: one for the last write of this user on this
machine, and with the option `summaryPath` a line of JSON for every write.
"""

import os
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from codeq.pipeline.client import log_line


class WriteSummary(Struct, frozen=True, kw_only=True):
    job: str
    """Identifies the job of a batch, or the query and batch of a stream."""
    batch: int | None = None
    """The batch number of a stream."""
    enqueued: int = 0
    deduplicated: int = 0
    """Rows whose idempotency key had been used before: by an earlier attempt of the same job, or by another write."""
    rejected: int = 0
    reasons: dict[str, int] = {}
    """The number of rejected rows by error code."""


def record(summary: WriteSummary, path: str | None) -> None:
    """Logs the summary, appends it to `path` if there is one, and keeps it as the last of this user."""
    kind = "job" if summary.batch is None else "batch"
    counts = f"{summary.enqueued} enqueued, {summary.deduplicated} deduplicated, {summary.rejected} rejected"
    log_line(f"{kind} {summary.job}: {counts}")
    line = msgspec.json.encode(summary)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("ab") as file:
            file.write(line + b"\n")
    last = _last_write_file()
    last.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = last.with_name(f".{last.name}-{os.getpid()}")
    temporary.write_bytes(line)
    temporary.replace(last)


def last_write_summary(path: str | os.PathLike[str] | None = None) -> WriteSummary:
    """Returns the summary of the last write with `path` as its `summaryPath`; without a path, of the last write of this
    user on this machine.
    """
    file = _last_write_file() if path is None else Path(path)
    try:
        *_, line = file.read_bytes().splitlines()
    except (OSError, ValueError):
        raise LookupError(f"there is no summary of a write in {file}") from None
    return msgspec.json.decode(line, type=WriteSummary)


def _last_write_file() -> Path:
    return Path(tempfile.gettempdir()) / f"codeq-{os.getuid()}" / "last-write.json"
