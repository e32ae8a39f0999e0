"""Maintenance compacts small files, deletes old rows and unused files, and changes nothing else."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.bronze import put
from tests.pipeline.histories import SHARDS, History, Row, churn, frame
from tests.pipeline.silver_by_spark import silver_by_spark

from codeq.pipeline import audit
from codeq.pipeline.lake import gold, run, silver, tables
from codeq.pipeline.lake.maintenance import EventsDeleted, compact, maintain
from codeq.pipeline.lake.run import rebuild, update_gold, update_silver
from codeq.pipeline.lake.table import CLOSED, EVENTS, Lake, LakeConflict, LakeTable
from codeq.pipeline.parallel import QUERIES_AT_ONCE, in_parallel

pytestmark = pytest.mark.spark

BATCHES = 3


class Killed(Exception):
    """What ends a rebuild in the middle."""


@pytest.fixture(scope="module")
def history() -> History:
    return churn(11, 240)


@pytest.fixture(scope="module", autouse=True)
def _few_gold_tables() -> Iterator[None]:
    """Only two gold tables, because gold takes most of the time of a run: one of sums, one of sketches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gold, "ALL", (gold.THROUGHPUT, gold.LATENCY))
        yield


@pytest.fixture(scope="module")
def lake(spark: SparkSession, history: History, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Every batch was ingested and brought to silver by a run of its own, and all of them to gold by the last."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    for batch in cut(history.events):
        put(spark, lake, batch)
        update_silver(spark, lake)
    assert compact(spark, lake, files_max=1) == 0, "gold does not have the batches yet"
    update_gold(spark, lake)
    return lake


def cut(events: list[Row]) -> list[list[Row]]:
    ordered = sorted(events, key=lambda event: event["at"])
    size = -(-len(ordered) // BATCHES)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def rows(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.collect())


def files_of(table: LakeTable) -> set[Path]:
    return set(Path(table.folder).glob("b*/**/*.parquet"))


def test_rows_that_are_too_old_are_deleted_and_the_rest_is_still_sound(
    spark: SparkSession, history: History, lake: Lake, tmp_path: Path
) -> None:
    lake = Lake(Path(shutil.copytree(lake.folder, tmp_path / "lake")))
    batches = cut(history.events)
    until = max(event["at"] for event in batches[1]) + timedelta(microseconds=1)
    figures = {table.folder.name: rows(table.read(spark)) for _, table in lake.gold}
    open_before = rows(lake.tasks.read(spark).where("is_open"))
    done = maintain(spark, lake, delete_before=until)
    assert done.deleted_rows >= len(batches[0]) + len(batches[1])
    left = Lake(lake.folder)
    assert rows(left.bronze.read(spark)) == rows(frame(spark, batches[2]))
    assert rows(left.tasks.read(spark).where("is_open")) == open_before
    assert {table.folder.name: rows(table.read(spark)) for _, table in left.gold} == figures
    assert audit.is_clean(audit.audit(left.bronze.read(spark)))
    with pytest.raises(EventsDeleted):
        rebuild(spark, left)
    assert left.tasks.read(spark).count() > 0


@pytest.mark.parametrize("emptied", [0, 1, 2])
def test_events_are_not_deleted_once_a_rebuild_has_begun(
    spark: SparkSession, history: History, lake: Lake, tmp_path: Path, emptied: int
) -> None:
    """A rebuild dies when it has emptied some tables; the next run has to find all events that they are made from."""
    before = Lake(Path(shutil.copytree(lake.folder, tmp_path / "lake")))
    wanted = {table.folder.name: rows(table.read(spark)) for table in before.silver}
    later = max(event["at"] for event in history.events) + timedelta(days=1)
    begin_epoch, left = LakeTable.begin_epoch, iter([True] * emptied)

    def until_killed(table: LakeTable, *args: Any) -> None:
        if not next(left, False):
            raise Killed
        begin_epoch(table, *args)

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LakeTable, "begin_epoch", until_killed)
        patched.setattr(run, "update_silver", die)
        with pytest.raises(Killed):
            rebuild(spark, Lake(before.folder))
    with pytest.raises(LakeConflict):
        maintain(spark, before, delete_before=later)
    assert maintain(spark, Lake(before.folder), delete_before=later).deleted_rows == 0
    after = Lake(before.folder)
    update_silver(spark, after)
    assert {table.folder.name: rows(table.read(spark)) for table in after.silver} == wanted


def test_small_files_are_compacted_and_no_row_changes(spark: SparkSession, history: History, lake: Lake) -> None:
    before = {table.folder.name: rows(table.read(spark)) for table in lake.all}
    assert len(lake.bronze.files()) >= BATCHES
    assert compact(spark, lake, files_max=1000) == 0
    assert compact(spark, lake, files_max=1) >= 3 * BATCHES
    fresh = Lake(lake.folder)
    for table, part, files in ((fresh.bronze, EVENTS, SHARDS), (fresh.attempts, CLOSED, 1), (fresh.tasks, CLOSED, 1)):
        assert len(table.files(part=part)) == files
        assert table.batch == BATCHES
    batches = {table.folder.name: table.batch for table in fresh.all}
    assert {table.folder.name: rows(table.read(spark)) for table in fresh.all} == before
    update_silver(spark, fresh)
    update_gold(spark, fresh)
    assert {table.folder.name: table.batch for table in fresh.all} == batches, "no batch was counted again"
    nothing = spark.createDataFrame([], tables.SILVER_TASKS.schema)
    again = silver_by_spark(silver.tasks, nothing, frame(spark, history.events))
    assert rows(fresh.tasks.read(spark)) == rows(again)


def test_files_are_deleted_a_day_after_they_left_the_table(spark: SparkSession, lake: Lake) -> None:
    lake = Lake(lake.folder)
    compact(spark, lake, files_max=1)
    named = {Path(lake.attempts.folder, file.path) for file in lake.attempts.files()}
    died = Path(lake.attempts.folder, "b00000099-died", "part=closed", "_temporary")
    died.mkdir(parents=True)
    (died / "half.parquet").write_bytes(b"PAR1")
    assert files_of(lake.attempts) > named
    assert lake.attempts.vacuum() == 0, "a query may still read them"
    assert died.exists()
    past_s = time.time() - 48 * 3600
    os.utime(died.parents[1], (past_s, past_s))
    assert lake.attempts.vacuum(unused_hours=0) > 0
    assert files_of(lake.attempts) == named
    assert not died.exists()
    assert lake.attempts.read(spark).count() > 0


def test_of_runs_that_delete_unused_files_at_once_the_others_are_refused(lake: Lake, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(lake.folder, tmp_path / "lake"))
    unused = folder / Path(lake.attempts.folder).name / "b00000001-died" / "part=closed"
    unused.mkdir(parents=True)
    for number in range(20):
        (unused / f"{number}.parquet").write_bytes(b"PAR1")
    ends: list[str] = []
    together = threading.Barrier(QUERIES_AT_ONCE)

    def vacuum() -> None:
        table = Lake(folder).attempts
        together.wait()
        try:
            table.vacuum(unused_hours=0)
            ends.append("deleted")
        except LakeConflict:
            ends.append("refused")

    in_parallel([vacuum] * QUERIES_AT_ONCE)
    assert len(ends) == QUERIES_AT_ONCE
    assert "deleted" in ends
    Lake(folder).attempts.vacuum(unused_hours=0)  # what the winner left to the others
    assert {str(file) for file in files_of(Lake(folder).attempts)} == {
        str(Lake(folder).attempts.path(file)) for file in Lake(folder).attempts.files()
    }
