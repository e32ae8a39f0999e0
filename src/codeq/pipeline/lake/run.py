"""One run of the pipeline: ingests new events into bronze, updates silver, updates gold. Each step is one commit.

A table records its last batch. A run that dies leaves each table at some batch, and the next run continues from there.
Two runs at once are safe: the commit of the slower one is refused.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from codeq.domain.errors import CodeqError
from codeq.pipeline.client import EventFilter, LogBounds, PipelineClient, ServerOptions
from codeq.pipeline.connector.offsets import Offsets, split
from codeq.pipeline.connector.options import ReadOptions
from codeq.pipeline.connector.schema import event_schema
from codeq.pipeline.connector.source import DataLost, EventsReader
from codeq.pipeline.lake import gold, partitions, silver
from codeq.pipeline.lake.maintenance import Log, check_complete, compact
from codeq.pipeline.lake.table import CLOSED, DAYS, EVENTS, OPEN, DataFile, Lake, LakeTable
from codeq.pipeline.session import parallelism_of

EVENTS_PER_BATCH = 2_000_000
"""Events in one commit of bronze: a crash makes the next run read at most these again."""
SILVER_EVENTS, GOLD_EVENTS = 2_000_000, 5_000_000
"""Events in one commit of silver and of gold, which may be several batches of bronze."""

GOLD_ROWS_PER_FILE = 500_000
TABLES_IN_PARALLEL = 3
RETRY_S = 30

GoldPair = tuple[gold.GoldTable, LakeTable]


class LogMismatch(CodeqError):
    """The lake was made from the log of another server."""

    code = "other-log"


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
    up_to = {shard: bounds.end for shard, bounds in _log_bounds(server).items()}
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
    server_log = _log_bounds(server)
    starts = {shard: lake.bronze.offset(shard) or bounds.first for shard, bounds in server_log.items()}
    _check_continues(starts, server_log)
    events_per_shard = max(1, events_max // len(server_log))
    ends = {shard: min(bounds.end, starts[shard] + events_per_shard) for shard, bounds in server_log.items()}
    if up_to is not None:
        ends = {shard: max(starts[shard], min(end, up_to.get(shard, end))) for shard, end in ends.items()}
    covered = sum(ends[shard] - starts[shard] for shard in server_log)
    if covered <= 0:
        return 0
    events = EventsReader(ReadOptions(server=server, event_filter=EventFilter(tenant=tenant)), event_schema())
    ranges = split(_offsets(starts), _offsets(ends), partitions_min=parallelism_of(spark))
    batch = lake.bronze.batch + 1
    files = lake.bronze.write_pieces(spark, events.read_range, ranges, part=EVENTS, batch=batch)
    lake.bronze.commit(files, batch=batch, offsets=ends)
    return covered


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
    updates: list[tuple[LakeTable, partitions.Update]] = [(lake.attempts, silver.attempts), (lake.tasks, silver.tasks)]
    _in_parallel([partial(_update_silver, spark, lake, table, update=update, log=log) for table, update in updates])


def _update_silver(spark: SparkSession, lake: Lake, table: LakeTable, *, update: partitions.Update, log: Log) -> None:
    for files in _steps(lake.bronze.files(part=EVENTS, after_batch=table.batch), SILVER_EVENTS):
        batch = files[-1].batch
        # Events that the table has already are skipped, so repeated events in bronze change nothing.
        events = lake.bronze.parquet_files(files, start_offsets=table.offsets)
        open_files = table.files(part=OPEN)
        # Bronze records the end offsets of its last batch only.
        offsets = (lake.bronze.offsets if batch == lake.bronze.batch else {}) or events.end_offsets()
        added = table.write_update(spark, update, open_files=open_files, events=events, batch=batch)
        table.commit(added, batch=batch, removed=open_files, offsets=offsets)
        log(f"{table.folder.name}: batch {batch}")


def update_gold(spark: SparkSession, lake: Lake, *, log: Log = lambda _: None) -> None:
    """Brings gold up to silver: adds the figures of new rows to the days that they belong to."""
    up_to = min(lake.attempts.batch, lake.tasks.batch)
    by_batch: dict[int, list[GoldPair]] = {}
    for definition, table in lake.gold:
        by_batch.setdefault(table.batch, []).append((definition, table))
    for after, pairs in by_batch.items():
        _update_gold(spark, lake, pairs, after=after, up_to=up_to, log=log)


def _update_gold(
    spark: SparkSession, lake: Lake, pairs: Sequence[GoldPair], *, after: int, up_to: int, log: Log
) -> None:
    """Updates tables that are at the same batch together, so that they share the sums of the new rows."""
    for files in _steps(lake.bronze.files(part=EVENTS, after_batch=after, up_to_batch=up_to), GOLD_EVENTS):
        batch = files[-1].batch
        new = gold.GoldBatch(
            events=lake.bronze.read(spark, files),
            attempts=_closed(spark, lake.attempts, after, up_to=batch),
            tasks=_closed(spark, lake.tasks, after, up_to=batch),
        )
        partials = [definition.partials(new) for definition, _ in pairs]
        with new.cached():
            _in_parallel([
                partial(_merge_gold, spark, pair, partials=rows, events=files, log=log)
                for pair, rows in zip(pairs, partials, strict=True)
            ])  # fmt: skip
        after = batch


def _merge_gold(
    spark: SparkSession, pair: GoldPair, *, partials: DataFrame, events: Sequence[DataFile], log: Log
) -> None:
    (definition, table), batch = pair, events[-1].batch
    replaced = _days_of(events, table.files(part=DAYS))
    rows = definition.merged(table.read(spark, replaced), partials)
    # There are few rows, so one file for each day is enough.
    file_count = 1 + sum(file.rows for file in replaced) // GOLD_ROWS_PER_FILE
    added = table.write(rows.coalesce(file_count), part=DAYS, batch=batch, by_day=True)
    table.commit(added, batch=batch, removed=replaced)
    log(f"{table.folder.name}: batch {batch}")


def _days_of(events: Sequence[DataFile], days: Sequence[DataFile]) -> list[DataFile]:
    """The files of days that the events may change. A batch counts everything on the day of one of its events."""
    starts, ends = (
        [file.first_at for file in events if file.first_at],
        [file.last_at for file in events if file.last_at],
    )
    if len(starts) < len(events) or len(ends) < len(events):
        return list(days)
    first, last = min(starts).date().isoformat(), max(ends).date().isoformat()
    return [file for file in days if file.day is not None and first <= file.day <= last]


def rebuild(spark: SparkSession, lake: Lake, *, log: Log = lambda _: None) -> None:
    """Rebuilds silver and gold from bronze. Raises EventsDeleted if bronze lacks events.

    Gold is deleted first: rebuilt silver has all its rows in one batch, and an old gold table would count them again.
    """
    check_complete(lake)
    for table in reversed(lake.all[1:]):
        table.drop()
    empty = Lake(lake.folder)
    update_silver(spark, empty, log=log)
    update_gold(spark, empty, log=log)


def _in_parallel(works: Sequence[Callable[[], None]]) -> None:
    """Runs all, so that Spark plans one query while it executes another. Raises the first error when all have ended."""
    with ThreadPoolExecutor(TABLES_IN_PARALLEL) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result()


def _log_bounds(server: ServerOptions) -> dict[int, LogBounds]:
    with closing(PipelineClient(server, retry_s=RETRY_S)) as client:
        return client.log_bounds()


def _closed(spark: SparkSession, table: LakeTable, after: int, *, up_to: int) -> DataFrame:
    return table.read(spark, table.files(part=CLOSED, after_batch=after, up_to_batch=up_to))


def _steps(files: Sequence[DataFile], events: int) -> Iterator[list[DataFile]]:
    """Groups the files into whole batches of about so many events."""
    step: list[DataFile] = []
    rows = 0
    for file in files:
        if step and rows >= events and file.batch != step[-1].batch:
            yield step
            step, rows = [], 0
        step.append(file)
        rows += file.rows
    if step:
        yield step


def _offsets(offsets: Mapping[int, int]) -> Offsets:
    return {str(shard): offset for shard, offset in offsets.items()}
