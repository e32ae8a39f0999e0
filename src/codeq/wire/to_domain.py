"""Converts messages to values of the domain: responses for clients, policies for the server."""

from functools import lru_cache
from typing import get_type_hints

import msgspec

from codeq.domain.backoff import Backoff, BackoffKind, PartialBackoff
from codeq.domain.queue import EffectivePolicy, OnExpiry, QueuePolicy, effective_policy
from codeq.domain.task import Task
from codeq.domain.workers import WorkerInfo, WorkerStatus
from codeq.wire import queues, tasks, times
from codeq.wire.queues import optional
from codeq.wire.tasks import TaskView
from codeq.wire.workers import WorkerFields, WorkerView


def task_of(view: TaskView) -> Task:
    """Returns the task of a response. What is not sent is 0 or empty: version, retention, own backoff."""
    fields = _ABSENT | {
        "id": view.id, "tenant": view.tenant_id, "command": view.command, "priority": view.priority,
        "status": view.status, "move": view.last_move, "worker": view.worker_id, "lease_token": view.lease_token or 0,
        "created_ms": moment_ms(view.created_at), "updated_ms": moment_ms(view.updated_at),
        "visible_ms": moment_ms(view.visible_at), "lease_until_ms": moment_ms(view.lease_until),
        "ended_ms": moment_ms(view.ended_at), "attempts": view.attempts, "max_attempts": view.max_attempts,
        "deliveries": view.deliveries, "error": view.error, "last_error": view.last_error,
        "payload_bytes": len(view.payload.encode()), "has_webhook": view.webhook is not None,
        "trace_id": view.trace_parent[3:35] if view.trace_parent else None, "progress": view.progress,
        "artifacts": view.artifacts, "artifact_bytes": view.artifact_bytes, "worker_name": view.worker_name,
    }  # fmt: skip
    return msgspec.convert([*fields.values()], Task)


_ABSENT: dict[str, int | None] = {name: 0 if kind is int else None for name, kind in get_type_hints(Task).items()}
"""Every field of a task in its order, with its value where it is not sent."""


def policy_of(message: queues.PolicyFields) -> QueuePolicy:
    """Returns the policy. Raises ValueError for a backoff or an expiry rule that does not exist."""
    return QueuePolicy(
        max_attempts=message.max_attempts,
        max_deliveries=message.max_deliveries,
        lease_ms=optional(message.lease_seconds, _milliseconds),
        backoff=optional(message.backoff, _partial_backoff),
        on_expiry=optional(message.on_expiry, OnExpiry),
        retention_ms=optional(message.retention_seconds, _milliseconds),
        dead_retention_ms=optional(message.dead_retention_seconds, _milliseconds),
        max_consumers=message.max_consumers,
        paused=message.paused,
        priority_tiers=optional(message.priority_tiers, lambda tiers: tuple(sorted(tiers))),
        dead_letter_ref=message.dead_letter_topic_ref,
    )


def topic_policy(topic: queues.Topic) -> QueuePolicy:
    """Returns the policy as `policy_of`, with the server's fields, such as its version."""
    return msgspec.structs.replace(
        policy_of(topic.policy),
        version=topic.version,
        created_ms=moment_ms(topic.created_at),
        updated_ms=moment_ms(topic.updated_at),
    )


def effective_of(message: queues.PolicyFields) -> EffectivePolicy:
    """Returns the rules of a message that has every rule."""
    return effective_policy(policy_of(message), EffectivePolicy())


def worker_info(message: WorkerFields) -> WorkerInfo:
    return WorkerInfo(
        name=message.name,
        host=message.host,
        pid=message.pid,
        version=message.version,
        slots=message.slots,
        commands=optional(message.commands, tuple),
    )


def worker_status(view: WorkerView) -> WorkerStatus:
    return WorkerStatus(
        name=view.name,
        subject=view.subject,
        host=view.host,
        pid=view.pid,
        version=view.version,
        slots=view.slots,
        commands=optional(view.commands, tuple),
        first_seen_ms=moment_ms(view.first_seen_at),
        last_seen_ms=moment_ms(view.last_seen_at),
        holds=view.holds,
        tasks=tuple(view.tasks),
    )


def _partial_backoff(message: queues.BackoffRules) -> PartialBackoff:
    return PartialBackoff(
        kind=optional(message.policy, BackoffKind),
        base_ms=optional(message.base_seconds, _milliseconds),
        max_ms=optional(message.max_seconds, _milliseconds),
    )


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def domain_backoff(message: tasks.Backoff) -> Backoff:
    """Returns the backoff. Raises ValueError for a policy that does not exist."""
    return Backoff(BackoffKind(message.policy), round(message.base_seconds * 1000), round(message.max_seconds * 1000))


@lru_cache(maxsize=1024)
def moment_ms(text: str | None) -> int:
    """Returns Unix milliseconds; 0 for none. Cached, as tasks that were claimed together have the same times."""
    return times.parse(text) if text else 0
