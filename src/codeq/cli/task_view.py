"""A task as the command line shows it: its fields for programs, its label and its timeline for people."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codeq.cli.output import cut, span, when

if TYPE_CHECKING:
    from codeq.domain.task import Task
    from codeq.sdk.jobs import TaskDetails
    from codeq.wire.events import Event

CUT_CHARS = 4000
"""How much of a payload or a result a person is shown; `--json` has it all."""
ROW_COLUMNS = (">age", "id", "command", "status", ">prio", ">tries", "error")
_NOT_SHOWN = ("payload", "lastKnownLocation", "resultKey")
FAILING = frozenset({"nack", "expire", "fail", "abandon"})
"""Later moves carry the last error along; it happened at one of these."""


def fields(task: "Task") -> dict[str, Any]:
    """The names are those of the wire."""
    import msgspec

    from codeq.domain.task import Body
    from codeq.wire.tasks import view

    shown: dict[str, Any] = msgspec.to_builtins(view(task, Body(b"null")))
    for name in _NOT_SHOWN:
        shown.pop(name, None)
    return {**shown, "dead": task.is_dead, "payloadBytes": task.payload_bytes}


def kept_fields(kept: "TaskDetails") -> dict[str, Any]:
    return {**fields(kept.task), "payload": kept.payload, "result": kept.result}


def label(task: "Task") -> str:
    from codeq.domain.lifecycle import position
    from codeq.domain.queue import Index

    place = position(task)
    return f"{task.status} {place}" if place in (Index.DELAYED, Index.DEAD) else str(task.status)


def row(task: "Task") -> Sequence[Any]:
    return (
        span(max(0.0, time.time() - task.created_ms / 1000)),
        task.id,
        task.command,
        label(task),
        task.priority,
        f"{task.attempts}/{task.max_attempts}",
        cut(error(task), 300),
    )


def error(task: "Task") -> str:
    """What went wrong: the reason its worker gave, or the verdict where no reason was given."""
    return task.last_error or task.error or ""


def facts(task: "Task") -> list[tuple[str, str]]:
    """What there is to say of the task beside its history."""
    said = [
        ("id", task.id),
        ("command", task.command),
        ("tenant", task.tenant),
        ("status", label(task)),
        ("priority", str(task.priority)),
        ("failed tries", f"{task.attempts} of {task.max_attempts}"),
        ("deliveries", str(task.deliveries)),
        ("created", when(task.created_ms)),
    ]
    if task.visible_ms:
        said.append(("waits until", when(task.visible_ms)))
    if task.status.value == "IN_PROGRESS":
        said += [("worker", task.worker or "-"), ("lease token", str(task.lease_token))]
        said.append(("lease until", f"{when(task.lease_until_ms)} ({_left(task.lease_until_ms)})"))
        if task.progress:
            said.append(("progress", task.progress))
    if task.ended_ms:
        said.append(("ended", f"{when(task.ended_ms)} ({span((task.ended_ms - task.created_ms) / 1000)} in all)"))
    if task.error:
        said.append(("error", task.error))
    if task.last_error:
        said.append(("last error", task.last_error))
    if task.trace_id:
        said.append(("trace", task.trace_id))
    return said


def timeline(events: "Sequence[Event]") -> list[Sequence[Any]]:
    """Rows: when, how long after the move before, the move, what it made of the task, who, and what was said."""
    from codeq.wire.to_domain import moment_ms

    rows: list[Sequence[Any]] = []
    before_ms = 0
    for event in events:
        at_ms = moment_ms(event.at)
        passed = f"+{span((at_ms - before_ms) / 1000)}" if before_ms else ""
        rows.append((when(at_ms), passed, event.move, event.status_after, event.worker_id or "", _remark(event)))
        before_ms = at_ms
    return rows


def _remark(event: "Event") -> str:
    from codeq.wire.to_domain import moment_ms

    said = []
    if event.move == "claim":
        said.append(f"token {event.lease_token}")
    if event.move in FAILING and event.error:
        said.append(cut(event.error, 200))
    if event.visible_at and event.move != "claim":
        said.append(f"waits {span((moment_ms(event.visible_at) - moment_ms(event.at)) / 1000)}")
    return "; ".join(said)


def _left(until_ms: int) -> str:
    left_s = until_ms / 1000 - time.time()
    return f"{span(left_s)} left" if left_s > 0 else f"over for {span(-left_s)}"
