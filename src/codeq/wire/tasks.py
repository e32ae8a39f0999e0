"""Messages about tasks: what producers and workers send and receive. JSON names are camelCase.

In JSON, a payload or a result in a request is any JSON value. In MessagePack it is a byte string that holds JSON, so
that neither side decodes it in transit.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from codeq.domain import backoff as domain
from codeq.domain import lifecycle
from codeq.domain.artifacts import Artifact
from codeq.domain.limits import (
    BATCH_TASKS_MAX,
    CLAIM_COMMANDS_MAX,
    REQUEST_ID_CHARS_MAX,
    TRACE_CHARS_MAX,
    WATCHED_LEASES_MAX,
)
from codeq.domain.queue import Index
from codeq.domain.task import Body, Status, Task
from codeq.wire import times
from codeq.wire.artifacts import ArtifactView, SubmittedArtifact, artifact_view
from codeq.wire.message import Name, Request, Seconds, WireStruct
from codeq.wire.workers import WorkerFields


class Backoff(Request, omit_defaults=False, frozen=True, kw_only=True, gc=False):
    policy: str = "exp_full_jitter"
    base_seconds: Seconds = 5
    max_seconds: Seconds = 900


class _NewTask(Request, frozen=True, kw_only=True, gc=False):
    command: Name
    priority: int = 0
    """Values outside 0 to 9 are clamped to the nearest of these, as in the original codeQ."""
    webhook: str | None = None
    max_attempts: Annotated[int, Meta(le=100)] = 0
    """0 or less for the queue's own."""
    idempotency_key: Annotated[str, Meta(max_length=255)] | None = None
    """A repeated key returns the task that has it, with `Idempotent-Replay: true`. If that task has another command or
    payload, also with `Idempotent-Mismatch: true`."""
    run_at: str | None = None
    """RFC 3339; wins over `delaySeconds`, and a time in the past means at once."""
    delay_seconds: Seconds = 0
    backoff: Backoff | None = None
    trace_parent: str | None = None
    """Where it differs from the call's own `traceparent`: tasks of one batch may come from several traces."""
    trace_state: Annotated[str, Meta(max_length=TRACE_CHARS_MAX)] | None = None


class CreateTask(_NewTask, frozen=True, kw_only=True, gc=False):
    payload: Raw


class PackedTask(_NewTask, frozen=True, kw_only=True, gc=False):
    payload: bytes


class CreateTasks(Request, frozen=True, kw_only=True, gc=False):
    tasks: Annotated[list[Raw], Meta(min_length=1, max_length=BATCH_TASKS_MAX)]


class ReadTasks(Request, frozen=True, kw_only=True, gc=False):
    """`CreateTasks` with its items decoded in the same pass. If one cannot be decoded, they are decoded one by one."""

    tasks: Annotated[list[CreateTask], Meta(min_length=1, max_length=BATCH_TASKS_MAX)]


class ReadPackedTasks(Request, frozen=True, kw_only=True, gc=False):
    tasks: Annotated[list[PackedTask], Meta(min_length=1, max_length=BATCH_TASKS_MAX)]


class Claim(Request, frozen=True, kw_only=True, gc=False):
    commands: Annotated[list[Name], Meta(max_length=CLAIM_COMMANDS_MAX)] | None = None
    lease_seconds: Annotated[float, Meta(le=43_200)] = 0
    """0 or less for the queue's own."""
    wait_seconds: float = 0
    """At most 30; a larger value means 30."""
    request_id: Annotated[str, Meta(min_length=1, max_length=REQUEST_ID_CHARS_MAX)] | None = None
    """Any text, another one for each claim. A claim that is sent again with the same one, because its answer was lost,
    gets the same tasks, as long as they are leased by it."""
    worker: WorkerFields | None = None
    """What the worker tells about itself. It is listed and shown; who holds a lease is up to the token's subject."""
    worker_id: str | None = None
    """Of older clients: the name of the worker, where `worker` is missing and it can be one."""


class ClaimBatch(Claim, frozen=True, kw_only=True, gc=False):
    count: Annotated[int, Meta(ge=1, le=BATCH_TASKS_MAX)]


class LeaseCall(Request, frozen=True, kw_only=True, gc=False):
    lease_token: Annotated[int, Meta(ge=0)] | None = None
    """Of the delivery that this is about; without it the worker's name decides."""
    worker_id: str | None = None
    """Accepted from older clients and ignored."""


class Heartbeat(LeaseCall, frozen=True, kw_only=True, gc=False):
    extend_seconds: Annotated[float, Meta(le=43_200)] = 0
    """From now on; 0 or less for the queue's own."""
    progress: Annotated[str, Meta(max_length=200)] | None = None
    """How far the work is, as text; shown with the task while it is in progress."""


class HeartbeatOf(Heartbeat, frozen=True, kw_only=True, gc=False):
    task_id: str


class HeartbeatBatch(Request, frozen=True, kw_only=True, gc=False):
    heartbeats: Annotated[list[HeartbeatOf], Meta(min_length=1, max_length=BATCH_TASKS_MAX)]


class Abandon(LeaseCall, frozen=True, kw_only=True, gc=False):
    delay_seconds: Seconds = 0
    """The task is delivered again after so long, without counting an attempt; 0 for the back of the queue now."""


class WatchedLease(Request, frozen=True, kw_only=True, gc=False):
    task_id: str
    lease_token: Annotated[int, Meta(ge=0)] | None = None


class WatchLeases(Request, frozen=True, kw_only=True, gc=False):
    leases: Annotated[list[WatchedLease], Meta(min_length=1, max_length=WATCHED_LEASES_MAX)]
    wait_seconds: float = 0
    """At most 30; a larger value means 30."""


class Nack(LeaseCall, frozen=True, kw_only=True, gc=False):
    delay_seconds: Seconds | None = None
    """0 for the back of the queue now; absent for the backoff."""
    reason: str = ""
    dead: bool = False
    """Dead-letters the task at once, whatever attempts are left."""


class _Submit(LeaseCall, frozen=True, kw_only=True, gc=False):
    status: str
    """`COMPLETED` or `FAILED`."""
    error: str | None = None
    """Needed with `FAILED`."""
    artifacts: Annotated[list[SubmittedArtifact], Meta(max_length=1024)] | None = None
    """Files of the result."""


class Submit(_Submit, frozen=True, kw_only=True, gc=False):
    result: Raw = msgspec.field(default_factory=Raw)
    """Any JSON value; a completed task may do without."""


class PackedSubmit(_Submit, frozen=True, kw_only=True, gc=False):
    result: bytes | None = None


class SubmitOf(Submit, frozen=True, kw_only=True, gc=False):
    task_id: str


class PackedSubmitOf(PackedSubmit, frozen=True, kw_only=True, gc=False):
    task_id: str


class SubmitBatch(Request, frozen=True, kw_only=True, gc=False):
    results: Annotated[list[Raw], Meta(min_length=1, max_length=BATCH_TASKS_MAX)]


class ReadSubmits(Request, frozen=True, kw_only=True, gc=False):
    """`SubmitBatch` with its items decoded in the same pass. If one cannot be decoded, they are decoded one by one."""

    results: Annotated[list[SubmitOf], Meta(min_length=1, max_length=BATCH_TASKS_MAX)]


class ReadPackedSubmits(Request, frozen=True, kw_only=True, gc=False):
    results: Annotated[list[PackedSubmitOf], Meta(min_length=1, max_length=BATCH_TASKS_MAX)]


class TaskView(WireStruct, omit_defaults=True, frozen=True, gc=False):
    """A task, without its result."""

    # Built by position: by name it takes twice as long, and every task of a response is one.
    id: str
    command: str
    payload: str
    """JSON text."""
    status: str
    tenant_id: str
    created_at: str
    updated_at: str
    attempts: int
    max_attempts: int
    deliveries: int
    priority: int
    last_known_location: str
    last_move: str
    """The last move of the task: enqueue, claim, nack, ..."""
    worker_id: str | None = None
    lease_until: str | None = None
    lease_token: int | None = None
    visible_at: str | None = None
    ended_at: str | None = None
    error: str | None = None
    last_error: str | None = None
    progress: str | None = None
    webhook: str | None = None
    idempotency_key: str | None = None
    result_key: str | None = None
    trace_parent: str | None = None
    trace_state: str | None = None
    artifacts: int = 0
    """How many files its result has."""
    artifact_bytes: int = 0
    worker_name: str | None = None
    """What the worker of the last delivery calls itself."""


class ResultView(WireStruct, omit_defaults=True, frozen=True, gc=False):
    task_id: str
    status: str
    completed_at: str
    result: Raw | None = None
    """The worker's result: any JSON value in JSON, a byte string that holds JSON in MessagePack."""
    error: str | None = None
    artifacts: list[ArtifactView] = []


class TaskAndResult(WireStruct, frozen=True, kw_only=True, gc=False):
    task: TaskView
    result: ResultView


class TaskAnswer(WireStruct, omit_defaults=True, frozen=True, gc=False):
    """One item of a batch create: the task, or why it was refused."""

    task: TaskView | None = None
    error: str | None = None
    code: str | None = None
    replayed: bool = False
    """The idempotency key was used before: this is the task that has it."""
    mismatched: bool = False
    """And that task has another command or payload."""


class TaskAnswers(WireStruct, frozen=True, kw_only=True, gc=False):
    results: list[TaskAnswer]


class ClaimedTasks(WireStruct, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    tasks: list[TaskView]
    bytes_limited: bool = False
    """There are fewer tasks than asked for because their payloads reach 8 MB; the next claim gets more."""


class SubmitAnswer(WireStruct, omit_defaults=True, frozen=True, gc=False):
    task_id: str
    result: ResultView | None = None
    error: str | None = None
    code: str | None = None


class SubmitAnswers(WireStruct, frozen=True, kw_only=True, gc=False):
    results: list[SubmitAnswer]


class HeartbeatAnswer(WireStruct, frozen=True, kw_only=True, gc=False):
    ok: bool
    lease_until: str


class HeartbeatResult(WireStruct, omit_defaults=True, frozen=True, gc=False):
    """One item of a batch of heartbeats: until when the lease lasts, or why it was not extended."""

    task_id: str
    lease_until: str | None = None
    error: str | None = None
    code: str | None = None
    """`cancelled`, `not-owner`, `not-in-progress` or `not-found` if the lease is lost; `rate-limited` if the limit did
    not admit the whole batch: send it again later."""


class HeartbeatResults(WireStruct, frozen=True, kw_only=True, gc=False):
    results: list[HeartbeatResult]


class LeaseEnd(WireStruct, frozen=True, gc=False):
    """A lease that its holder has lost."""

    task_id: str
    code: str
    """`cancelled`, `not-owner`, `not-in-progress` or `not-found`: what a heartbeat would be refused with."""


class LeaseEnds(WireStruct, frozen=True, kw_only=True, gc=False):
    ended: list[LeaseEnd]


class GiveBackAnswer(WireStruct, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    status: str
    """`requeued` or `dlq`."""
    delay_seconds: float | None = None


class TaskPage(WireStruct, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    tasks: list[TaskView]
    cursor: str | None = None


_pack = msgspec.msgpack.Encoder().encode
_LOCATIONS = {
    Index.PENDING: "PENDING_LIST",
    Index.DELAYED: "DELAYED_ZSET",
    Index.IN_PROGRESS: "INPROG_SET",
    Index.DEAD: "DLQ_SET",
    Index.NONE: "NONE",
}
_IN_PROGRESS, _COMPLETED = Status.IN_PROGRESS, Status.COMPLETED


def backoff_fields(backoff: domain.Backoff) -> Backoff:
    base_s, max_s = backoff.base_ms / 1000, backoff.max_ms / 1000
    return Backoff(policy=str(backoff.kind), base_seconds=base_s, max_seconds=max_s)


def view(task: Task, body: Body) -> TaskView:
    status, text = task.status, times.text
    return TaskView(
        task.id, task.command, body.payload.decode(), status, task.tenant, text(task.created_ms),
        text(task.updated_ms), task.attempts, task.max_attempts, task.deliveries, task.priority,
        _LOCATIONS[lifecycle.position(task)], task.move, task.worker,
        text(task.lease_until_ms) if status is _IN_PROGRESS else None,
        task.lease_token or None,
        text(task.visible_ms) if task.visible_ms else None,
        text(task.ended_ms) if task.ended_ms else None,
        task.error, task.last_error, task.progress, body.webhook, body.idempotency_key,
        "codeq:results" if status is _COMPLETED else None,
        body.trace_parent, body.trace_state, task.artifacts, task.artifact_bytes, task.worker_name,
    )  # fmt: skip


def result_view(
    task: Task, result: bytes | None, artifacts: Sequence[Artifact] = (), *, packed: bool = False
) -> ResultView:
    body = None if result is None else Raw(_pack(result) if packed else result)
    files = [artifact_view(task.id, artifact) for artifact in artifacts] if artifacts else []
    return ResultView(task.id, task.status, times.text(task.ended_ms), body, task.error, files)
