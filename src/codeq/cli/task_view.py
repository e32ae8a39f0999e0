"""Formats a task: its fields for `--json`, its row, facts and history for people."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codeq.cli.output import format_bytes, format_duration, format_time, truncate

if TYPE_CHECKING:
    from codeq.sdk.jobs import TaskDetails
    from codeq.sdk.tasks import Task
    from codeq.wire.events import Event

CUT_CHARS = 4000
"""Characters of a payload or a result that are printed; `--json` prints all."""
ROW_COLUMNS = (">age", "id", "command", "status", ">prio", ">attempts", "error")
_NOT_SHOWN = ("payload", "lastKnownLocation", "resultKey")
FAILING = frozenset({"nack", "expire", "fail", "abandon"})
"""Moves at which an error happens. Later events of the task repeat it."""
OF_DELIVERY = frozenset({"claim", "complete", "fail", "nack", "expire", "abandon", "cancel"})
"""Moves that begin or end a delivery, and so have a worker. Later events of the task repeat its name."""


def task_fields(task: "Task") -> dict[str, Any]:
    """The fields of `--json`, named as on the wire."""
    import msgspec

    from codeq.domain.task import Body
    from codeq.sdk.tasks import record_of
    from codeq.wire.tasks import view

    shown: dict[str, Any] = msgspec.to_builtins(view(record_of(task), Body(b"null")))
    for name in _NOT_SHOWN:
        shown.pop(name, None)
    return {**shown, "dead": task.is_dead, "payloadBytes": task.payload_bytes}


def details_fields(details: "TaskDetails") -> dict[str, Any]:
    return {**task_fields(details.task), "payload": details.payload, "result": details.result}


def status_text(task: "Task") -> str:
    from codeq.domain.lifecycle import position
    from codeq.domain.queue import Index
    from codeq.sdk.tasks import record_of

    index = position(record_of(task))
    return f"{task.status} {index}" if index in (Index.DELAYED, Index.DEAD) else str(task.status)


def task_row(task: "Task") -> Sequence[Any]:
    return (
        format_duration(max(0.0, time.time() - task.created_at.timestamp())),
        task.id,
        task.command,
        status_text(task),
        task.priority,
        f"{task.attempts}/{task.max_attempts}",
        truncate(error_text(task), 300),
    )


def error_text(task: "Task") -> str:
    """The reason that the last worker gave, or else the error of the task: its first line, without the traceback."""
    return _first_line(task.last_error or task.error or "")


def _first_line(error: str) -> str:
    return error.partition("\n")[0]


def facts(task: "Task") -> list[tuple[str, str]]:
    """The task as pairs of name and value, without its history."""
    from codeq.sdk.tasks import record_of

    record = record_of(task)
    pairs = [
        ("id", task.id),
        ("command", task.command),
        ("tenant", task.tenant),
        ("status", status_text(task)),
        ("priority", str(task.priority)),
        ("failed attempts", f"{task.attempts} of {task.max_attempts}"),
        ("deliveries", str(task.deliveries)),
        ("created", format_time(record.created_ms)),
    ]
    if task.visible_at:
        pairs.append(("waits until", format_time(record.visible_ms)))
    if task.status.value == "IN_PROGRESS":
        pairs += [("worker", _worker(task)), ("lease token", str(task.lease_token))]
        pairs.append(("lease until", f"{format_time(record.lease_until_ms)} ({_left(record.lease_until_ms)})"))
        if task.progress:
            pairs.append(("progress", task.progress))
    if task.ended_at:
        took_s = (task.ended_at - task.created_at).total_seconds()
        pairs.append(("ended", f"{format_time(record.ended_ms)} ({format_duration(took_s)} in all)"))
    if task.artifacts:
        pairs.append(("artifacts", f"{task.artifacts} ({format_bytes(task.artifact_bytes)}); codeq artifact list"))
    if task.error:
        pairs.append(("error", task.error))
    if task.last_error:
        pairs.append(("last error", task.last_error))
    if task.trace_id:
        pairs.append(("trace", task.trace_id))
    return pairs


def timeline(events: "Sequence[Event]") -> list[Sequence[Any]]:
    """Rows of time, time since the move before, move, status after it, worker, and remarks."""
    from codeq.wire.to_domain import moment_ms

    rows: list[Sequence[Any]] = []
    before_ms = 0
    for event in events:
        at_ms = moment_ms(event.at)
        passed = f"+{format_duration((at_ms - before_ms) / 1000)}" if before_ms else ""
        rows.append((format_time(at_ms), passed, event.move, event.status_after, _event_worker(event), _remark(event)))
        before_ms = at_ms
    return rows


def _worker(task: "Task") -> str:
    """What the worker calls itself, and the subject of its token."""
    return f"{task.worker_name} ({task.worker})" if task.worker_name else task.worker or "-"


def _event_worker(event: "Event") -> str:
    if event.worker_name and event.move in OF_DELIVERY:
        return event.worker_name
    return event.worker_id or ""


def _remark(event: "Event") -> str:
    from codeq.wire.to_domain import moment_ms

    remarks = []
    if event.move == "claim":
        remarks.append(f"token {event.lease_token}")
    if event.move in FAILING and event.error:
        remarks.append(truncate(_first_line(event.error), 200))
    if event.artifacts:
        remarks.append(f"{event.artifacts} artifact{'' if event.artifacts == 1 else 's'}")
    if event.visible_at and event.move != "claim":
        remarks.append(f"waits {format_duration((moment_ms(event.visible_at) - moment_ms(event.at)) / 1000)}")
    return "; ".join(remarks)


def _left(until_ms: int) -> str:
    left_s = until_ms / 1000 - time.time()
    return f"{format_duration(left_s)} left" if left_s > 0 else f"expired {format_duration(-left_s)} ago"
