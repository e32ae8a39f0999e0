"""Values that callers receive: a claimed job, a task with its payload and result, the counts of a queue."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self

import msgspec
from msgspec import Struct

from codeq.domain.artifacts import Artifact, ArtifactInput
from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.lifecycle import MAX_ATTEMPTS
from codeq.domain.task import Holder, Status
from codeq.sdk.tasks import Task, moment


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
    _lease_until_ms: int = 0
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
    def lease_until(self) -> datetime:
        """Until when it was leased, by the clock of the queue; a heartbeat answers until when it is now."""
        return moment(self._lease_until_ms)

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
        super().__init__(f"task {task.id} {_end_of(task)}")
        self.details = details

    def __reduce__(self) -> tuple[type[Self], tuple[TaskDetails]]:
        return type(self), (self.details,)  # so that it can be sent to another process


def _end_of(task: Task) -> str:
    if task.status is Status.CANCELLED:
        return "was cancelled"
    # Of a dead task `error` says which limit it met (if it did, and was not buried), and `last_error` why it failed.
    is_buried = task.error == MAX_ATTEMPTS and task.attempts < task.max_attempts and task.last_error
    texts = (None if is_buried else task.error, task.last_error if task.is_dead else None)
    reasons = [text.partition("\n")[0] for text in texts if text]
    return f"ended as {task.status}: {': '.join(reasons) or 'no reason given'}"


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
