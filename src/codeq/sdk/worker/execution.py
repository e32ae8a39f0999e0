"""Calls the handler of a job and turns what it returns or raises into an outcome: the same in every pool."""

import inspect
import random
import traceback
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any

from msgspec import Struct

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import BACKOFF_MS_MAX, ERROR_CHARS_MAX, RESULT_BYTES_MAX
from codeq.sdk.durations import Seconds, milliseconds
from codeq.sdk.jobs import Job, encode_json
from codeq.sdk.tracing import job_span
from codeq.sdk.worker.handler import Handler
from codeq.sdk.worker.running_job import RunningJob, as_current


class Retry(Exception):
    """Raised or returned by a handler to have the task tried again: after `delay` seconds, or after its backoff."""

    def __init__(self, delay: Seconds | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry requested")
        self.delay_ms = None if delay is None else milliseconds(delay)
        if self.delay_ms is not None and not 0 <= self.delay_ms <= BACKOFF_MS_MAX:
            raise InvalidRequest(f"a retry is 0 s to {BACKOFF_MS_MAX // 3_600_000} h later, not {delay}")


class Fail(Exception):
    """Raised or returned by a handler to end the task as FAILED, without another try."""

    def __init__(self, error: str, result: Any = None) -> None:
        super().__init__(error)
        self.result = result


class Interrupted(BaseException):
    """Raised inside a handler whose result is no longer needed. It is not an Exception, so that `except Exception` does
    not catch it; clean up and let it pass."""


class TimedOut(Exception):
    """The handler ran longer than its timeout."""


class OutcomeKind(StrEnum):
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    ABANDON = "abandon"
    DROP = "drop"
    """Nothing is reported: the lease was lost, so the report would be refused."""


class JobOutcome(Struct, frozen=True, array_like=True, gc=False):
    """How a delivery ended. Beyond the domain's `Outcome` it can be a retry or an abandon, which are not results."""

    kind: OutcomeKind
    result: bytes | None = None
    error: str | None = None
    delay_ms: int | None = None
    is_last: bool = False
    """A retry that goes to the dead-letter queue, because the handler allows no more attempts."""


ABANDONED = JobOutcome(OutcomeKind.ABANDON)
DROPPED = JobOutcome(OutcomeKind.DROP)
_RETURNED_NONE = JobOutcome(OutcomeKind.COMPLETE, b"null")


def run_handler(handler: Handler, running: RunningJob) -> JobOutcome:
    """Calls the handler and waits for it. Interrupted passes through; every other error is an outcome of the job."""
    try:
        with as_current(running), job_span(running.job):
            return _outcome_of_value(handler, running.job, _call(handler, running)())
    except Interrupted:
        raise
    except BaseException as fault:  # noqa: BLE001 - the top of every handler: no error of its may end the worker
        return outcome_of_error(handler, running.job, fault)


async def run_handler_async(handler: Handler, running: RunningJob) -> JobOutcome:
    """As `run_handler`, for a coroutine function. The CancelledError of an interrupted job passes through."""
    try:
        with as_current(running), job_span(running.job):
            return _outcome_of_value(handler, running.job, await _call(handler, running)())
    except BaseException as fault:
        if running.is_cancelled or isinstance(fault, GeneratorExit):
            raise
        return outcome_of_error(handler, running.job, fault)


def outcome_of_error(handler: Handler, job: Job, fault: BaseException) -> JobOutcome:
    if isinstance(fault, Fail):
        error = _line(_text_of(fault)) or "failed"
        try:
            return JobOutcome(OutcomeKind.FAIL, _encoded(fault.result), error=error)
        except InvalidRequest:
            return JobOutcome(OutcomeKind.FAIL, error=error)
    is_last = handler.max_attempts is not None and job.attempt >= handler.max_attempts
    delay_ms = fault.delay_ms if isinstance(fault, Retry) else None
    if delay_ms is None and handler.backoff is not None:
        delay_ms = handler.backoff.delay_ms(job.attempt, random.random)
    error = _line(_text_of(fault)) if isinstance(fault, Retry) else _described(fault)
    return JobOutcome(OutcomeKind.RETRY, error=error, delay_ms=delay_ms, is_last=is_last)


def _outcome_of_value(handler: Handler, job: Job, value: Any) -> JobOutcome:
    if value is None:
        return _RETURNED_NONE
    if isinstance(value, (Retry, Fail)):
        return outcome_of_error(handler, job, value)
    try:
        return JobOutcome(OutcomeKind.COMPLETE, _encoded(value))
    except InvalidRequest as fault:
        if inspect.iscoroutine(value):
            value.close()
        return JobOutcome(OutcomeKind.FAIL, error=_line(f"the handler's return value {fault}"))


def _call(handler: Handler, running: RunningJob) -> Callable[[], Any]:
    function, payload = handler.function, running.payload
    call: Callable[[], Any] = partial(function, payload, running) if handler.wants_job else partial(function, payload)
    for middleware in reversed(handler.middleware):
        call = partial(middleware, running, call)
    return call


def _encoded(result: Any) -> bytes:
    encoded = encode_json(result)
    if len(encoded) > RESULT_BYTES_MAX:
        raise InvalidRequest(f"is larger than {RESULT_BYTES_MAX} bytes as JSON: {len(encoded)}")
    return encoded


def _described(fault: BaseException) -> str:
    """The error in one line, with the place where it was raised."""
    frames = traceback.extract_tb(fault.__traceback__, limit=-1)
    place = f" (at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return _line(f"{type(fault).__name__}: {_text_of(fault)}"[: ERROR_CHARS_MAX - 500] + place)


def _text_of(fault: BaseException) -> str:
    try:
        return str(fault)
    except Exception:  # noqa: BLE001 - an error whose `__str__` fails must not become a second error
        return "(error text unavailable)"


def _line(text: str) -> str:
    """The text as the queue accepts it: names of files may hold bytes that are not text."""
    return text[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()
