"""Calls the handler of a job and turns what it returns or raises into an outcome: the same in every pool."""

import contextlib
import inspect
import os
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import ERROR_CHARS_MAX, RESULT_BYTES_MAX, TRACEBACK_CHARS_MAX
from codeq.sdk.durations import milliseconds
from codeq.sdk.jobs import Job
from codeq.sdk.json_encoding import encode_json
from codeq.sdk.tracing import job_span
from codeq.sdk.worker.handler import Handler
from codeq.sdk.worker.outcomes import (
    ASKED_FOR,
    RETURNED_NONE,
    Bury,
    Crash,
    Fail,
    Interrupted,
    JobOutcome,
    OutcomeKind,
    Retry,
    Snooze,
)
from codeq.sdk.worker.running_job import RunningJob, as_current

_OWN_FILES = ("codeq/sdk/worker/execution.py", "codeq/sdk/signature.py")


def run_handler(handler: Handler, running: RunningJob) -> JobOutcome:
    """Calls the handler and waits for it. Interrupted passes through; every other error is an outcome of the job."""
    process = os.getpid()
    try:
        with as_current(running), job_span(running.job):
            value = _call(handler, running)()
            _end_if_forked(process)
            return outcome_of_value(handler, running.job, value)
    except Interrupted:
        raise
    except BaseException as fault:  # noqa: BLE001 - the top of every handler: no error of its may end the worker
        _end_if_forked(process, fault)
        return outcome_of_error(handler, running.job, fault)


async def run_handler_async(handler: Handler, running: RunningJob) -> JobOutcome:
    """As `run_handler`, for a coroutine function. The CancelledError of an interrupted job passes through."""
    process = os.getpid()
    try:
        with as_current(running), job_span(running.job):
            value = await _call(handler, running)()
            _end_if_forked(process)
            return outcome_of_value(handler, running.job, value)
    except BaseException as fault:
        _end_if_forked(process, fault)
        if running.is_cancelled or isinstance(fault, GeneratorExit):
            raise
        return outcome_of_error(handler, running.job, fault)


def _end_if_forked(process: int, fault: BaseException | None = None) -> None:
    """Ends a process that the handler has forked, as `sys.exit` or its error would. It must not report the job, which
    is its parent's, nor go on as a second worker with the same connections."""
    if os.getpid() == process:
        return
    code = 0
    if isinstance(fault, SystemExit) and (fault.code is None or isinstance(fault.code, int)):
        code = fault.code or 0
    elif fault is not None:
        code = 1
        with contextlib.suppress(Exception):
            traceback.print_exception(fault)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()
    os._exit(code & 0xFF)


def outcome_of_error(handler: Handler, job: Job, fault: BaseException) -> JobOutcome:
    if isinstance(fault, Fail):
        return _failed(_line(_text_of(fault)) or "failed", fault.result)
    if isinstance(fault, Snooze):
        return JobOutcome(OutcomeKind.ABANDON, delay_ms=milliseconds(fault.delay))
    if isinstance(fault, Bury):
        return JobOutcome(OutcomeKind.RETRY, error=_line(_text_of(fault)) or "buried", is_last=True)
    rules = handler.errors
    is_asked_for = isinstance(fault, Retry)
    error = _line(_text_of(fault)) if is_asked_for else described(fault)
    if not is_asked_for and rules.fails(fault):
        return _failed(error, None)
    is_last = handler.max_attempts is not None and job.attempt >= handler.max_attempts
    if not is_asked_for and not isinstance(fault, Crash) and not rules.retries(fault):
        is_last = True
    delay_ms = milliseconds(fault.delay) if isinstance(fault, Retry) and fault.delay is not None else None
    backoff = rules.backoff(fault) or handler.backoff
    if delay_ms is None and backoff is not None:
        delay_ms = backoff.delay_ms(job.attempt, random.random)
    return JobOutcome(OutcomeKind.RETRY, error=error, delay_ms=delay_ms, is_last=is_last)


def outcome_of_value(handler: Handler, job: Job, value: Any) -> JobOutcome:
    if value is None:
        return RETURNED_NONE
    if isinstance(value, ASKED_FOR):
        return outcome_of_error(handler, job, value)
    try:
        return JobOutcome(OutcomeKind.COMPLETE, _encoded(value))
    except InvalidRequest as fault:
        if inspect.iscoroutine(value):
            value.close()
        # The work may be done, and its task can be replayed once the handler is mended.
        return JobOutcome(OutcomeKind.RETRY, error=_line(f"the handler's return value {fault}"), is_last=True)


def outcomes_of_values(handler: Handler, jobs: Sequence[Job], values: Any) -> list[JobOutcome]:
    """Of a handler that takes many jobs at once: it returns a value for each of them, or None for all."""
    if values is None:
        return [RETURNED_NONE] * len(jobs)
    if isinstance(values, ASKED_FOR):
        return [outcome_of_error(handler, job, values) for job in jobs]
    if not isinstance(values, (list, tuple)) or len(values) != len(jobs):
        text = f"{len(values)} of them" if isinstance(values, (list, tuple)) else type(values).__name__
        fault = Bury(
            f"a handler of batches returns None, or a list with a result for each of {len(jobs)} tasks; not {text}"
        )
        return [outcome_of_error(handler, job, fault) for job in jobs]
    return [outcome_of_value(handler, job, value) for job, value in zip(jobs, values, strict=True)]


def _call(handler: Handler, running: RunningJob) -> Callable[[], Any]:
    signature = handler.signature
    args, kwargs = signature.decode(running.job.raw)
    if signature.job_name is not None:
        kwargs = {**kwargs, signature.job_name: running}
    call: Callable[[], Any] = partial(handler.function, *args, **kwargs)
    return wrapped(handler, running, call) if handler.middleware else call


def wrapped(handler: Handler, running: RunningJob, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call inside the middleware of the worker."""
    for middleware in reversed(handler.middleware):
        call = partial(middleware, running, call)
    return call


def _failed(error: str, result: Any) -> JobOutcome:
    try:
        return JobOutcome(OutcomeKind.FAIL, _encoded(result), error=error)
    except InvalidRequest:
        return JobOutcome(OutcomeKind.FAIL, error=error)


def _encoded(result: Any) -> bytes:
    encoded = encode_json(result)
    if len(encoded) > RESULT_BYTES_MAX:
        raise InvalidRequest(f"is larger than {RESULT_BYTES_MAX} bytes as JSON: {len(encoded)}")
    return encoded


def described(fault: BaseException) -> str:
    """The error in one line, with the place where it was raised, followed by the end of its traceback."""
    frames = _frames(traceback.extract_tb(fault.__traceback__))
    place = f" (at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    text = " ".join(_text_of(fault).splitlines())
    line = f"{type(fault).__name__}: {text}"[: ERROR_CHARS_MAX - 500] + place
    return _line(f"{line}\n{_traceback(fault, min(TRACEBACK_CHARS_MAX, ERROR_CHARS_MAX - len(line) - 1))}".rstrip())


def _traceback(fault: BaseException, chars_max: int) -> str:
    """The end of the traceback, without frames of the worker: there is the place that raised the error."""
    if not _frames(traceback.extract_tb(fault.__traceback__)):
        return ""
    try:
        told = traceback.TracebackException.from_exception(fault)
        told.stack = traceback.StackSummary.from_list(_frames(told.stack))
        text = "".join(told.format()).rstrip()
    except Exception:  # noqa: BLE001 - an error that cannot be shown must not become a second error
        return ""
    if len(text) <= chars_max:
        return text
    cut = text[len(text) - chars_max + 4 :]
    return f"...\n{cut.partition(chr(10))[2] or cut}" if chars_max > 4 else ""


def _frames(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Those of the program."""
    return [frame for frame in stack if not frame.filename.endswith(_OWN_FILES)]


def _text_of(fault: BaseException) -> str:
    try:
        return str(fault)
    except Exception:  # noqa: BLE001 - an error whose `__str__` fails must not become a second error
        return "(error text unavailable)"


def _line(text: str) -> str:
    """The text as the queue accepts it: names of files may hold bytes that are not text."""
    return text[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()
