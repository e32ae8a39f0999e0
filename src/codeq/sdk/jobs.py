"""Values that callers receive: a claimed job, a task with its payload and result, the counts of a queue."""

from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

import msgspec
from msgspec import Struct

from codeq.domain.artifacts import Artifact, ArtifactInput
from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.task import Holder, Task

R = TypeVar("R")
_TASK_FIELDS = Task.__struct_fields__


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


class TypedTask(Task, Generic[R], frozen=True, array_like=True, gc=False):
    """An enqueued task whose function says what it returns: `wait` returns its result as that type."""

    definition: Any = None
    """The `TaskDefinition` that it was enqueued by."""
    is_replay: bool = False
    """Whether the idempotency key was used before: this is the task that has the key, in its current state."""
    is_mismatch: bool = False
    """Whether that task has another command or payload than the call."""


def typed(task: Task, definition: Any) -> TypedTask[Any]:
    values: Any = [getattr(task, name) for name in _TASK_FIELDS]
    make: Any = TypedTask
    if isinstance(task, ReplayedTask):
        replay: TypedTask[Any] = make(*values, definition, True, task.is_mismatch)
        return replay
    made: TypedTask[Any] = make(*values, definition)
    return made


def task_id_of(task: Task | str) -> str:
    """The id of a task that is given as itself or by its id."""
    return task.id if isinstance(task, Task) else task


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
        reason = (task.error or task.last_error or "no reason given").partition("\n")[0]
        super().__init__(f"task {task.id} ended as {task.status}: {reason}")
        self.details = details

    def __reduce__(self) -> tuple[type[Self], tuple[TaskDetails]]:
        return type(self), (self.details,)  # so that it can be sent to another process


class PayloadInvalid(InvalidRequest):
    """The arguments, or a stored payload, do not fit the function of the task."""

    code = "payload-invalid"


class ResultInvalid(CodeqError):
    """The stored result is not of the type that the function of the task says it returns."""

    code = "result-invalid"


class EnqueueRefused(CodeqError):
    """Some tasks of a batch were refused; the others are enqueued. `answers` has, per task, the task or the refusal."""

    code = "some-refused"

    def __init__(self, answers: "Sequence[Task | CodeqError]") -> None:
        refusals = [answer for answer in answers if isinstance(answer, CodeqError)]
        super().__init__(f"{len(refusals)} of {len(answers)} tasks were refused; the first: {refusals[0]}")
        self.answers = answers

    @property
    def refusals(self) -> "list[CodeqError]":
        return [answer for answer in self.answers if isinstance(answer, CodeqError)]

    def __reduce__(self) -> "tuple[type[Self], tuple[Sequence[Task | CodeqError]]]":
        return type(self), (self.answers,)


class WaitTimeout(CodeqError, TimeoutError):
    """The awaited task has not ended yet. The wait does not affect it."""

    code = "timeout"
