"""Messages about queues and their policies, and the requests of operators."""

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.domain.queue import QueueKey, QueuePolicy, QueueStatus
from codeq.wire import times
from codeq.wire.message import Name, Request, Wire
from codeq.wire.tasks import Backoff, backoff_fields


class QueueView(Wire, frozen=True, kw_only=True, gc=False):
    command: str
    tenant_id: str
    ready: int
    delayed: int
    in_progress: int
    dlq: int
    oldest_age_seconds: float
    """How long the task that waits longest has been ready; 0 when none waits."""
    paused: bool


class QueueViews(Wire, frozen=True, kw_only=True, gc=False):
    queues: list[QueueView]


class PolicyFields(Request, omit_defaults=False, frozen=True, kw_only=True, gc=False):
    priority_tiers: Annotated[list[Annotated[int, Meta(ge=0, le=10)]], Meta(max_length=10)] = []
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    dead_letter_topic_ref: Annotated[str, Meta(max_length=63)] | None = None
    retention_seconds: Annotated[int, Meta(ge=0, le=31_622_400)] = 86_400
    dead_retention_seconds: Annotated[int, Meta(ge=0, le=31_622_400)] | UnsetType = UNSET
    """As `retentionSeconds` if absent."""
    max_consumers: Annotated[int, Meta(ge=0, le=10_000)] = 0
    max_deliveries: Annotated[int, Meta(ge=1, le=10_000)] = 100
    lease_seconds: Annotated[float, Meta(ge=0.1, le=43_200)] = 300
    backoff: Backoff = Backoff()
    on_expiry: str = "backoff"
    paused: bool = False


class PutTopic(Request, frozen=True, kw_only=True, gc=False):
    policy: PolicyFields = PolicyFields()


class Topic(Wire, frozen=True, kw_only=True, gc=False):
    """A queue's policy, with the field names of the original codeQ."""

    topic_id: str
    tenant_id: str
    topic_name: str
    policy: PolicyFields
    version: int
    created_at: str
    updated_at: str


class Cleanup(Request, frozen=True, kw_only=True, gc=False):
    limit: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    before: str | None = None


class Cleaned(Wire, frozen=True, kw_only=True, gc=False):
    deleted: int
    before: str
    limit: int


class Selection(Request, frozen=True, kw_only=True, gc=False):
    """Which dead tasks: these ids, or those that match, or all."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=BATCH_TASKS_MAX)] | None = None
    command: Name | None = None
    error: Annotated[str, Meta(max_length=200)] | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    dry_run: bool = False


class Selected(Wire, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    matched: int
    changed: int
    dry_run: bool
    ids: list[str]
    refused: dict[str, str] = {}
    """By id, the error code of each refusal."""


def queue_view(status: QueueStatus) -> QueueView:
    counts = status.counts
    return QueueView(
        command=status.key.command,
        tenant_id=status.key.tenant,
        ready=counts.pending,
        delayed=counts.delayed,
        in_progress=counts.in_progress,
        dlq=counts.dead,
        oldest_age_seconds=status.oldest_age_ms / 1000,
        paused=status.paused,
    )


def policy_fields(policy: QueuePolicy) -> PolicyFields:
    return PolicyFields(
        priority_tiers=list(policy.priority_tiers),
        max_attempts=policy.max_attempts,
        dead_letter_topic_ref=policy.dead_letter_ref,
        retention_seconds=policy.retention_ms // 1000,
        dead_retention_seconds=policy.dead_retention_ms // 1000,
        max_consumers=policy.max_consumers,
        max_deliveries=policy.max_deliveries,
        lease_seconds=policy.lease_ms / 1000,
        backoff=backoff_fields(policy.backoff),
        on_expiry=policy.on_expiry.value,
        paused=policy.paused,
    )


def topic_view(key: QueueKey, policy: QueuePolicy) -> Topic:
    return Topic(
        topic_id=f"{key.tenant}.{key.command}",
        tenant_id=key.tenant,
        topic_name=key.command,
        policy=policy_fields(policy),
        version=policy.version,
        created_at=times.text(policy.created_ms),
        updated_at=times.text(policy.updated_ms),
    )
