"""Messages about queues and their policies, and the requests of operators."""

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from codeq.domain.backoff import PartialBackoff
from codeq.domain.limits import BATCH_TASKS_MAX, TIER_MAX, TOPIC_REF_CHARS_MAX
from codeq.domain.queue import EffectivePolicy, QueueKey, QueuePolicy, QueueStatus
from codeq.wire import times
from codeq.wire.message import Name, Request, Seconds, WireStruct


class QueueView(WireStruct, frozen=True, kw_only=True, gc=False):
    command: str
    tenant_id: str
    ready: int
    delayed: int
    in_progress: int
    dlq: int
    oldest_age_seconds: float
    """How long the task that waits longest has been ready; 0 when none waits."""
    paused: bool
    workers: int | None = None
    """How many workers that were heard from lately claim from it; 0 if nobody works on it. Older servers omit it."""


class QueueViews(WireStruct, frozen=True, kw_only=True, gc=False):
    queues: list[QueueView]


class QueueDetails(QueueView, frozen=True, kw_only=True, gc=False):
    effective_policy: "PolicyFields"
    """Every rule that applies, set or not."""


class BackoffRules(Request, frozen=True, kw_only=True, gc=False):
    policy: str | None = None
    base_seconds: Seconds | None = None
    max_seconds: Seconds | None = None


class PolicyFields(Request, frozen=True, kw_only=True, gc=False):
    """The rules of a queue. One that is absent or null is not set, and follows the server's setting."""

    priority_tiers: Annotated[list[Annotated[int, Meta(ge=0, le=TIER_MAX)]], Meta(max_length=10)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=100)] | None = None
    dead_letter_topic_ref: Annotated[str, Meta(max_length=TOPIC_REF_CHARS_MAX)] | None = None
    retention_seconds: Annotated[int, Meta(ge=0, le=31_622_400)] | None = None
    dead_retention_seconds: Annotated[int, Meta(ge=0, le=31_622_400)] | None = None
    max_consumers: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    max_deliveries: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    lease_seconds: Annotated[float, Meta(ge=0.1, le=43_200)] | None = None
    backoff: BackoffRules | None = None
    on_expiry: str | None = None
    paused: bool | None = None


class PutTopic(Request, frozen=True, kw_only=True, gc=False):
    policy: PolicyFields = PolicyFields()


class Topic(WireStruct, frozen=True, kw_only=True, gc=False):
    """A queue's policy, with the field names of the original codeQ. The header `ETag` identifies its version."""

    topic_id: str
    tenant_id: str
    topic_name: str
    policy: PolicyFields
    """The rules that were set."""
    effective_policy: PolicyFields
    """Every rule that applies, set or not."""
    version: int
    created_at: str
    updated_at: str


class Cleanup(Request, frozen=True, kw_only=True, gc=False):
    limit: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    before: str | None = None


class Cleaned(WireStruct, frozen=True, kw_only=True, gc=False):
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


class Selected(WireStruct, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    matched: int
    changed: int
    dry_run: bool
    ids: list[str]
    refused: dict[str, str] = {}
    """By id, the error code of each refusal."""


def queue_view(status: QueueStatus) -> QueueView:
    return QueueView(**_queue_fields(status))


def queue_details(status: QueueStatus, effective: EffectivePolicy) -> QueueDetails:
    return QueueDetails(**_queue_fields(status), effective_policy=policy_fields(effective))


def optional(value: Any, convert: Callable[[Any], Any]) -> Any:
    return None if value is None else convert(value)


def policy_fields(policy: QueuePolicy | EffectivePolicy) -> PolicyFields:
    return PolicyFields(
        priority_tiers=optional(policy.priority_tiers, list),
        max_attempts=policy.max_attempts,
        dead_letter_topic_ref=policy.dead_letter_ref,
        retention_seconds=optional(policy.retention_ms, lambda ms: ms // 1000),
        dead_retention_seconds=optional(policy.dead_retention_ms, lambda ms: ms // 1000),
        max_consumers=policy.max_consumers,
        max_deliveries=policy.max_deliveries,
        lease_seconds=optional(policy.lease_ms, _seconds),
        backoff=optional(policy.backoff, _backoff_rules),
        on_expiry=optional(policy.on_expiry, str),
        paused=policy.paused,
    )


def topic_view(key: QueueKey, policy: QueuePolicy, effective: EffectivePolicy) -> Topic:
    return Topic(
        topic_id=f"{key.tenant}.{key.command}",
        tenant_id=key.tenant,
        topic_name=key.command,
        policy=policy_fields(policy),
        effective_policy=policy_fields(effective),
        version=policy.version,
        created_at=times.text(policy.created_ms),
        updated_at=times.text(policy.updated_ms),
    )


def _queue_fields(status: QueueStatus) -> dict[str, Any]:
    counts = status.counts
    return {
        "command": status.key.command,
        "tenant_id": status.key.tenant,
        "ready": counts.pending,
        "delayed": counts.delayed,
        "in_progress": counts.in_progress,
        "dlq": counts.dead,
        "oldest_age_seconds": status.oldest_age_ms / 1000,
        "paused": status.paused,
        "workers": status.workers,
    }


def _backoff_rules(backoff: PartialBackoff) -> BackoffRules:
    return BackoffRules(
        policy=optional(backoff.kind, str),
        base_seconds=optional(backoff.base_ms, _seconds),
        max_seconds=optional(backoff.max_ms, _seconds),
    )


def _seconds(ms: int) -> float:
    return ms / 1000
