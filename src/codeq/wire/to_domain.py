"""From what a server answers back to the values of the domain: the client's half of the wire."""

from functools import lru_cache

import msgspec

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.queue import OnExpiry, QueuePolicy
from codeq.domain.task import Task
from codeq.wire import queues, tasks, times
from codeq.wire.tasks import TaskView


def task_of(view: TaskView) -> Task:
    """The task as the server showed it. What does not travel is 0 or empty: version, retention, own backoff."""
    record = (
        view.id,
        view.tenant_id,
        view.command,
        view.priority,
        view.status,
        0,
        0,
        view.last_move,
        None,
        moment_ms(view.created_at),
        moment_ms(view.updated_at),
        moment_ms(view.visible_at),
        view.attempts,
        view.max_attempts,
        view.deliveries,
        0,
        view.lease_token or 0,
        view.worker_id,
        moment_ms(view.lease_until),
        view.error,
        view.last_error,
        moment_ms(view.ended_at),
        0,
        len(view.payload.encode()),
        view.trace_parent[3:35] if view.trace_parent else None,
        None,
        view.webhook is not None,
        view.progress,
    )
    return msgspec.convert(record, Task)


def policy_of(given: queues.PolicyFields) -> QueuePolicy:
    """Raises ValueError for a backoff or an expiry rule that does not exist."""
    dead_s = given.dead_retention_seconds
    return QueuePolicy(
        max_attempts=given.max_attempts,
        max_deliveries=given.max_deliveries,
        lease_ms=round(given.lease_seconds * 1000),
        backoff=domain_backoff(given.backoff),
        on_expiry=OnExpiry(given.on_expiry),
        retention_ms=given.retention_seconds * 1000,
        dead_retention_ms=(given.retention_seconds if isinstance(dead_s, msgspec.UnsetType) else dead_s) * 1000,
        max_consumers=given.max_consumers,
        paused=given.paused,
        priority_tiers=tuple(sorted(given.priority_tiers)),
        dead_letter_ref=given.dead_letter_topic_ref,
    )


def topic_policy(topic: queues.Topic) -> QueuePolicy:
    """As `policy_of`, with what the server knows of the policy itself."""
    return msgspec.structs.replace(
        policy_of(topic.policy),
        version=topic.version,
        created_ms=moment_ms(topic.created_at),
        updated_ms=moment_ms(topic.updated_at),
    )


def domain_backoff(given: tasks.Backoff) -> Backoff:
    """Raises ValueError for a policy that does not exist."""
    return Backoff(BackoffKind(given.policy), round(given.base_seconds * 1000), round(given.max_seconds * 1000))


@lru_cache(maxsize=1024)
def moment_ms(text: str | None) -> int:
    """Unix milliseconds; 0 for none. What was claimed together has the same times, so most are remembered."""
    return times.parse(text) if text else 0
