"""What a webhook is told about a task that has ended: the payload of its delivery, which is a task of its own."""

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from codeq.domain import lifecycle
from codeq.domain.artifacts import Artifact, split_result
from codeq.domain.queue import WEBHOOKS, EffectivePolicy
from codeq.domain.requests import NewTask
from codeq.domain.task import Body, Change, Status

_NULL = Raw(b"null")


class ResultCallback(Struct, frozen=True, kw_only=True, rename="camel"):
    """The payload of a delivery. It has everything that is sent, so that it can be sent when its task is gone."""

    task_id: str
    command: str
    url: str
    status: Status
    error: str | None
    last_error: str | None
    attempts: int
    created_ms: int
    ended_ms: int
    result: Raw = _NULL
    """JSON, as the worker submitted it."""
    artifacts: tuple[Artifact, ...] = ()


def with_delivery(change: Change, body: Body, delivery_id: str, *, policy: EffectivePolicy) -> Change:
    """Returns the change, which ends a task with a webhook, with the delivery that it creates. The id must be of the
    task's shard; the policy is that of the tenant's queue of deliveries."""
    task = change.after
    result, artifacts = split_result(change.result)
    callback = ResultCallback(
        task_id=task.id,
        command=task.command,
        url=body.webhook or "",
        status=task.status,
        error=task.error,
        last_error=task.last_error,
        attempts=task.attempts,
        created_ms=task.created_ms,
        ended_ms=task.ended_ms,
        result=Raw(result) if result else _NULL,
        artifacts=artifacts,
    )
    new = NewTask(
        command=WEBHOOKS,
        payload=msgspec.json.encode(callback),
        trace_parent=body.trace_parent,
        trace_state=body.trace_state,
    )
    delivery = lifecycle.enqueue(new, delivery_id, task.tenant, now_ms=task.ended_ms, policy=policy)
    return replace(change, delivery=delivery)
