"""One delivery, from calling the handler to what the queue is told: the same in threads, processes and on the loop."""

import inspect
import random
import traceback
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

from msgspec import Struct

from codeq.domain.backoff import Backoff
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import BACKOFF_MS_MAX, ERROR_CHARS_MAX, RESULT_BYTES_MAX
from codeq.sdk.durations import Seconds, milliseconds
from codeq.sdk.jobs import Job, encode_json
from codeq.sdk.tracing import job_span as tracing
from codeq.sdk.worker.running_job import RunningJob
from codeq.sdk.worker.running_job import handling as as_current

NULL = b"null"


class Retry(Exception):
    """Raise or return it to have the task tried again: after `delay` seconds, or after its backoff."""

    def __init__(self, delay: Seconds | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry asked for")
        self.delay_ms = None if delay is None else milliseconds(delay)
        if self.delay_ms is not None and not 0 <= self.delay_ms <= BACKOFF_MS_MAX:
            raise InvalidRequest(f"a retry is 0 s to {BACKOFF_MS_MAX // 3_600_000} h later, not {delay}")


class Fail(Exception):
    """Raise or return it to end the task as FAILED for good: trying again would not help."""

    def __init__(self, error: str, result: Any = None) -> None:
        super().__init__(error)
        self.result = result


class Interrupted(BaseException):
    """Raised inside a handler whose work is not wanted any more. Not an Exception, so that `except Exception` lets it
    pass; clean up and let it go on."""


class TimedOut(Exception):
    """The handler took longer than it may."""


class Place(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


class OutcomeKind(StrEnum):
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    ABANDON = "abandon"
    DROP = "drop"
    """Nothing is told: the lease was lost, so nobody would listen."""


class JobOutcome(Struct, gc=False, eq=False):
    """How a delivery ended, as the queue will be told."""

    job: Job
    end: OutcomeKind
    result: bytes | None = None
    error: str | None = None
    delay_ms: int | None = None
    is_last: bool = False


_COMPLETE, _FAIL, _RETRY = OutcomeKind.COMPLETE, OutcomeKind.FAIL, OutcomeKind.RETRY

Middleware = Callable[[RunningJob, Callable[[], Any]], Any]


class Handler(Struct, frozen=True, kw_only=True):
    command: str
    function: Callable[..., Any]
    place: Place
    lease_ms: int
    timeout_s: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    wants_job: bool = False
    around: Sequence[Middleware] = ()


class InFlightJob(Struct, gc=False, eq=False):
    """A job between its claim and the moment its handler is done with it."""

    job: Job
    handler: Handler
    is_settled: bool = False
    """What becomes of it has been decided without the handler: it took too long, or the lease was lost. A handler that
    has not begun by then never does."""
    settled_s: float = 0.0
    progress: str = ""
    """What the queue was told last, and when."""
    progress_s: float = 0.0


def run_handler(handler: Handler, running: RunningJob) -> JobOutcome:
    """Call the handler and wait for it. Interrupted goes through; every other error is the task's own."""
    job = running.job
    try:
        with as_current(running), tracing(job):
            return value_of(handler, job, _call(handler, running)())
    except Interrupted:
        raise
    except BaseException as fault:  # noqa: BLE001 - the top of every handler: whatever it raises, the worker goes on
        return fault_of(handler, job, fault)


async def run_handler_async(handler: Handler, running: RunningJob) -> JobOutcome:
    """As `run_handler`, for a coroutine function on the event loop. A CancelledError that ends the job goes through."""
    job = running.job
    try:
        with as_current(running), tracing(job):
            return value_of(handler, job, await _call(handler, running)())
    except BaseException as fault:
        if running.is_cancelled or isinstance(fault, GeneratorExit):
            raise
        return fault_of(handler, job, fault)


def value_of(handler: Handler, job: Job, value: Any) -> JobOutcome:
    if value is None:
        return JobOutcome(job, _COMPLETE, NULL)
    if isinstance(value, (Retry, Fail)):
        return fault_of(handler, job, value)
    try:
        return JobOutcome(job, _COMPLETE, _result(value))
    except InvalidRequest as fault:
        if inspect.iscoroutine(value):
            value.close()
        return JobOutcome(job, _FAIL, error=_line(f"the handler's return value {fault}"))


def fault_of(handler: Handler, job: Job, fault: BaseException) -> JobOutcome:
    if isinstance(fault, Fail):
        error = _line(_said(fault)) or "failed"
        try:
            return JobOutcome(job, _FAIL, _result(fault.result), error=error)
        except InvalidRequest:
            return JobOutcome(job, _FAIL, error=error)
    is_last = handler.max_attempts is not None and job.attempt >= handler.max_attempts
    if isinstance(fault, Retry) and fault.delay_ms is not None:
        return JobOutcome(job, _RETRY, error=_line(_said(fault)), delay_ms=fault.delay_ms, is_last=is_last)
    delay_ms = handler.backoff.delay_ms(job.attempt, random.random) if handler.backoff else None
    error = _line(_said(fault)) if isinstance(fault, Retry) else _told(fault)
    return JobOutcome(job, _RETRY, error=error, delay_ms=delay_ms, is_last=is_last)


def wants_job(function: Callable[..., Any]) -> bool:
    """Whether the handler takes the job besides the payload."""
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidRequest(f"a handler returns its result; {name} yields")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as fault:
        raise InvalidRequest(f"a handler is a function whose parameters can be read; {name} is not: {fault}") from None
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if not 1 <= len(by_place) <= 2 or needed:
        raise InvalidRequest(f"a handler takes the payload, and the job if it wants it; {name} does not")
    return len(by_place) == 2 and by_place[1].default is inspect.Parameter.empty


def _call(handler: Handler, running: RunningJob) -> Callable[[], Any]:
    function, payload = handler.function, running.payload
    call: Callable[[], Any] = partial(function, payload, running) if handler.wants_job else partial(function, payload)
    for middleware in reversed(handler.around):
        call = partial(middleware, running, call)
    return call


def _result(value: Any) -> bytes:
    result = encode_json(value)
    if len(result) > RESULT_BYTES_MAX:
        raise InvalidRequest(f"is larger than {RESULT_BYTES_MAX} bytes as JSON: {len(result)}")
    return result


def _told(fault: BaseException) -> str:
    """The error in one line, and where it came from."""
    where = traceback.extract_tb(fault.__traceback__, limit=-1)
    last = f" (at {where[-1].filename.rsplit('/', 1)[-1]}:{where[-1].lineno} in {where[-1].name})" if where else ""
    return _line(f"{type(fault).__name__}: {_said(fault)}"[: ERROR_CHARS_MAX - 500] + last)


def _said(fault: BaseException) -> str:
    try:
        return str(fault)
    except Exception:  # noqa: BLE001 - an error that cannot even say what it is must not become a second one
        return "(it cannot say what is wrong)"


def _line(text: str) -> str:
    """As the queue takes it: names of files may hold what is not text."""
    return text[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()
