"""A function that is registered for a command, with the options of its registration."""

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from codeq.domain.backoff import Backoff
from codeq.domain.errors import InvalidRequest
from codeq.sdk.worker.running_job import RunningJob

Middleware = Callable[[RunningJob, Callable[[], Any]], Any]


class PoolKind(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


class Handler(Struct, frozen=True, kw_only=True):
    command: str
    function: Callable[..., Any]
    pool: PoolKind
    lease_ms: int
    timeout_s: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    wants_job: bool = False
    middleware: Sequence[Middleware] = ()


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def wants_job(function: Callable[..., Any]) -> bool:
    """Whether the function takes the job as a second argument. Raises InvalidRequest if it cannot be a handler."""
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidRequest(f"a handler returns its result; {name} yields")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as fault:
        raise InvalidRequest(f"a handler is a function whose parameters can be read; {name} is not: {fault}") from None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required_keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if not 1 <= len(positional) <= 2 or required_keywords:
        raise InvalidRequest(f"a handler takes the payload, and optionally the job; {name} does not")
    return len(positional) == 2 and positional[1].default is inspect.Parameter.empty
