"""Tasks as callers receive them: moments are datetimes, and what does not apply is None."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Generic, Self, TypeVar, overload

from msgspec import Struct, structs

from codeq.domain.backoff import Backoff
from codeq.domain.errors import CodeqError
from codeq.domain.task import Move, Status
from codeq.domain.task import Task as Record

R = TypeVar("R")
T = TypeVar("T")


class Field(Generic[T]):
    """A field of the record, as it is stored."""

    def __init__(self, kind: Any, doc: str = "") -> None:
        self.kind = kind
        self.doc = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, task: None, owner: type) -> Self: ...
    @overload
    def __get__(self, task: "Task", owner: type) -> T: ...
    def __get__(self, task: "Task | None", owner: type) -> Any:
        return self if task is None else self.value(record_of(task))

    def value(self, record: Record) -> Any:
        return getattr(record, self.name)


class Moment(Field[T]):
    """A field of the record that is in Unix milliseconds there; None for 0."""

    def __init__(self, kind: Any, stored_as: str, doc: str = "") -> None:
        super().__init__(kind, doc)
        self.stored_as = stored_as

    def value(self, record: Record) -> Any:
        at_ms = getattr(record, self.stored_as)
        return moment(at_ms) if at_ms else None


class Task:
    """A task as its last move left it."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    @classmethod
    def of(cls, record: Record) -> "Task":
        return cls(record)

    id = Field[str](str)
    tenant = Field[str](str)
    command = Field[str](str)
    priority = Field[int](int)
    status = Field[Status](Status)
    move = Field[Move](Move, "Its last move.")
    status_before = Field[Status | None](Status | None, "Before the last move.")
    version = Field[int](int, "The number of the event of the last move.")
    previous = Field[int](int, "That of the move before.")
    created_at = Moment[datetime](datetime, "created_ms")
    updated_at = Moment[datetime](datetime, "updated_ms", "When the last move was made.")
    visible_at = Moment[datetime | None](
        datetime | None, "visible_ms", "While pending: not delivered before this time; None for no delay."
    )
    attempts = Field[int](int, "Deliveries that failed.")
    max_attempts = Field[int](int)
    deliveries = Field[int](int)
    max_deliveries = Field[int](int)
    lease_token = Field[int](int, "Counts claims over the whole life of the task: each delivery has a higher one.")
    lease_until = Moment[datetime | None](datetime | None, "lease_until_ms", "While in progress.")
    worker = Field[str | None](str | None, "Who holds the lease, by the subject of its token.")
    worker_name = Field[str | None](str | None, "What the worker of the last delivery calls itself.")
    progress = Field[str | None](str | None, "While in progress: the progress that its worker reported last.")
    error = Field[str | None](str | None, "Why it ended without success.")
    last_error = Field[str | None](str | None, "Why the last try failed.")
    ended_at = Moment[datetime | None](datetime | None, "ended_ms")
    purge_at = Moment[datetime | None](datetime | None, "purge_ms", "Once it has ended: deleted after this time.")
    payload_bytes = Field[int](int)
    artifacts = Field[int](int, "Files of its result, links included.")
    artifact_bytes = Field[int](int)
    trace_id = Field[str | None](str | None)
    backoff = Field[Backoff | None](Backoff | None, "The task's own; None for the queue's.")
    has_webhook = Field[bool](bool)
    is_dead = Field[bool](bool, "Whether it is in the dead-letter queue.")

    def _key(self) -> tuple[Any, ...]:
        return (self._record,)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._record.id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.command} {self.id} {self.status})"


class ReplayedTask(Task):
    """What `enqueue` returns if the idempotency key was used before: the task that has the key, in its current state.

    Also returned if the client sent a call again because its answer was lost.
    """

    __slots__ = ("is_mismatch",)

    is_mismatch: bool
    """Whether that task has another command or payload than the call."""

    def __init__(self, record: Record, is_mismatch: bool) -> None:
        super().__init__(record)
        self.is_mismatch = is_mismatch

    def _key(self) -> tuple[Any, ...]:
        return (self._record, self.is_mismatch)


class TypedTask(Task, Generic[R]):
    """An enqueued task whose function says what it returns: `wait` returns its result as that type."""

    __slots__ = ("definition", "is_mismatch", "is_replay")

    definition: Any
    """The `TaskDefinition` that it was enqueued by."""
    is_replay: bool
    """Whether the idempotency key was used before: this is the task that has the key, in its current state."""
    is_mismatch: bool
    """Whether that task has another command or payload than the call."""

    def __init__(self, record: Record, definition: Any, is_replay: bool, is_mismatch: bool) -> None:
        super().__init__(record)
        self.definition = definition
        self.is_replay = is_replay
        self.is_mismatch = is_mismatch

    def _key(self) -> tuple[Any, ...]:
        return (self._record, self.definition, self.is_replay, self.is_mismatch)


class Page(Struct, frozen=True, gc=False):
    """Some of the tasks that match, and where the next page begins."""

    tasks: Sequence[Task]
    cursor: str | None
    """None when the list has ended."""


class ReplayedRecord(Record, frozen=True, array_like=True, gc=False):
    """The answer of a queue to a new task whose idempotency key it knows."""

    is_mismatch: bool = False


def replayed(record: Record, *, is_mismatch: bool) -> ReplayedRecord:
    return ReplayedRecord(**structs.asdict(record), is_mismatch=is_mismatch)


def task_of(record: Record) -> Task:
    return ReplayedTask(record, record.is_mismatch) if isinstance(record, ReplayedRecord) else Task.of(record)


def answers_of(found: Sequence[Record | CodeqError]) -> tuple[list[Task | CodeqError], bool]:
    """The tasks and refusals of a batch, and whether there are refusals."""
    if set(map(type, found)) == {Record}:  # neither refusals nor replays, as in most batches
        return list(map(Task, found)), False  # type: ignore[arg-type]
    answers = [answer if isinstance(answer, CodeqError) else task_of(answer) for answer in found]
    return answers, any(isinstance(answer, CodeqError) for answer in answers)


def typed(record: Record, definition: Any) -> TypedTask[Any]:
    is_mismatch = isinstance(record, ReplayedRecord) and record.is_mismatch
    return TypedTask(record, definition, isinstance(record, ReplayedRecord), is_mismatch)


def record_of(task: Task) -> Record:
    """The record as the queue stores it: for codeQ's own use."""
    return task._record


def task_id_of(task: Task | str) -> str:
    """The id of a task that is given as itself or by its id."""
    return task.id if isinstance(task, Task) else task


def moment(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
