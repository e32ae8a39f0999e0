"""A function that is registered for a command, with the options of its registration."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from codeq.domain.backoff import Backoff
from codeq.sdk.signature import TaskSignature
from codeq.sdk.worker.options import ErrorRules
from codeq.sdk.worker.running_job import RunningJob

Middleware = Callable[[RunningJob, Callable[[], Any]], Any]


class PoolKind(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


class Batching(Struct, frozen=True):
    """How tasks are collected for a handler that takes many at once."""

    size: int
    wait_s: float


class Handler(Struct, frozen=True, kw_only=True):
    command: str
    function: Callable[..., Any]
    signature: TaskSignature
    pool: PoolKind
    lease_ms: int
    timeout_s: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    errors: ErrorRules = ErrorRules()
    middleware: Sequence[Middleware] = ()
    batching: Batching | None = None
    pool_name: str
    """Handlers with the same one share a pool, and one that takes batches has its own. Kept, because it is read several
    times per job, and the value of an enum is slow to read."""
