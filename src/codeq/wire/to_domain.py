"""From messages to values of the domain: what a client reads of answers, and a server of policies."""

from functools import lru_cache
from typing import get_type_hints

import msgspec

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.queue import OnExpiry, QueuePolicy
from codeq.domain.task import Task
from codeq.wire import queues, tasks, times
from codeq.wire.tasks import TaskView


def task_of(view: TaskView) -> Task:
    """The task as the server showed it. What does not travel is 0 or empty: version, retention, own backoff."""
    fields = {
        "id": view.id,
        "tenant": view.tenant_id,
        "command": view.command,
        "priority": view.priority,
        "status": view.status,
        "move": view.last_move,
        "created_ms": moment_ms(view.created_at),
        "updated_ms": moment_ms(view.updated_at),
        "visible_ms": moment_ms(view.visible_at),
        "attempts": view.attempts,
        "max_attempts": view.max_attempts,
        "deliveries": view.deliveries,
        "lease_token": view.lease_token or 0,
        "worker": view.worker_id,
        "lease_until_ms": moment_ms(view.lease_until),
        "error": view.error,
        "last_error": view.last_error,
        "ended_ms": moment_ms(view.ended_at),
        "payload_bytes": len(view.payload.encode()),
        "trace_id": view.trace_parent[3:35] if view.trace_parent else None,
        "has_webhook": view.webhook is not None,
        "progress": view.progress,
    }
    return msgspec.convert([fields.get(name, absent) for name, absent in _ABSENT.items()], Task)


_ABSENT: dict[str, int | None] = {name: 0 if kind is int else None for name, kind in get_type_hints(Task).items()}
"""Every field of a task in its order, with the value of one that does not travel."""


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
