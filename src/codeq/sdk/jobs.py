"""What callers get: a job that was claimed, a task that was kept, how a queue stands."""

from typing import Any, Self

import msgspec
from msgspec import Struct

from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.task import Holder, Task


class Job(Struct, gc=False, eq=False):
    """A task that was claimed: what to do, and the lease under which to do it."""

    id: str
    command: str
    raw: bytes
    """The payload as JSON text, as the producer sent it."""
    holder: Holder
    priority: int = 0
    attempts: int = 0
    max_attempts: int = 0
    deliveries: int = 0
    lease_until_ms: int = 0
    """By the clock of the queue."""
    trace_parent: str | None = None
    trace_state: str | None = None

    @property
    def key(self) -> str:
        """Names this delivery: the same task may come again, under a higher token."""
        return f"{self.id} {self.holder.token}"

    @property
    def attempt(self) -> int:
        """1 for the first try."""
        return self.attempts + 1

    @property
    def payload(self) -> Any:
        """What the producer sent, decoded from JSON at each call."""
        return msgspec.json.decode(self.raw)

    def __repr__(self) -> str:
        return f"Job({self.command} {self.id} attempt={self.attempt} token={self.holder.token})"


class TaskDetails(Struct, frozen=True):
    """A task as it stands, with what its producer sent and its worker left behind."""

    task: Task
    payload: Any
    result: Any


class QueueInfo(Struct, frozen=True, kw_only=True, gc=False):
    """How many tasks of one command stand where. The counts are exact."""

    pending: int = 0
    delayed: int = 0
    in_progress: int = 0
    dead: int = 0
    oldest_seconds: float = 0
    """How long the task that waits longest has been ready; 0 when none waits."""
    paused: bool = False


class ReleaseResult(Struct, frozen=True, gc=False):
    """What became of a job that was handed back."""

    is_dead: bool
    """It ran out of tries and is in the dead-letter queue."""
    delay_seconds: float = 0
    """Else: how long it waits before its next try."""


class TaskFailed(CodeqError):
    """The task that was waited for has ended, and not with success."""

    code = "task-failed"

    def __init__(self, kept: TaskDetails) -> None:
        task = kept.task
        super().__init__(f"task {task.id} ended as {task.status}: {task.error or task.last_error or 'no reason given'}")
        self.kept = kept

    def __reduce__(self) -> tuple[type[Self], tuple[TaskDetails]]:
        return type(self), (self.kept,)  # so that it can be sent to another process


class WaitTimeout(CodeqError, TimeoutError):
    """The task that was waited for has not ended yet. It is not affected by the wait."""

    code = "timeout"


def encode_json(value: Any) -> bytes:
    if value is None:
        return b"null"
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise InvalidRequest(f"cannot be written as JSON: {fault}") from fault
