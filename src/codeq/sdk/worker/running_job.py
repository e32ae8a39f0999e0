"""The job as its handler sees it: its payload, a way to report progress, and whether it was cancelled."""

import inspect
import logging
import os
import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import msgspec
from msgspec import Struct

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import PROGRESS_CHARS_MAX
from codeq.sdk.jobs import Job

_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f]+")
_NOT_READ: Any = object()
_current: "ContextVar[RunningJob | None]" = ContextVar("codeq_job", default=None)


class AttachedFile(Struct, frozen=True, kw_only=True):
    """A file that a handler attaches to its job."""

    name: str
    content: bytes | None
    path: str | None
    """Of the file, where the content is not given."""
    content_type: str | None


class RunningJob:
    """The second argument of a handler that takes one; other handlers get it from `codeq.current_job()`."""

    __slots__ = ("_attach", "_payload", "_report", "is_cancelled", "job")

    def __init__(
        self,
        job: Job,
        report: "Callable[[str, str], None] | None" = None,
        attach: "Callable[[AttachedFile], Any] | None" = None,
    ) -> None:
        """`attach` uploads a file: a coroutine function for handlers on the event loop, else a function that blocks."""
        self.job = job
        self._payload = _NOT_READ
        self.is_cancelled = False
        """The lease was lost or the task was cancelled: the result will be refused."""
        self._report = report
        self._attach = attach

    @property
    def id(self) -> str:
        """Of the task."""
        return self.job.id

    @property
    def command(self) -> str:
        """Of the task."""
        return self.job.command

    @property
    def attempt(self) -> int:
        """1 for the first try."""
        return self.job.attempt

    @property
    def max_attempts(self) -> int:
        """How many tries the task has."""
        return self.job.max_attempts

    @property
    def payload(self) -> Any:
        """What the producer sent."""
        if self._payload is _NOT_READ:
            self._payload = msgspec.json.decode(self.job.raw)
        return self._payload

    @property
    def log(self) -> logging.Logger:
        """A logger for the command. Records of every logger have `codeq_task_id` and `codeq_command`."""
        return logging.getLogger(f"codeq.task.{self.command}")

    def progress(self, fraction: float | None = None, note: str = "") -> None:
        """Reports how far the work is; the API and `codeq task show` show it with the task."""
        percent = "" if fraction is None else f"{min(max(fraction, 0.0), 1.0):.0%}"
        if self._report is not None:
            text = _NOT_SHOWN.sub(" ", f"{percent} {note}").strip()[:PROGRESS_CHARS_MAX]
            self._report(self.job.key, text.encode("utf-8", "replace").decode())

    def attach(self, name: str, content: "bytes | str | os.PathLike[str]", *, content_type: str | None = None) -> None:
        """Uploads a file that belongs to the result: bytes, or the path of a file. It becomes visible with the result.
        Async handlers await `attach_async`."""
        if self._attach is None or inspect.iscoroutinefunction(self._attach):
            raise InvalidRequest("an async handler attaches files with `await job.attach_async(...)`")
        self._attach(_attached_file(name, content, content_type))

    async def attach_async(
        self, name: str, content: "bytes | str | os.PathLike[str]", *, content_type: str | None = None
    ) -> None:
        """As `attach`, for async handlers."""
        if self._attach is None or not inspect.iscoroutinefunction(self._attach):
            raise InvalidRequest("a handler that is not async attaches files with `job.attach(...)`")
        await self._attach(_attached_file(name, content, content_type))

    def __repr__(self) -> str:
        return f"RunningJob({self.command} {self.id} attempt={self.attempt})"


def _attached_file(name: str, content: "bytes | str | os.PathLike[str]", content_type: str | None) -> AttachedFile:
    if isinstance(content, (bytes, bytearray, memoryview)):
        return AttachedFile(name=name, content=bytes(content), path=None, content_type=content_type)
    if isinstance(content, (str, os.PathLike)):
        return AttachedFile(name=name, content=None, path=os.path.abspath(content), content_type=content_type)
    raise InvalidRequest(f"an artifact is bytes or the path of a file, not {type(content).__name__}")


def current_job() -> RunningJob:
    """The job of the calling handler. Raises LookupError outside of a handler."""
    job = _current.get()
    if job is None:
        raise LookupError("no job is being handled here")
    return job


class as_current:  # noqa: N801 - reads as a function; made of one it would cost four times as much per job
    """Makes the job the current one of this thread or coroutine."""

    __slots__ = ("_before", "_job")

    def __init__(self, job: RunningJob) -> None:
        self._job = job

    def __enter__(self) -> None:
        self._before = _current.set(self._job)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._before)


def name_tasks_in_logs() -> None:
    """Adds `codeq_task_id` and `codeq_command` to every log record from now on, empty outside of a handler.

    Shorter names could clash with the `extra` of programs, which makes logging raise an error."""
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
