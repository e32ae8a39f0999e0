"""One run of the pipeline: take in what is new, carry the rows forward, add up the figures. Each step is one commit.

A table remembers the batch it has taken in. A run that dies leaves each table at some batch; the next run goes on from
there. Two runs at once do no harm: the slower one's commit is refused.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from codeq.domain.errors import CodeqError
from codeq.pipeline.client import Calls, Connection, Span, Wanted
from codeq.pipeline.connector.offsets import Offsets, split
from codeq.pipeline.connector.options import ReadOptions
from codeq.pipeline.connector.schema import event_schema
from codeq.pipeline.connector.source import DataLost, EventsReader
from codeq.pipeline.lake import gold, partitions, silver
from codeq.pipeline.lake.maintenance import check_complete, put_together
from codeq.pipeline.lake.table import CLOSED, DAYS, EVENTS, OPEN, DataFile, Lake, LakeTable
from codeq.pipeline.session import tasks_at_once

EVENTS_PER_BATCH = 2_000_000
"""What one commit of bronze takes in: bounds what a crash makes us read again."""
SILVER_EVENTS, GOLD_EVENTS = 2_000_000, 5_000_000
"""What each takes in at once, however many batches that is."""

ROWS_PER_FILE = 500_000
"""Of figures."""

AT_ONCE = 3

Say = Callable[[str], None]
Figures = tuple[gold.Gold, LakeTable]


class OtherLog(CodeqError):
    """The lake was not made from this server's log."""

    code = "other-log"


class Summary(Struct):
    """What a run has done."""

    events: int = 0
    batches: int = 0
    seconds: dict[str, float] = {}
    """By layer."""


def run_once(
    spark: SparkSession, lake: Lake, connection: Connection, *, say: Say = lambda _: None, tenant: str | None = None
) -> Summary:
    """Bring every table of the lake up to what the server has now."""
    summary = Summary()
    steps: dict[str, Callable[[], object]] = {
        "bronze": lambda: _take_in_all(spark, lake, connection, summary=summary, say=say, tenant=tenant),
        "silver": lambda: carry_forward(spark, lake, say=say),
        "gold": lambda: add_up(spark, lake, say=say),
        "upkeep": lambda: put_together(spark, lake, say=say),
    }
    for layer, step in steps.items():
        started_s = time.monotonic()
        step()
        summary.seconds[layer] = time.monotonic() - started_s
    return summary


def _take_in_all(
    spark: SparkSession, lake: Lake, connection: Connection, *, summary: Summary, say: Say, tenant: str | None
) -> None:
    # What comes in meanwhile is for the next run: under steady traffic this one would never get to silver.
    up_to = {shard: span.end for shard, span in _spans(connection).items()}
    while taken := take_in(spark, lake, connection, tenant=tenant, up_to=up_to):
        summary.events += taken
        summary.batches += 1
        say(f"bronze: {summary.events:,} events")


def take_in(
    spark: SparkSession,
    lake: Lake,
    connection: Connection,
    *,
    tenant: str | None = None,
    events_max: int = EVENTS_PER_BATCH,
    up_to: Mapping[int, int] | None = None,
) -> int:
    """Append the next batch of events to bronze, none of them past `up_to`. Answers how many offsets it covers; 0 when
    there is nothing new."""
    spans = _spans(connection)
    starts = {shard: lake.bronze.offset(shard) or span.first for shard, span in spans.items()}
    _check_reachable(starts, spans)
    share = max(1, events_max // len(spans))
    ends = {shard: min(span.end, starts[shard] + share) for shard, span in spans.items()}
    if up_to is not None:
        ends = {shard: max(starts[shard], min(end, up_to.get(shard, end))) for shard, end in ends.items()}
    covered = sum(ends[shard] - starts[shard] for shard in spans)
    if covered <= 0:
        return 0
    events = EventsReader(ReadOptions(connection=connection, wanted=Wanted(tenant=tenant)), event_schema())
    pieces = split(_texts(starts), _texts(ends), partitions_min=tasks_at_once(spark))
    batch = lake.bronze.batch + 1
    written = lake.bronze.write_read(spark, events.read_stretch, pieces, part=EVENTS, batch=batch)
    lake.bronze.commit(written, batch=batch, offsets=ends)
    return covered


def _check_reachable(starts: Mapping[int, int], spans: Mapping[int, Span]) -> None:
    for shard, span in spans.items():
        if starts[shard] > span.end:
            raise OtherLog(
                f"the server's log of shard {shard} ends before event {span.end}, and the lake has events up to "
                f"{starts[shard]}: this is another server, or one restored from a backup; begin a new lake"
            )
        if starts[shard] < span.first:
            raise DataLost(
                f"events {starts[shard]} to {span.first - 1} of shard {shard} were trimmed before they were taken in, "
                "and tables with a gap would be wrong; begin a new lake, and let the server keep events for longer"
            )


def carry_forward(spark: SparkSession, lake: Lake, *, say: Say = lambda _: None) -> None:
    """Bring silver up to bronze: join new events with the rows that are open, append what has ended."""
    carried: list[tuple[LakeTable, partitions.Carry]] = [(lake.attempts, silver.attempts), (lake.tasks, silver.tasks)]
    _at_once([partial(_carry, spark, lake, table, carry=carry, say=say) for table, carry in carried])


def _carry(spark: SparkSession, lake: Lake, table: LakeTable, *, carry: partitions.Carry, say: Say) -> None:
    for files in _steps(lake.bronze.files(part=EVENTS, after_batch=table.batch), SILVER_EVENTS):
        batch = files[-1].batch
        # Events that the table has seen are passed over: repeats do no harm.
        events, was_open = lake.bronze.holding(files, since=table.offsets), table.files(part=OPEN)
        # How far it goes, bronze itself says of its last batch only.
        offsets = (lake.bronze.offsets if batch == lake.bronze.batch else {}) or events.ends()
        written = table.write_carried(spark, carry, open_files=was_open, events=events, batch=batch)
        table.commit(written, batch=batch, removed=was_open, offsets=offsets)
        say(f"{table.folder.name}: batch {batch}")


def add_up(spark: SparkSession, lake: Lake, *, say: Say = lambda _: None) -> None:
    """Bring gold up to silver: add the figures of what is new to the days that it touches."""
    up_to = min(lake.attempts.batch, lake.tasks.batch)
    standing: dict[int, list[Figures]] = {}
    for figures, table in lake.gold:
        standing.setdefault(table.batch, []).append((figures, table))
    for since, together in standing.items():
        _add_up(spark, lake, together, since=since, up_to=up_to, say=say)


def _add_up(spark: SparkSession, lake: Lake, together: Sequence[Figures], *, since: int, up_to: int, say: Say) -> None:
    """Bring tables that stand at the same batch forward, so that they share the sums of what is new."""
    for files in _steps(lake.bronze.files(part=EVENTS, after_batch=since, up_to_batch=up_to), GOLD_EVENTS):
        batch = files[-1].batch
        new = gold.Batch(
            events=lake.bronze.read(spark, files),
            attempts=_closed(spark, lake.attempts, since, up_to=batch),
            tasks=_closed(spark, lake.tasks, since, up_to=batch),
        )
        partials = [figures.partials(new) for figures, _ in together]
        with new.kept():
            _at_once([
                partial(_add, spark, of, partials=rows, events=files, say=say)
                for of, rows in zip(together, partials, strict=True)
            ])  # fmt: skip
        since = batch


def _add(spark: SparkSession, of: Figures, *, partials: DataFrame, events: Sequence[DataFile], say: Say) -> None:
    (figures, table), batch = of, events[-1].batch
    touched = _touched(table.files(part=DAYS), events)
    rows = figures.merged(table.read(spark, touched), partials)
    # Few rows: more than one file of each day would be in everybody's way.
    pieces = 1 + sum(file.rows for file in touched) // ROWS_PER_FILE
    table.commit(table.write(rows.coalesce(pieces), part=DAYS, batch=batch, by_day=True), batch=batch, removed=touched)
    say(f"{table.folder.name}: batch {batch}")


def _touched(days: Sequence[DataFile], events: Sequence[DataFile]) -> list[DataFile]:
    """The days that the events may change. All that a batch counts, it counts on the day of one of its events."""
    starts, ends = [file.since for file in events if file.since], [file.until for file in events if file.until]
    if len(starts) < len(events) or len(ends) < len(events):
        return list(days)
    first, last = min(starts).date().isoformat(), max(ends).date().isoformat()
    return [file for file in days if file.day is not None and first <= file.day <= last]


def rebuild(spark: SparkSession, lake: Lake, *, say: Say = lambda _: None) -> None:
    """Make silver and gold anew from bronze. Refused where bronze has forgotten events.

    Gold goes first: silver made anew brings its rows in one batch, and gold that was still there would add them again.
    """
    check_complete(lake)
    for table in reversed(lake.all[1:]):
        table.drop()
    fresh = Lake(lake.folder)
    carry_forward(spark, fresh, say=say)
    add_up(spark, fresh, say=say)


def _at_once(works: Sequence[Callable[[], None]]) -> None:
    """While Spark works on one, the next is planned. The first failure is raised, when none is under way any more."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


def _spans(connection: Connection) -> dict[int, Span]:
    calls = Calls(connection, retry_s=30)
    try:
        return calls.spans()
    finally:
        calls.close()


def _closed(spark: SparkSession, table: LakeTable, since: int, *, up_to: int) -> DataFrame:
    return table.read(spark, table.files(part=CLOSED, after_batch=since, up_to_batch=up_to))


def _steps(files: Sequence[DataFile], events: int) -> Iterator[list[DataFile]]:
    """The files in groups of whole batches, each of about so many events."""
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


def _texts(offsets: Mapping[int, int]) -> Offsets:
    return {str(shard): offset for shard, offset in offsets.items()}
