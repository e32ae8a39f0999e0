"""One run of the pipeline: ingests new events into bronze, updates silver, updates gold. Each step is one commit.

A table records the events that it has taken in, by shard. A run that dies leaves each table somewhere, and the next run
continues from there. Two runs at once are safe: the commit of the slower one is refused.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

from msgspec import Struct
from pyspark.sql import SparkSession

from codeq.domain.errors import CodeqError
from codeq.pipeline.client import EventFilter, LogBounds, PipelineClient, ServerOptions
from codeq.pipeline.connector.offsets import OffsetRange, Offsets, capped, split
from codeq.pipeline.connector.options import ReadOptions
from codeq.pipeline.connector.schema import event_schema
from codeq.pipeline.connector.source import DataLost, EventsReader
from codeq.pipeline.lake import silver, update
from codeq.pipeline.lake.gold_update import update_gold as update_gold  # noqa: PLC0414
from codeq.pipeline.lake.maintenance import Log, check_complete, compact
from codeq.pipeline.lake.table import EVENTS, Lake, LakeTable
from codeq.pipeline.lake.upgrade import upgrade
from codeq.pipeline.lake.verdicts import SCOPE, Auditor, cleared_marks
from codeq.pipeline.parallel import in_parallel
from codeq.pipeline.session import parallelism_of

EVENTS_PER_BATCH = 2_000_000
"""Events in one commit of bronze: a crash makes the next run read at most these again."""
EVENTS_PER_FILE_MIN = 25_000
"""Many cores share a batch, but none of them writes a file with fewer events."""
SILVER_EVENTS = 5_000_000
"""Events in one commit of silver. Spark tasks hold a fixed number of them, however many these are."""

LOG_ID = "codeq.logId"
"""The property of bronze that tells whose log it was made from; that named SCOPE tells whose events it has."""
RETRY_S = 30


class LogMismatch(CodeqError):
    """The lake was made from the log of another server."""

    code = "other-log"


class ScopeMismatch(CodeqError):
    """The lake has the events of another tenant, or of other commands."""

    code = "other-scope"


class RunSummary(Struct):
    events: int = 0
    batches: int = 0
    seconds: dict[str, float] = {}
    """By layer, and `upkeep` for compaction."""


def run_once(
    spark: SparkSession, lake: Lake, server: ServerOptions, *, log: Log = lambda _: None, tenant: str | None = None
) -> RunSummary:
    """Brings every table of the lake up to the current end of the server's log."""
    summary = RunSummary()
    upgrade(spark, lake, log=log)
    steps: dict[str, Callable[[], object]] = {
        "bronze": lambda: _ingest_all(spark, lake, server, summary=summary, log=log, tenant=tenant),
        "silver": lambda: update_silver(spark, lake, log=log),
        "gold": lambda: update_gold(spark, lake, log=log),
        "upkeep": lambda: compact(spark, lake, log=log),
    }
    for layer, step in steps.items():
        started_s = time.monotonic()
        step()
        summary.seconds[layer] = time.monotonic() - started_s
    return summary


def _ingest_all(
    spark: SparkSession, lake: Lake, server: ServerOptions, *, summary: RunSummary, log: Log, tenant: str | None
) -> None:
    # Events that come in meanwhile are left to the next run: under steady traffic this one would never reach silver.
    up_to = {shard: bounds.end for shard, bounds in _log_bounds(server, tenant).items()}
    while events := ingest(spark, lake, server, tenant=tenant, up_to=up_to):
        summary.events += events
        summary.batches += 1
        log(f"bronze: {summary.events:,} events")


def ingest(
    spark: SparkSession,
    lake: Lake,
    server: ServerOptions,
    *,
    tenant: str | None = None,
    events_max: int = EVENTS_PER_BATCH,
    up_to: Mapping[int, int] | None = None,
) -> int:
    """Appends the next batch of events to bronze, none of them past `up_to`. Returns the number of offsets that the
    batch covers; 0 if there are no new events.
    """
    server_log = _log_bounds(server, tenant)
    known = lake.bronze.offsets
    starts = {shard: known.get(shard) or bounds.first for shard, bounds in server_log.items()}
    check_log(lake, server_log[0])
    _check_scope(lake, server_log[0])
    _check_continues(starts, server_log)
    events_per_shard = max(1, events_max // len(server_log))
    ends = {shard: min(bounds.end, starts[shard] + events_per_shard) for shard, bounds in server_log.items()}
    if up_to is not None:
        ends = {shard: max(starts[shard], min(end, up_to.get(shard, end))) for shard, end in ends.items()}
    covered = sum(ends[shard] - starts[shard] for shard in server_log)
    if covered <= 0:
        return 0
    _record_log(lake, server_log[0])
    ranges = split(
        _offsets(starts), _offsets(ends), partitions_min=parallelism_of(spark), events_min=EVENTS_PER_FILE_MIN
    )
    batch, started_s = lake.bronze.batch + 1, time.monotonic()
    read = _reader(server, tenant, server_log[0])
    files = lake.bronze.write_pieces(spark, read, ranges, part=EVENTS, batch=batch)
    lake.bronze.commit(files, batch=batch, offsets=ends, seconds=time.monotonic() - started_s)
    return covered


def _reader(server: ServerOptions, tenant: str | None, bounds: LogBounds) -> "Callable[[OffsetRange], update.Batches]":
    """Returns a function that reads a range of this log, on an executor; it raises an error if it meets another."""
    events = EventsReader(ReadOptions(server=server, event_filter=EventFilter(tenant=tenant)), event_schema())
    return partial(events.read_range, log_id=bounds.log_id, scope=bounds.scope)


def check_log(lake: Lake, bounds: LogBounds) -> None:
    """Raises LogMismatch unless the lake was made from this log."""
    log_id = lake.bronze.properties.get(LOG_ID, bounds.log_id)
    if log_id != bounds.log_id:
        raise LogMismatch(
            f"the lake was made from log {log_id}, and the server has log {bounds.log_id}: this is another "
            "server, or one restored from a backup; begin a new lake"
        )


def _check_scope(lake: Lake, bounds: LogBounds) -> None:
    """Raises ScopeMismatch unless the caller gets the events of the tenants that the lake has."""
    properties = lake.bronze.properties
    if properties.get(SCOPE, bounds.scope) != bounds.scope:
        raise ScopeMismatch(
            f"the lake has {_scope_text(properties[SCOPE])}, and this call gets {_scope_text(bounds.scope)}: with "
            "these it would have gaps. Use the same token and --tenant as before, or begin a new lake"
        )


def _scope_text(scope: str) -> str:
    return f"the events of {scope}" if scope else "all events"


def _record_log(lake: Lake, bounds: LogBounds) -> None:
    wanted = {LOG_ID: bounds.log_id, SCOPE: bounds.scope}
    if bounds.log_id and any(lake.bronze.properties.get(name) != value for name, value in wanted.items()):
        lake.bronze.set_properties(wanted)


def _check_continues(starts: Mapping[int, int], server_log: Mapping[int, LogBounds]) -> None:
    """Raises an error unless the server's log has the event after the last one of the lake, in every shard."""
    for shard, bounds in server_log.items():
        if starts[shard] > bounds.end:
            raise LogMismatch(
                f"the server's log of shard {shard} ends before event {bounds.end}, and the lake has events up to "
                f"{starts[shard]}: this is another server, or one restored from a backup; begin a new lake"
            )
        if starts[shard] < bounds.first:
            raise DataLost(
                f"events {starts[shard]} to {bounds.first - 1} of shard {shard} were trimmed before they were "
                "ingested, and a lake must not have gaps; begin a new lake, and let the server keep events for longer"
            )


def update_silver(spark: SparkSession, lake: Lake, *, log: Log = lambda _: None) -> None:
    """Brings silver up to bronze: updates open rows with new events, and appends the rows that are closed by them."""
    epoch = max(table.epoch for table in (lake.bronze, *lake.silver))
    for table in lake.silver:
        if table.epoch < epoch:  # a rebuild died before it came to this table
            table.begin_epoch(epoch, cleared_marks(table))
    auditor = Auditor(lake)
    in_parallel([
        partial(_update_silver, spark, lake, lake.attempts, step=silver.attempts, auditor=None, log=log),
        partial(_update_silver, spark, lake, lake.tasks, step=silver.tasks, auditor=auditor, log=log),
    ])  # fmt: skip


def _update_silver(
    spark: SparkSession, lake: Lake, table: LakeTable, *, step: update.Update, auditor: Auditor | None, log: Log
) -> None:
    goal = lake.bronze.offsets
    files = lake.bronze.files(part=EVENTS)
    while (starts := table.offsets) != goal:
        full = {shard: starts.get(shard, 0) for shard in goal}
        first = {file.shard: file.first_seq for file in reversed(files) if file.shard is not None}
        begun = {shard: max(offset, min(first.get(shard, goal[shard]), goal[shard])) for shard, offset in full.items()}
        ends = {int(shard): end for shard, end in capped(_offsets(begun), _offsets(goal), SILVER_EVENTS).items()}
        events = update.NewEvents(lake.bronze, [file for file in files if file.overlaps(full, ends)], full, ends)
        update.update_table(spark, table, step, events, auditor=auditor)
        log(f"{table.folder.name}: batch {table.batch}")


def rebuild(spark: SparkSession, lake: Lake, *, log: Log = lambda _: None) -> None:
    """Rebuilds silver and gold from bronze. Raises EventsDeleted if bronze lacks events.

    Silver begins a new epoch, and gold follows it: gold of another epoch than silver's is made from nothing. Bronze
    begins it first: so nobody who has seen the tables before can delete the events that they are made from.
    """
    check_complete(lake)
    upgrade(spark, lake, log=log)
    epoch = max(table.epoch for table in (lake.bronze, *lake.silver)) + 1
    lake.bronze.commit([], batch=None, epoch=epoch)
    for table in lake.silver:
        table.begin_epoch(epoch, cleared_marks(table))
    update_silver(spark, lake, log=log)
    update_gold(spark, lake, log=log)


def _log_bounds(server: ServerOptions, tenant: str | None) -> dict[int, LogBounds]:
    with closing(PipelineClient(server, retry_s=RETRY_S)) as client:
        return client.log_bounds(event_filter=EventFilter(tenant=tenant))


def _offsets(offsets: Mapping[int, int]) -> Offsets:
    return {str(shard): offset for shard, offset in offsets.items()}
