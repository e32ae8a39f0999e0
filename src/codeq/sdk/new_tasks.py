"""Builds `NewTask` values from a command, payloads and the options of `enqueue`."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypedDict, Unpack

from codeq.domain.backoff import Backoff
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import DELAY_MS_MAX
from codeq.domain.requests import NewTask
from codeq.sdk.durations import Seconds, milliseconds_from, unix_ms
from codeq.sdk.json_encoding import encode_json
from codeq.sdk.tracing import current_trace


class EnqueueOptions(TypedDict, total=False):
    """What `enqueue` takes besides the payload."""

    priority: int
    """0 to 9, 9 first."""
    delay: Seconds
    run_at: datetime | None
    """With a time zone; wins over `delay`."""
    max_attempts: int | None
    """None for the queue's own."""
    idempotency_key: str | None
    webhook: str | None
    backoff: Backoff | None


ENQUEUE_OPTIONS = frozenset(EnqueueOptions.__annotations__)


def new_task(command: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> NewTask:
    """A task for `enqueue_many`. Takes the options of `enqueue`. The current span becomes the parent of the work."""
    if callable(command):
        raise InvalidRequest(
            f"a command is text, not {command!r:.80}: declare the function with @codeq.task(), and use its `new_task`"
        )
    return new_task_of(command, encode_json(payload), options) if options else plain_task(command, payload)


def plain_task(command: str, payload: Any) -> NewTask:
    """As `new_task`, without options."""
    parent, state = current_trace()
    return NewTask(command=command, payload=encode_json(payload), trace_parent=parent, trace_state=state)


def new_tasks(command: str, payloads: Iterable[Any], **options: Unpack[EnqueueOptions]) -> list[NewTask]:
    """Tasks for `enqueue_many`, one per payload. Takes the options of `enqueue`."""
    return [new_task_of(command, encode_json(payload), options) for payload in payloads]


def new_task_of(command: str, payload: bytes, options: EnqueueOptions) -> NewTask:
    """As `new_task`, with a payload that is JSON text."""
    parent, state = current_trace()
    if not ENQUEUE_OPTIONS.issuperset(options):
        raise InvalidRequest(
            f"there is no such option: {', '.join(sorted(set(options) - ENQUEUE_OPTIONS))}; there are"
            f" {', '.join(sorted(ENQUEUE_OPTIONS))}. Arguments by name are for declared tasks; others have one payload"
        )
    delay, run_at = options.get("delay"), options.get("run_at")
    return NewTask(
        command=command,
        payload=payload,
        priority=options.get("priority", 0),
        delay_ms=milliseconds_from(delay, "a delay", 0, DELAY_MS_MAX) if delay else 0,
        run_at_ms=unix_ms(run_at) if run_at is not None else None,
        max_attempts=options.get("max_attempts"),
        idempotency_key=options.get("idempotency_key"),
        webhook=options.get("webhook"),
        backoff=options.get("backoff"),
        trace_parent=parent,
        trace_state=state,
    )
