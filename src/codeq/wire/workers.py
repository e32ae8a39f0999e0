"""Messages about workers: what one tells about itself with its claims, and the list of those that work."""

from typing import Annotated

from msgspec import Meta

from codeq.domain.limits import CLAIM_COMMANDS_MAX, WORKER_NAME_PATTERN, WORKER_SLOTS_MAX, WORKER_TEXT_CHARS_MAX
from codeq.domain.workers import WorkerInfo, WorkerStatus
from codeq.wire import times
from codeq.wire.message import Name, Request, WireStruct

_Text = Annotated[str, Meta(max_length=WORKER_TEXT_CHARS_MAX)]


class WorkerFields(Request, frozen=True, kw_only=True, gc=False):
    name: Annotated[str, Meta(min_length=1, max_length=100, pattern=f"^{WORKER_NAME_PATTERN}$")]
    """Unique among the workers with the same token, such as `host:pid`."""
    host: _Text = ""
    pid: Annotated[int, Meta(ge=0)] = 0
    version: _Text = ""
    slots: Annotated[int, Meta(ge=0, le=WORKER_SLOTS_MAX)] = 0
    """How many tasks it runs at once."""
    commands: Annotated[list[Name], Meta(max_length=CLAIM_COMMANDS_MAX)] | None = None
    """All that it works on, where this claim asks for some of them only."""


class WorkerView(WireStruct, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    """A worker that was heard from lately, or that holds tasks."""

    name: str
    """Empty if it gave none: then `subject` is all that is known of it."""
    subject: str
    """The subject of its token."""
    host: str = ""
    pid: int = 0
    version: str = ""
    slots: int = 0
    commands: list[str] | None = None
    """Absent for all commands."""
    first_seen_at: str | None = None
    last_seen_at: str | None = None
    """Absent if it holds tasks, but was not heard from for so long that it counts as gone."""
    holds: int = 0
    """How many tasks it has in progress."""
    tasks: list[str] = []
    """Ids of some of them."""


class WorkerViews(WireStruct, frozen=True, kw_only=True, gc=False):
    workers: list[WorkerView]
    complete: bool
    """False if there are too many tasks in progress to count: then `holds` are lower bounds."""


def worker_fields(info: WorkerInfo) -> WorkerFields:
    return WorkerFields(
        name=info.name,
        host=info.host,
        pid=info.pid,
        version=info.version,
        slots=info.slots,
        commands=None if info.commands is None else list(info.commands),
    )


def worker_view(worker: WorkerStatus) -> WorkerView:
    return WorkerView(
        name=worker.name,
        subject=worker.subject,
        host=worker.host,
        pid=worker.pid,
        version=worker.version,
        slots=worker.slots,
        commands=None if worker.commands is None else list(worker.commands),
        first_seen_at=times.optional(worker.first_seen_ms),
        last_seen_at=times.optional(worker.last_seen_ms),
        holds=worker.holds,
        tasks=list(worker.tasks),
    )
