"""Builds `NewTask` values from a command, payloads and the options of `enqueue`."""

from collections.abc import Iterable
from typing import Any

from codeq.domain.errors import InvalidRequest
from codeq.domain.requests import NewTask
from codeq.sdk.durations import milliseconds, unix_ms
from codeq.sdk.jobs import encode_json
from codeq.sdk.tracing import current_trace


def new_tasks(command: str, payloads: Iterable[Any], **options: Any) -> list[NewTask]:
    """New tasks for `enqueue_many`, one per payload. Takes the options of `enqueue` and the fields of `NewTask`."""
    return [new_task(command, payload, options) for payload in payloads]


def new_task(command: str, payload: Any, options: dict[str, Any]) -> NewTask:
    """Takes the options of `enqueue` and the fields of `NewTask`. The current span becomes the parent of the work."""
    encoded = encode_json(payload)
    parent, state = current_trace()
    if not options:
        return NewTask(command=command, payload=encoded, trace_parent=parent, trace_state=state)
    fields = {"trace_parent": parent, "trace_state": state, **options}
    delay, run_at = fields.pop("delay", None), fields.pop("run_at", None)
    if delay is not None:
        fields["delay_ms"] = milliseconds(delay)
    if run_at is not None:
        fields["run_at_ms"] = unix_ms(run_at)
    try:
        return NewTask(command=command, payload=encoded, **fields)
    except TypeError as fault:
        raise InvalidRequest(f"there is no such option: {fault}") from None
