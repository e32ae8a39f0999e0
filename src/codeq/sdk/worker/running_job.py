"""The job as its handler sees it: what to do, how far it is, whether it is still wanted."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from codeq.domain.limits import PROGRESS_CHARS_MAX
from codeq.sdk.jobs import Job

_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f]+")
_NOT_READ: Any = object()
_current: "ContextVar[RunningJob | None]" = ContextVar("codeq_job", default=None)


class RunningJob:
    """A handler that takes a second argument gets this one; others find it with `codeq.current_job()`.

    It has `id`, `command`, `payload`, `attempt` (1 for the first try) and `max_attempts`.
    """

    __slots__ = ("_payload", "_report", "attempt", "command", "id", "is_cancelled", "job", "max_attempts")

    def __init__(self, job: Job, report: "Callable[[Job, str], None] | None" = None) -> None:
        self.job = job
        self.id = job.id
        self.command = job.command
        self.attempt = job.attempt
        self.max_attempts = job.max_attempts
        self._payload = _NOT_READ
        self.is_cancelled = False
        """The lease was lost or the task was cancelled: whatever comes of the work will be refused."""
        self._report = report

    @property
    def payload(self) -> Any:
        """What the producer sent."""
        if self._payload is _NOT_READ:
            self._payload = msgspec.json.decode(self.job.raw)
        return self._payload

    @property
    def log(self) -> logging.Logger:
        """A logger for the command. The records of any logger say `codeq_task_id` and `codeq_command`."""
        return logging.getLogger(f"codeq.task.{self.command}")

    def progress(self, fraction: float | None = None, note: str = "") -> None:
        """Say how far the work is: shown with the task wherever it is looked at."""
        share = "" if fraction is None else f"{min(max(fraction, 0.0), 1.0):.0%}"
        if self._report is not None:
            text = _NOT_SHOWN.sub(" ", f"{share} {note}").strip()[:PROGRESS_CHARS_MAX]
            self._report(self.job, text.encode("utf-8", "replace").decode())

    def __repr__(self) -> str:
        return f"RunningJob({self.command} {self.id} attempt={self.attempt})"


def current_job() -> RunningJob:
    """The job that the calling handler works on. Raises LookupError outside of a handler."""
    job = _current.get()
    if job is None:
        raise LookupError("no job is being handled here")
    return job


@contextmanager
def handling(job: RunningJob) -> Iterator[None]:
    before = _current.set(job)
    try:
        yield
    finally:
        _current.reset(before)


def name_tasks_in_logs() -> None:
    """From now on every log record says `codeq_task_id` and `codeq_command`, empty outside of a handler.

    Plainer names would clash with what programs pass as `extra`, and logging refuses such a clash with an error."""
    make = logging.getLogRecordFactory()
    if getattr(make, "names_tasks", False):
        return

    def with_task(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        job = _current.get()
        record.codeq_task_id = job.id if job else ""
        record.codeq_command = job.command if job else ""
        return record

    with_task.names_tasks = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(with_task)
