"""What a queue is: one tenant's tasks of one command, with their indexes, counts and policy."""

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from codeq.domain.backoff import Backoff
from codeq.domain.limits import ATTEMPTS_DEFAULT, DELIVERIES_DEFAULT, LEASE_MS_DEFAULT, RETENTION_MS_DEFAULT


class QueueKey(NamedTuple):
    tenant: str
    command: str


class Index(StrEnum):
    """The index that a task is in. Each task is in exactly one, which follows from its record."""

    PENDING = "pending"
    DELAYED = "delayed"
    IN_PROGRESS = "in_progress"
    DEAD = "dead"
    NONE = "none"
    """Ended, and waiting only for its retention to pass."""


class OnExpiry(StrEnum):
    BACKOFF = "backoff"
    IMMEDIATE = "immediate"


class QueuePolicy(Struct, frozen=True, kw_only=True, gc=False):
    """The rules of one queue. Defaults are the server's; a stored policy replaces them as a whole."""

    max_attempts: int = ATTEMPTS_DEFAULT
    max_deliveries: int = DELIVERIES_DEFAULT
    lease_ms: int = LEASE_MS_DEFAULT
    backoff: Backoff = Backoff()
    on_expiry: OnExpiry = OnExpiry.BACKOFF
    retention_ms: int = RETENTION_MS_DEFAULT
    dead_retention_ms: int = RETENTION_MS_DEFAULT
    max_consumers: int = 0
    """How many tasks of the queue may be in progress at once; 0 for no limit."""
    paused: bool = False
    """A paused queue accepts new tasks and delivers none."""
    priority_tiers: tuple[int, ...] = ()
    dead_letter_ref: str | None = None
    """Stored, like `priority_tiers`, for readers of the queue catalogue, as in the original codeQ; has no effect."""
    version: int = 1
    created_ms: int = 0
    updated_ms: int = 0


class QueueCounts(Struct, frozen=True, kw_only=True, gc=False):
    """How many tasks are in each index. Exact at the time of the call, and read in constant time."""

    pending: int = 0
    delayed: int = 0
    in_progress: int = 0
    dead: int = 0
    oldest_ms: int | None = None
    """When the pending task that waits longest became visible; None when none waits."""


class QueueStatus(Struct, frozen=True, kw_only=True, gc=False):
    """One queue as operators see it."""

    key: QueueKey
    counts: QueueCounts
    paused: bool
    oldest_age_ms: int
    """How long the task that waits longest has been ready; 0 when none waits."""
