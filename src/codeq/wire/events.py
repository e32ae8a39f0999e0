"""An event on the wire: one row per change, with the same columns in JSON, Arrow and Spark."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, get_type_hints
from urllib.parse import urlencode

from msgspec import UNSET, UnsetType

from codeq.domain.ids import shard_of
from codeq.domain.task import Task
from codeq.wire import times
from codeq.wire.message import WireStruct

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: tuple[tuple[str, str, bool], ...] = (
    ("shard", "int32", False),
    ("seq", "int64", False),
    ("at", "timestamp", False),
    ("move", "string", False),
    ("tenant", "string", False),
    ("command", "string", False),
    ("task_id", "string", False),
    ("priority", "int32", False),
    ("status_before", "string", True),
    ("status_after", "string", False),
    ("attempts", "int32", False),
    ("deliveries", "int32", False),
    ("max_attempts", "int32", False),
    ("lease_token", "int64", False),
    ("worker_id", "string", True),
    ("lease_until", "timestamp", True),
    ("visible_at", "timestamp", True),
    ("error", "string", True),
    ("payload_bytes", "int64", False),
    ("trace_id", "string", True),
    ("artifacts", "int32", False),
    ("artifact_bytes", "int64", False),
    ("worker_name", "string", True),
)
"""Name, type and whether it may be null. Timestamps are microseconds in UTC."""

_FIELD_OF = {
    "seq": "version",
    "at": "updated_ms",
    "task_id": "id",
    "status_after": "status",
    "worker_id": "worker",
    "lease_until": "lease_until_ms",
    "visible_at": "visible_ms",
}
"""Columns whose names differ from the task's field. The column for an error combines two fields."""
_TASK_KINDS = get_type_hints(Task)
TASK_FIELDS = frozenset(
    {"last_error", *(_FIELD_OF.get(name, name) for name, _, _ in COLUMNS if name != "shard")},
)

PAYLOAD = ("payload", "string", True)
"""Added on request: the JSON text that the producer sent; null once the task is purged."""

ARROW = "application/vnd.apache.arrow.stream"
"""The media type of events as Arrow."""
ARROW_LZ4 = f"{ARROW};compression=lz4"
"""The same with compressed buffers, for clients that accept it."""
_SCOPE_CHARS_MAX = 1000
PAST_THE_END = 1 << 62
"""An offset after the last event of any log: a page from there has no events, only the bounds of the log."""
NEXT_OFFSET, FIRST_OFFSET, END_OFFSET, SHARDS, LOG_ID, SCOPE = (
    b"codeq-next-offset",
    b"codeq-first-offset",
    b"codeq-end-offset",
    b"codeq-shards",
    b"codeq-log-id",
    b"codeq-events-scope",
)
"""Headers that carry beside Arrow what JSON has beside its events."""


class Event(WireStruct, frozen=True, kw_only=True, gc=False):
    """One move of one task, and the task's state after it."""

    shard: int
    seq: int
    at: str
    move: str
    tenant: str
    command: str
    task_id: str
    priority: int
    status_before: str | None
    status_after: str
    attempts: int
    deliveries: int
    max_attempts: int
    lease_token: int
    worker_id: str | None
    lease_until: str | None
    visible_at: str | None
    error: str | None
    payload_bytes: int
    trace_id: str | None
    artifacts: int = 0
    """Files of the result, links included: on `complete` and `fail`, and on `purge`, which deletes them. Servers of
    earlier versions do not tell."""
    artifact_bytes: int = 0
    worker_name: str | None = None
    """What the worker of the last delivery calls itself, such as `host:pid`. Earlier servers do not tell."""
    payload: str | UnsetType | None = UNSET
    """Only if requested: JSON text; null once the task is purged."""


class EventPage(WireStruct, frozen=True, kw_only=True, gc=False):
    """A piece of a shard's log."""

    shard: int
    events: list[Event]
    next_offset: int
    """The offset to continue from. For a request by time: the first event that is not older."""
    first_offset: int
    """The oldest event that is still stored."""
    end_offset: int
    """One past the newest event of the shard."""
    shards: int
    log_id: str = ""
    """Identifies the log: offsets mean nothing in one with another id. A restore from a backup begins another log."""
    scope: str = ""
    """Whose events the caller gets, as `scope` writes it; empty for all of them."""


class History(WireStruct, frozen=True, kw_only=True, gc=False):
    task_id: str
    events: list[Event]


def scope(tenant: str, commands: Iterable[str] | None = None) -> str:
    """Writes down whose events a caller gets: of this tenant (empty for all), and of these commands (None for all).

    Very many commands are written as a digest, because a header has to hold them.
    """
    parts = {"tenant": tenant} if tenant else {}
    if commands is not None:
        parts["command"] = ",".join(sorted(commands))
    text = urlencode(parts)
    return text if len(text) <= _SCOPE_CHARS_MAX else f"sha256={sha256(text.encode()).hexdigest()}"


def event(task: Task, payload: str | UnsetType | None = UNSET) -> Event:
    return Event(
        shard=shard_of(task.id),
        seq=task.version,
        at=times.text(task.updated_ms),
        move=task.move.value,
        tenant=task.tenant,
        command=task.command,
        task_id=task.id,
        priority=task.priority,
        status_before=task.status_before.value if task.status_before else None,
        status_after=task.status.value,
        attempts=task.attempts,
        deliveries=task.deliveries,
        max_attempts=task.max_attempts,
        lease_token=task.lease_token,
        worker_id=task.worker,
        lease_until=times.optional(task.lease_until_ms),
        visible_at=times.optional(task.visible_ms),
        error=task.last_error or task.error,
        payload_bytes=task.payload_bytes,
        trace_id=task.trace_id,
        artifacts=task.artifacts,
        artifact_bytes=task.artifact_bytes,
        worker_name=task.worker_name,
        payload=payload,
    )


def arrow_schema(*, payload: bool = False) -> "pa.Schema":
    """Returns the columns as Arrow types: exactly what Spark makes of its own schema, so that no row is converted."""
    import pyarrow as pa  # noqa: PLC0415 - large, and only readers of Arrow need it

    types = {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    columns = (*COLUMNS, PAYLOAD) if payload else COLUMNS
    return pa.schema([pa.field(name, types[kind], nullable=nullable) for name, kind, nullable in columns])


def arrow_fields(tasks: Sequence[Task]) -> "dict[str, pa.Array]":
    """Returns what `arrow_batch` needs of these tasks."""
    import pyarrow as pa  # noqa: PLC0415

    kinds = {name: pa.int64() if kind is int else pa.string() for name, kind in _TASK_KINDS.items()}
    return {name: pa.array(list(map(attrgetter(name), tasks)), kinds[name]) for name in TASK_FIELDS}


def arrow_batch(
    fields: "Mapping[str, pa.Array]", shard: int, schema: "pa.Schema", payloads: Sequence[str | None] | None = None
) -> "pa.RecordBatch":
    """Returns one batch of an Arrow stream. Text columns are not dictionaries: Spark accepts plain strings only."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    computed = {
        "shard": pa.repeat(pa.scalar(shard), len(fields["version"])),
        "error": pc.coalesce(
            pc.if_else(pc.equal(fields["last_error"], ""), None, fields["last_error"]), fields["error"]
        ),
        **({} if payloads is None else {"payload": pa.array(payloads, pa.string())}),
    }
    columns = []
    for field in schema:
        column = computed.get(field.name)
        if column is None:
            column = fields[_FIELD_OF.get(field.name, field.name)]
        if pa.types.is_timestamp(field.type):  # the task's are milliseconds, and 0 for none
            column = pc.multiply(pc.if_else(pc.equal(column, 0), None, column) if field.nullable else column, 1000)
        columns.append(column.cast(field.type))
    return pa.record_batch(columns, schema=schema)


def arrow_stream(batches: "Sequence[pa.RecordBatch]", schema: "pa.Schema", *, compressed: bool = False) -> bytes:
    """Returns the batches as one Arrow IPC stream. With LZ4 it is a quarter as long, and no slower to write."""
    import pyarrow as pa  # noqa: PLC0415

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None, use_threads=False)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
