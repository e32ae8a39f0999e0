"""What a task is: a small record that moves, and a body that never changes."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from codeq.domain.backoff import Backoff


class Status(StrEnum):
    __hash__ = str.__hash__  # an enum's own is written in Python, and every move looks up a status and a move

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        return self in FINAL


FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Move(StrEnum):
    """The named transitions. They are also event kinds, metric labels and lake columns."""

    __hash__ = str.__hash__

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    NACK = "nack"
    EXPIRE = "expire"
    ABANDON = "abandon"
    PROMOTE = "promote"
    CANCEL = "cancel"
    REPLAY = "replay"
    PURGE = "purge"
    HEARTBEAT = "heartbeat"


_FAILED = Status.FAILED
DEAD_LETTERING = frozenset({Move.NACK, Move.EXPIRE, Move.ABANDON})
"""The moves after which a failed task is dead. After any other move, its worker decided that it failed."""


Number = Annotated[int, Meta(ge=0)]
"""What keys are made of. Bounds are checked when a stored record is decoded."""


class Task(Struct, frozen=True, array_like=True, gc=False):
    """A task as its last move left it. The same record is the task's state and the event of that move.

    Stored by position: fields may be appended with a default, never removed or reordered.
    """

    id: str
    tenant: str
    command: str
    priority: Annotated[int, Meta(ge=0, le=9)]
    status: Status
    version: Number
    """The number of the event that made this record, assigned by the shard at commit; 0 before."""
    previous: int
    """The version before this move: the events of one task form a chain, which is its history."""
    move: Move
    status_before: Status | None
    created_ms: int
    updated_ms: int
    """When the move was made."""
    visible_ms: Number
    """While pending: not delivered before this time; 0 for no delay."""
    attempts: int
    max_attempts: int
    deliveries: int
    max_deliveries: int
    lease_token: int
    """Counts claims over the whole life of the task, so each delivery has a higher one."""
    worker: str | None
    lease_until_ms: Number
    error: str | None
    last_error: str | None
    ended_ms: int
    purge_ms: Number
    """Once final: deleted after this time."""
    payload_bytes: Number
    trace_id: str | None
    backoff: Backoff | None
    """The task's own backoff; None for the queue's."""
    has_webhook: bool
    progress: str | None = None
    """While in progress: the progress that its worker reported last."""
    artifacts: Number = 0
    """Files of its result, links included."""
    artifact_bytes: Number = 0
    worker_name: str | None = None
    """What the worker of the last delivery calls itself: to show, never to decide who holds a lease."""

    @property
    def is_dead(self) -> bool:
        """Whether the task is in the dead-letter queue: failed by nack, expiry or abandon, not by a submit."""
        return self.status is _FAILED and self.move in DEAD_LETTERING


class Body(Struct, frozen=True, array_like=True, gc=False):
    """What the producer enqueued. Written once, read when the task is delivered or shown."""

    payload: bytes
    idempotency_key: str | None = None
    webhook: str | None = None
    trace_parent: str | None = None
    trace_state: str | None = None


class Change(Struct, frozen=True, gc=False):
    """One applied move. The engine stores `after`, adds it to its new index and removes it from the old one."""

    move: Move
    before: Task | None
    after: Task
    body: Body | None = None
    """Set for `enqueue` only."""
    result: bytes | None = None
    """Set for `complete` and `fail` only: JSON, and the list of artifacts (`domain.artifacts.join_result`)."""
    delivery: "Change | None" = None
    """Set where the change ends a task with a webhook: an `enqueue` in the same shard. It is applied in the same atomic
    step, if and only if this change is."""


class Holder(Struct, frozen=True, gc=False):
    """The worker that claims to hold a lease. Without a token its name decides."""

    worker: str
    token: int | None = None
    is_server: bool = False
    """The server itself, which alone holds tasks of the system's queues: a name can be anybody's."""
