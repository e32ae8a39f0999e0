"""Responses as clients decode them: the messages of `wire.tasks` reduced to the fields that a client needs.

The decoder skips fields that are not named here.
"""

import msgspec
from msgspec import Raw

from codeq.wire.message import WireStruct
from codeq.wire.tasks import TaskView


class ClaimedTask(WireStruct, frozen=True, kw_only=True, gc=False):
    """The fields of a claimed task that a worker needs; the rest of the response is skipped."""

    id: str
    command: str
    payload: str
    priority: int
    attempts: int
    max_attempts: int
    deliveries: int
    worker_id: str = ""
    lease_until: str | None = None
    lease_token: int | None = None
    trace_parent: str | None = None
    trace_state: str | None = None


class ClaimedTaskList(WireStruct, frozen=True, kw_only=True, gc=False):
    tasks: list[ClaimedTask]


class RawResult(WireStruct, frozen=True, kw_only=True, gc=False):
    """A worker's result; absent if there is none."""

    result: Raw = msgspec.field(default_factory=Raw)


class TaskAndRawResult(WireStruct, frozen=True, kw_only=True, gc=False):
    task: TaskView
    result: RawResult


class EnqueueResult(WireStruct, frozen=True, kw_only=True, gc=False):
    """The result for one new task: the task, still packed, or why it was refused."""

    task: Raw = msgspec.field(default_factory=Raw)
    error: str | None = None
    code: str | None = None
    replayed: bool = False
    mismatched: bool = False


class EnqueueResultList(WireStruct, frozen=True, kw_only=True, gc=False):
    results: list[EnqueueResult]


class ItemVerdict(WireStruct, frozen=True, kw_only=True, gc=False):
    """Whether one item of a batch was accepted: no code if it was. The task or result itself is skipped."""

    error: str | None = None
    code: str | None = None
    replayed: bool = False
    """Of a new task: whether its idempotency key had been used before."""
    mismatched: bool = False
    """Of a replayed one: whether the task that has the key has another command or payload."""


class ItemVerdicts(WireStruct, frozen=True, kw_only=True, gc=False):
    results: list[ItemVerdict]
