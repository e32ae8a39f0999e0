"""Arguments and results of the queue's verbs: plain values, shared by use cases, stores and clients."""

from collections.abc import Sequence

from msgspec import Struct

from codeq.domain.artifacts import Artifact, ArtifactInput, split_result
from codeq.domain.backoff import Backoff
from codeq.domain.queue import Index
from codeq.domain.task import Body, Holder, Status, Task
from codeq.domain.workers import WorkerInfo


class NewTask(Struct, frozen=True, kw_only=True, gc=False):
    """A task to enqueue. `payload` is JSON and is stored byte for byte."""

    command: str
    payload: bytes = b"null"
    priority: int = 0
    delay_ms: int = 0
    run_at_ms: int | None = None
    """Unix milliseconds; wins over `delay_ms`, and a time in the past means at once."""
    max_attempts: int | None = None
    idempotency_key: str | None = None
    webhook: str | None = None
    backoff: Backoff | None = None
    trace_parent: str | None = None
    trace_state: str | None = None


class Claim(Struct, frozen=True, kw_only=True, gc=False):
    worker: str
    commands: Sequence[str] | None = None
    """None for every command of the tenant."""
    limit: int = 1
    lease_ms: int | None = None
    """None for the lease of the queue's policy (of the first command's, where there are several)."""
    wait_ms: int = 0
    request_id: str | None = None
    """Chosen by the caller. The same id again returns the same tasks, as long as they are leased by that claim."""
    info: WorkerInfo | None = None
    """What the worker tells about itself."""


class Delivery(Struct, frozen=True, gc=False):
    """A leased task, with its body."""

    task: Task
    body: Body
    is_repeat: bool = False
    """Whether an earlier call with the same request id leased it."""


class Record(Struct, frozen=True, gc=False):
    """A task with its body and its result."""

    task: Task
    body: Body
    stored_result: bytes | None

    @property
    def result(self) -> bytes | None:
        """The JSON result that its worker submitted, if any."""
        return split_result(self.stored_result)[0] if self.task.artifacts else self.stored_result

    @property
    def artifacts(self) -> Sequence[Artifact]:
        """The files of the result."""
        return split_result(self.stored_result)[1] if self.task.artifacts else ()


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """How a worker ended a task: COMPLETED with a result (JSON), or FAILED with an error."""

    task_id: str
    holder: Holder
    status: Status
    result: bytes | None = None
    error: str | None = None
    artifacts: Sequence[ArtifactInput] = ()


class LeaseExtension(Struct, frozen=True, kw_only=True, gc=False):
    """A heartbeat: a worker still processes the task."""

    task_id: str
    holder: Holder
    extend_ms: int | None = None
    """How long the lease lasts from now; None for the lease of the queue's policy."""
    progress: str | None = None


class Filter(Struct, frozen=True, kw_only=True, gc=False):
    """Which tasks of a tenant to list. A task must match every field that is set."""

    command: str | None = None
    """None for all commands of users; of ended tasks by `purge_to_ms`, for the system's too."""
    status: Status | None = None
    index: Index | None = None
    error: str | None = None
    """Text that `error` or `last_error` must contain."""
    created_from_ms: int = 0
    created_to_ms: int = 1 << 62
    purge_to_ms: int | None = None
    """Ended tasks whose retention passes at this time or before, in that order, of each shard."""


Selection = Sequence[str] | Filter
"""Which dead tasks to move: these ids, or those that match."""


class Page(Struct, frozen=True, gc=False):
    """One page of the tasks that match."""

    tasks: list[Task]
    cursor: str | None
    """Where the next page starts; None when there is nothing left."""


class BulkResult(Struct, frozen=True, gc=False):
    """The result of an operation on many dead tasks: how many matched, how many it changed, and the first ids."""

    matched: int
    changed: int
    ids: list[str]
    refused: dict[str, str] = {}
    """For a call by id: the ids that were refused, each with its error code."""
