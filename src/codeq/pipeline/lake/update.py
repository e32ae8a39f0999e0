"""One step of a silver table: brings new events to the open rows of their tasks, a range of task ids per Spark task."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import SparkSession

from codeq.pipeline.lake import leaves, parquet
from codeq.pipeline.lake.data_file import CLOSED, OPEN, DataFile, NewFile
from codeq.pipeline.lake.judge import Judgement, judge
from codeq.pipeline.lake.leaves import LEAF_ROWS_MAX, Plan, Share
from codeq.pipeline.lake.partitions import ParquetFiles, run_on_executors
from codeq.pipeline.lake.table import LakeTable
from codeq.pipeline.lake.verdicts import Auditor
from codeq.pipeline.session import parallelism_of

FILES_HERE = 64
"""Files whose footers the driver reads. More are read on executors, which takes a Spark job."""
CLOSED_ROWS_MAX = 1 << 30
"""Closed rows of a Spark task are one file."""

Batches = Iterator[pa.RecordBatch]
Update = Callable[[pa.Table, pa.Table], pa.Table]
"""Takes open rows and new events, and returns the open and closed rows that result."""


class NewEvents(Struct, frozen=True):
    """The events of a step: in these files of bronze, from `starts` to before `ends`, by shard."""

    bronze: LakeTable
    files: Sequence[DataFile]
    starts: Mapping[int, int]
    ends: Mapping[int, int]


class ShareResult(Struct, frozen=True):
    files: list[NewFile]
    judgement: Judgement | None = None


class ShareWork(Struct, frozen=True):
    """Computes a share of a step on an executor, and writes its open and its closed rows there.

    A Spark task that runs twice writes twice. Only the files of one attempt are committed; the others belong to no
    table.
    """

    update: Update
    event_schema: pa.Schema
    starts: dict[int, int]
    ends: dict[int, int]
    open_rows: parquet.FileTarget
    closed_rows: parquet.FileTarget
    whole_shards: frozenset[int] | None = None
    """If given, events are judged too. See `judge.py`."""

    def __call__(self, share: Share) -> list[str]:
        return [msgspec.json.encode(self.result(share)).decode()]

    def result(self, share: Share) -> ShareResult:
        events = ParquetFiles(share.event_paths, self.event_schema, self.starts, self.ends).read(share.ids)
        known = ParquetFiles(share.open_paths, self.open_rows.schema).read(share.ids)
        rows = self.update(known, events)
        is_open = rows["is_open"]
        files = parquet.write_rows(self.open_rows, rows.filter(is_open), rows_max=LEAF_ROWS_MAX)
        files += parquet.write_rows(self.closed_rows, rows.filter(pc.invert(is_open)), rows_max=CLOSED_ROWS_MAX)
        if self.whole_shards is None:
            return ShareResult(files)
        return ShareResult(files, judge(known, events, self.whole_shards))


def update_table(
    spark: SparkSession, table: LakeTable, update: Update, events: NewEvents, *, auditor: Auditor | None = None
) -> None:
    """Takes the events into the table, in one commit. Events that the files have besides are left out. With an auditor
    they are judged, and the verdict is in the same commit.
    """
    started_s = time.monotonic()
    run = partial(_run_where_it_pays, spark)
    plan, work = plan_step(table, update, events, parallelism=parallelism_of(spark), auditor=auditor, run=run)
    found = run_on_executors(spark, work, plan.shares)
    results = [msgspec.json.decode(one, type=ShareResult) for one in found]
    commit_step(table, plan, events, results, auditor=auditor, seconds=time.monotonic() - started_s)


def commit_step(
    table: LakeTable,
    plan: Plan,
    events: NewEvents,
    results: Sequence[ShareResult],
    *,
    auditor: Auditor | None = None,
    seconds: float = 0,
) -> None:
    added = [file for result in results for file in result.files]
    judgements = [result.judgement for result in results if result.judgement is not None]
    marks = auditor.record(judgements, events.starts, events.ends) if auditor is not None else None
    batch = table.batch + 1
    table.commit(added, batch=batch, removed=plan.removed, offsets=events.ends, marks=marks, seconds=seconds)


def _run_where_it_pays(spark: SparkSession, work: Callable[[Any], list[str]], pieces: Sequence[Any]) -> list[str]:
    return leaves.run_here(work, pieces) if len(pieces) <= FILES_HERE else run_on_executors(spark, work, pieces)


def plan_step(
    table: LakeTable,
    update: Update,
    events: NewEvents,
    *,
    parallelism: int,
    auditor: Auditor | None = None,
    run: leaves.Run = leaves.run_here,
) -> tuple[Plan, ShareWork]:
    """Returns the shares of the step, and what is to be done with each."""
    groups = leaves.row_groups([events.bronze.path(file) for file in events.files], run)
    plan = leaves.plan(table.files(part=OPEN), groups, parallelism=parallelism, folder=str(table.folder), run=run)
    folder = table.new_folder(table.batch + 1)
    open_rows, closed_rows = (table.target(folder, part) for part in (OPEN, CLOSED))
    whole = auditor.whole_shards(events.starts) if auditor is not None else None
    starts, ends = dict(events.starts), dict(events.ends)
    return plan, ShareWork(update, events.bronze.arrow_schema, starts, ends, open_rows, closed_rows, whole)
