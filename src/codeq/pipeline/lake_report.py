"""Collects a report from a lake: which files it reads, and what it tells about the lake itself."""

from contextlib import closing
from datetime import UTC, date, datetime, timedelta

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from codeq.domain.queue import SYSTEM_PREFIX
from codeq.pipeline.client import TRANSIENT, PipelineClient, ServerOptions
from codeq.pipeline.lake.data_file import CLOSED, DAYS, EVENTS, OPEN, DataFile
from codeq.pipeline.lake.run import LogMismatch, check_log
from codeq.pipeline.lake.run_history import last_runs, size_by_layer
from codeq.pipeline.lake.table import Lake
from codeq.pipeline.lake.verdicts import verdicts_of
from codeq.pipeline.report import ReportData, collect
from codeq.pipeline.report.data import Freshness, Run
from codeq.pipeline.report.roll_up import NewRows

RUNS_SHOWN = 10


def collect_lake(
    spark: SparkSession, lake: Lake, server: ServerOptions | None, *, days: int, title: str = "codeQ"
) -> ReportData:
    """Collects the figures of the last days that have any. Files of other days are not read."""
    newest = max((file.day[:10] for _, table in lake.gold for file in table.files(part=DAYS) if file.day), default=None)
    first_day = (date.fromisoformat(newest) - timedelta(days=days - 1)).isoformat() if newest else ""
    rows, is_whole = {}, True
    for definition, table in lake.gold:
        files = table.files(part=DAYS)
        shown = [file for file in files if (file.day or first_day)[:10] >= first_day]
        is_whole &= len(shown) == len(files) and not table.has_deleted_rows
        rows[definition.table.name] = table.read(spark, shown)
    return collect(
        rows,
        made_at=datetime.now(UTC),
        title=title,
        verdicts=verdicts_of(lake),
        live=None if is_whole else _live(spark, lake),
        detail=lambda first, last: _detail(spark, lake, first, last),
        freshness=_freshness(lake, server),
    )


def _live(spark: SparkSession, lake: Lake) -> tuple[int, int]:
    """Returns the live tasks, and those of them in progress."""
    own = lake.tasks.read(spark, lake.tasks.files(part=OPEN)).where(~f.col("command").startswith(SYSTEM_PREFIX))
    counts = own.groupBy("status").count().collect()
    by_status = {row["status"]: row["count"] for row in counts}
    running = by_status.get("IN_PROGRESS", 0)
    return by_status.get("PENDING", 0) + running, running


def _detail(spark: SparkSession, lake: Lake, first: datetime, last: datetime) -> NewRows:
    def of_span(files: list[DataFile]) -> list[DataFile]:
        return [file for file in files if not file.first_at or not file.last_at
                or (file.last_at >= first and file.first_at < last)]  # fmt: skip

    def between(column: str) -> str:
        low, high = (int(at.timestamp() * 1_000_000) for at in (first, last))
        return f"unix_micros({column}) >= {low} and unix_micros({column}) < {high}"

    return NewRows(
        lake.bronze.read(spark, of_span(lake.bronze.files(part=EVENTS))).where(between("at")),
        lake.attempts.read(spark, of_span(lake.attempts.files(part=CLOSED))).where(between("ended_at")),
        lake.tasks.read(spark, of_span(lake.tasks.files(part=CLOSED))).where(between("ended_at")),
    )


def _freshness(lake: Lake, server: ServerOptions | None) -> Freshness:
    runs = [Run(**msgspec.structs.asdict(run)) for run in last_runs(lake, RUNS_SHOWN)]
    return Freshness(events_behind=_events_behind(lake, server), size_bytes=size_by_layer(lake), runs=runs)


def _events_behind(lake: Lake, server: ServerOptions | None) -> int | None:
    """Returns how many events the server's log has past the end of the lake; None if it does not answer, or has another
    log.
    """
    if server is None:
        return None
    try:
        with closing(PipelineClient(server)) as client:
            bounds = client.log_bounds()
        check_log(lake, bounds[0])
    except (*TRANSIENT, LogMismatch):
        return None
    offsets = lake.bronze.offsets
    return sum(max(0, one.end - offsets.get(shard, one.first)) for shard, one in bounds.items())
