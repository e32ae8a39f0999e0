"""Values that callers receive: a claimed job, a task with its payload and result, the counts of a queue."""

from typing import Any, Self

import msgspec
from msgspec import Struct

from codeq.domain.artifacts import Artifact, ArtifactInput
from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.task import Holder, Task


class Job(Struct, gc=False, eq=False):
    """A claimed task: its payload, and the lease under which to work on it."""

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
    attached: list[Artifact] = []
    """Files that were uploaded for its result, which `complete` and `fail` name."""

    def named_artifacts(self) -> list[ArtifactInput]:
        """What a result says of the files that were uploaded for it."""
        return [ArtifactInput(name=artifact.name, sha256=artifact.sha256 or None) for artifact in self.attached]

    @property
    def key(self) -> str:
        """Identifies this delivery: the same task may be delivered again, under a higher token."""
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


class ReplayedTask(Task, frozen=True, array_like=True, gc=False):
    """What `enqueue` returns if the idempotency key was used before: the task that has the key, in its current state.

    Also returned if the client sent a call again because its answer was lost.
    """

    is_mismatch: bool = False
    """Whether that task has another command or payload than the call."""


def replayed(task: Task, *, is_mismatch: bool) -> ReplayedTask:
    return ReplayedTask(**msgspec.structs.asdict(task), is_mismatch=is_mismatch)


class TaskDetails(Struct, frozen=True):
    """A task in its current state, with its payload and its result."""

    task: Task
    payload: Any
    result: Any


class QueueInfo(Struct, frozen=True, kw_only=True, gc=False):
    """The exact number of tasks of one command in each state."""

    pending: int = 0
    delayed: int = 0
    in_progress: int = 0
    dead: int = 0
    oldest_seconds: float = 0
    """How long the oldest pending task has been ready; 0 when none is pending."""
    paused: bool = False
    workers: int | None = None
    """How many workers that were heard from lately claim from it; 0 if nobody works on it. None from older servers."""


class ReleaseResult(Struct, frozen=True, gc=False):
    """What happened to a job that was released by `nack` or `abandon`."""

    is_dead: bool
    """The task has no attempts left and is in the dead-letter queue."""
    delay_seconds: float = 0
    """Otherwise: how long the task waits before its next try."""


class TaskFailed(CodeqError):
    """The awaited task ended, and not with success."""

    code = "task-failed"

    def __init__(self, details: TaskDetails) -> None:
        task = details.task
        super().__init__(f"task {task.id} ended as {task.status}: {task.error or task.last_error or 'no reason given'}")
        self.details = details

    def __reduce__(self) -> tuple[type[Self], tuple[TaskDetails]]:
        return type(self), (self.details,)  # so that it can be sent to another process


class WaitTimeout(CodeqError, TimeoutError):
    """The awaited task has not ended yet. The wait does not affect it."""

    code = "timeout"


def encode_json(value: Any) -> bytes:
    if value is None:
        return b"null"
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise InvalidRequest(f"cannot be written as JSON: {fault}") from fault
