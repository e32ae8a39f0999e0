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
from codeq.sdk.jobs import Job, encode_json
from codeq.sdk.tracing import handling as tracing
from codeq.sdk.worker.running_job import RunningJob
from codeq.sdk.worker.running_job import handling as as_current

NULL = b"null"


class Retry(Exception):
    """Raise or return it to have the task tried again: after `delay` seconds, or after its backoff."""

    def __init__(self, delay: float | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry asked for")
        self.delay = delay


class Fail(Exception):
    """Raise or return it to end the task as FAILED for good: trying again would not help."""

    def __init__(self, error: str, result: Any = None) -> None:
        super().__init__(error)
        self.result = result


class Interrupted(BaseException):
    """Raised inside a handler whose work is not wanted any more. Not an Exception, so that `except Exception` lets it
    pass; clean up and let it go on."""


class Place(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


class End(StrEnum):
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    ABANDON = "abandon"
    DROP = "drop"
    """Nothing is told: the lease was lost, so nobody would listen."""


class Ended(Struct, gc=False, eq=False):
    """How a delivery ended, as the queue will be told."""

    job: Job
    end: End
    result: bytes | None = None
    error: str | None = None
    delay_ms: int | None = None
    is_last: bool = False


_COMPLETE, _FAIL, _RETRY = End.COMPLETE, End.FAIL, End.RETRY

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


def perform(handler: Handler, job: Job, report: "Callable[[Job, str], None] | None" = None) -> Ended:
    """Call the handler and wait for it. Interrupted goes through; every other error is the task's own."""
    try:
        running = RunningJob(job, report)
        with as_current(running), tracing(job):
            return value_of(handler, job, _call(handler, running)())
    except Exception as fault:  # noqa: BLE001 - the top of every handler: whatever it raises, the worker goes on
        return fault_of(handler, job, fault)
    except SystemExit as fault:
        return fault_of(handler, job, fault)


async def perform_async(handler: Handler, running: RunningJob) -> Ended:
    """As `perform`, for a coroutine function on the event loop. CancelledError goes through."""
    job = running.job
    try:
        with as_current(running), tracing(job):
            return value_of(handler, job, await _call(handler, running)())
    except (Exception, SystemExit) as fault:  # noqa: BLE001 - as above
        return fault_of(handler, job, fault)


def value_of(handler: Handler, job: Job, value: Any) -> Ended:
    if value is None:
        return Ended(job, _COMPLETE, NULL)
    if isinstance(value, (Retry, Fail)):
        return fault_of(handler, job, value)
    try:
        return Ended(job, _COMPLETE, encode_json(value))
    except InvalidRequest as fault:
        return Ended(job, _FAIL, error=f"the handler's return value {fault}")


def fault_of(handler: Handler, job: Job, fault: BaseException) -> Ended:
    if isinstance(fault, Fail):
        try:
            return Ended(job, _FAIL, encode_json(fault.result), error=str(fault) or "failed")
        except InvalidRequest:
            return Ended(job, _FAIL, error=str(fault) or "failed")
    is_last = handler.max_attempts is not None and job.attempt >= handler.max_attempts
    if isinstance(fault, Retry):
        delay_ms = None if fault.delay is None else max(0, round(fault.delay * 1000))
        return Ended(job, _RETRY, error=str(fault), delay_ms=delay_ms, is_last=is_last)
    delay_ms = handler.backoff.delay_ms(job.attempt, random.random) if handler.backoff else None
    return Ended(job, _RETRY, error=_told(fault), delay_ms=delay_ms, is_last=is_last)


def wants_job(function: Callable[..., Any]) -> bool:
    """Whether the handler takes the job besides the payload."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds]
    if not 1 <= len(given) <= 2:
        name = getattr(function, "__qualname__", repr(function))
        raise InvalidRequest(f"a handler takes the payload, and the job if it wants it; {name} does not")
    return len(given) == 2 and given[1].default is inspect.Parameter.empty


def _call(handler: Handler, running: RunningJob) -> Callable[[], Any]:
    function, payload = handler.function, running.payload
    call: Callable[[], Any] = partial(function, payload, running) if handler.wants_job else partial(function, payload)
    for middleware in reversed(handler.around):
        call = partial(middleware, running, call)
    return call


def _told(fault: BaseException) -> str:
    """The error in one line, and where it came from."""
    where = traceback.extract_tb(fault.__traceback__)
    last = f" (at {where[-1].filename.rsplit('/', 1)[-1]}:{where[-1].lineno} in {where[-1].name})" if where else ""
    return f"{type(fault).__name__}: {fault}"[:1500] + last
