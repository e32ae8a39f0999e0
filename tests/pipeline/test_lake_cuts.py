"""However the log is cut into batches, files and steps, the tables have the same rows."""

import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t
from tests.pipeline.bronze import put
from tests.pipeline.histories import History, Row, arrow, churn
from tests.pipeline.table_comparison import comparable, counted

from codeq.pipeline.lake import gold, maintenance, parquet, run, tables, update
from codeq.pipeline.lake.maintenance import compact
from codeq.pipeline.lake.run import rebuild, update_gold, update_silver
from codeq.pipeline.lake.table import DAYS, EVENTS, Lake, LakeConflict, LakeDamaged, LakeTable
from codeq.pipeline.lake.upgrade import upgrade

pytestmark = pytest.mark.spark

BEFORE = Path(__file__).parent / "data" / "lake-before-sequence-ranges.tar.gz"
"""A lake of the version that ordered files by batch, whose last run was killed: gold is a batch behind silver."""


@pytest.fixture(scope="module")
def history() -> History:
    return churn(11, 240)


@pytest.fixture(autouse=True)
def _few_gold_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gold, "ALL", (gold.USAGE, gold.THROUGHPUT))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def cut(events: Sequence[Row], sizes: Sequence[int]) -> list[list[Row]]:
    ordered, cuts = sorted(events, key=lambda row: row["at"]), []
    for size in sizes:
        cuts.append(ordered[:size])
        ordered = ordered[size:]
    return [*cuts, ordered] if ordered else cuts


def assert_as_rebuilt_at_once(
    spark: SparkSession, lake: Lake, events: Sequence[Row], tmp_path: Path, *, without: Sequence[str] = ()
) -> None:
    whole = Lake(tmp_path / "whole")
    put(spark, whole, events)
    update_silver(spark, whole)
    update_gold(spark, whole)
    for one, other in zip(lake.all[1:3], whole.all[1:3], strict=True):
        rows = [counted(table.read(spark).drop(*without)) for table in (one, other)]
        assert rows[0] == rows[1], one.folder.name
    for (definition, one), (_, other) in zip(lake.gold, whole.gold, strict=True):
        rows = [counted(comparable(table.read(spark), definition.table)) for table in (one, other)]
        assert rows[0] == rows[1], one.folder.name


def test_a_rebuild_after_a_compaction_that_cuts_batches_loses_nothing(
    spark: SparkSession, lake: Lake, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in cut(history.events, [len(history.events) // 6] * 5):
        put(spark, lake, batch, files_per_shard=3)
    update_silver(spark, lake)
    update_gold(spark, lake)
    largest = max(file.size_bytes for file in lake.bronze.files())
    monkeypatch.setattr(
        maintenance, "LARGE_BYTES", largest * 4 + 1
    )  # some of the six files of a batch, and of the next
    assert compact(spark, lake, files_max=1) > 0
    monkeypatch.setattr(run, "SILVER_EVENTS", len(history.events) // 12)
    monkeypatch.setattr(update, "FILES_HERE", 0)  # footers are read on executors
    again = Lake(lake.folder)
    rebuild(spark, again)
    assert_as_rebuilt_at_once(spark, Lake(lake.folder), history.events, tmp_path)


def test_gold_has_one_row_per_key_although_a_day_ends_between_the_steps(
    spark: SparkSession, lake: Lake, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = sorted({row["at"].date() for row in history.events})
    assert len(days) > 1
    before = sum(row["at"].date() == days[0] for row in history.events)
    size = before // 3
    sizes = [size, size, before - 2 * size, size, size]
    batches = cut(history.events, sizes)
    assert {row["at"].date() for row in batches[2]} == {days[0]} != {row["at"].date() for row in batches[3]}
    for batch in batches:
        put(spark, lake, batch)
    monkeypatch.setattr(run, "SILVER_EVENTS", size + 5)  # two batches
    monkeypatch.setattr(run, "GOLD_EVENTS", 2 * size + 1, raising=False)  # three
    update_silver(spark, lake)
    update_gold(spark, lake)
    usage = lake.gold[0][1].read(spark).collect()
    assert Counter((row.day, row.tenant) for row in usage).most_common(1)[0][1] == 1
    for _, table in lake.gold:
        of_day = Counter(file.day for file in table.files(part=DAYS))
        assert max(of_day.values()) == 1, "one file of each day"
    assert_as_rebuilt_at_once(spark, Lake(lake.folder), history.events, tmp_path)


def test_the_newest_day_is_rewritten_by_the_hour_and_a_past_day_is_one_file(
    spark: SparkSession, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold, "ALL", (gold.THROUGHPUT, gold.LATENCY))
    lake = Lake(tmp_path / "lake")
    later = [{**row, "at": row["at"] + timedelta(hours=2)} for row in history.events]
    ordered = sorted(later, key=lambda row: row["at"])
    hours = sorted({row["at"].strftime("%Y-%m-%dT%H") for row in ordered})
    assert len(hours) == 2
    before = sum(row["at"].strftime("%Y-%m-%dT%H") == hours[0] for row in ordered)
    for batch in (ordered[: before // 2], ordered[before // 2 : before], ordered[before:]):
        put(spark, lake, batch)
        update_silver(spark, lake)
        update_gold(spark, lake)
    for _, table in lake.gold:
        by_hour = {file.day: file.batch for file in table.files(part=DAYS)}
        assert set(hours) <= set(by_hour)
        assert (by_hour[hours[0]], by_hour[hours[1]]) == (2, 3), "the last batch did not touch the first hour"
    next_day = [{**row, "at": row["at"] + timedelta(days=1), "seq": row["seq"] + 10**6} for row in ordered[:before]]
    put(spark, lake, next_day)
    update_silver(spark, lake)
    update_gold(spark, lake)
    rows = [counted(comparable(table.read(spark), definition.table)) for definition, table in lake.gold]
    assert compact(spark, lake, files_max=1000) > 0
    fresh = Lake(lake.folder)
    for _, table in fresh.gold:
        assert [file.day for file in table.files(part=DAYS) if (file.day or "").startswith("2026-01-01")] == [
            "2026-01-01"
        ]
    assert [counted(comparable(table.read(spark), definition.table)) for definition, table in fresh.gold] == rows


def test_a_run_that_began_before_a_rebuild_cannot_commit_after_it(
    spark: SparkSession, lake: Lake, history: History, tmp_path: Path
) -> None:
    first, second = cut(history.events, [len(history.events) // 2])
    put(spark, lake, first)
    update_silver(spark, lake)
    update_gold(spark, lake)
    stale = Lake(lake.folder)
    rebuild(spark, Lake(lake.folder))
    with pytest.raises(LakeConflict):
        put(spark, stale, second)
    put(spark, stale, second)  # its bronze was read again
    with pytest.raises(LakeConflict):
        update_silver(spark, stale)
    fresh = Lake(lake.folder)
    stale.attempts, stale.tasks, stale.queues = fresh.attempts, fresh.tasks, fresh.queues
    update_silver(spark, stale)
    with pytest.raises(LakeConflict):
        update_gold(spark, stale)
    update_gold(spark, Lake(lake.folder))
    assert_as_rebuilt_at_once(spark, Lake(lake.folder), history.events, tmp_path)


def test_gold_does_not_follow_a_silver_table_that_was_made_anew_behind_it(
    spark: SparkSession, lake: Lake, history: History, tmp_path: Path
) -> None:
    """It would take the batches of that table for those that it has, by their numbers."""
    first, second, third = cut(history.events, [200, 150])
    for batch in (first, second):
        put(spark, lake, batch)
        update_silver(spark, lake)
        update_gold(spark, lake)
    shutil.rmtree(lake.tasks.folder)
    again = Lake(lake.folder)
    put(spark, again, third)
    update_silver(spark, again)
    with pytest.raises(LakeDamaged, match="rebuild"):
        update_gold(spark, again)
    rebuild(spark, Lake(lake.folder))
    assert_as_rebuilt_at_once(spark, Lake(lake.folder), history.events, tmp_path)


def test_a_table_tells_its_offsets_also_if_the_first_shard_has_none(lake: Lake) -> None:
    lake.bronze.commit([], batch=1, offsets={1: 5, 3: 9})
    assert Lake(lake.folder).bronze.offsets == {1: 5, 3: 9}


def test_a_folder_whose_name_is_a_pattern_to_spark_is_read(
    spark: SparkSession, history: History, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "a [prod]{x}*?#")
    put(spark, lake, history.events)
    assert counted(lake.bronze.read(spark)).total() == len(history.events)


def test_what_a_commit_names_is_on_disk_before_anything_follows_it(
    lake: Lake, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power loss leaves empty files of what was not forced to disk, and an empty commit is none."""
    forced, fsync = set[str](), os.fsync

    def recorded(descriptor: int) -> None:
        forced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    lake.bronze.set_properties({"codeq.logId": "x"})
    target = lake.bronze.target(lake.bronze.new_folder(1), EVENTS)
    rows = arrow(history.events)
    files = [*parquet.write_rows(target, rows, rows_max=1000), *parquet.write_stream(target, rows.to_batches())]
    for batch in range(1, 103):
        lake.bronze.commit(files if batch == 1 else [], batch=batch)
    lake.bronze.set_properties({"codeq.logId": "y"})
    written = [path for path in Path(lake.folder).rglob("*") if path.is_file() and not path.name.startswith("_last")]
    assert any(path.name.endswith(".checkpoint.parquet") for path in written)
    assert {str(path) for path in written} <= forced


def test_a_column_that_a_version_adds_reaches_the_schema_of_the_table(
    spark: SparkSession, before: Lake, tmp_path: Path
) -> None:
    old = before.gold[0][1]
    schema = t.StructType([*tables.GOLD_USAGE.schema.fields, t.StructField("added", t.StringType())])
    table = LakeTable(old.folder, schema)
    rows = table.read(spark, table.files()).fillna("new", ["added"])
    table.commit(table.write(rows, part=DAYS, batch=9), batch=9, removed=table.files())
    read = deltalake.DeltaTable(str(old.folder)).to_pyarrow_table()
    assert set(read["added"].to_pylist()) == {"new"}
    assert read.num_rows == len(rows.collect()) > 0


def test_a_run_that_adds_columns_does_not_pass_by_the_commit_of_an_older_version(lake: Lake) -> None:
    lake.queues.commit([], batch=1, offsets={0: 5})
    more = t.StructType([*tables.AUDIT_QUEUES.schema.fields, t.StructField("added", t.StringType())])
    newer, older = LakeTable(lake.queues.folder, more), LakeTable(lake.queues.folder, tables.AUDIT_QUEUES.schema)
    older.commit([], batch=2, offsets={0: 9})
    with pytest.raises(LakeConflict):
        newer.commit([], batch=2, offsets={0: 7})
    assert (newer.batch, newer.offsets) == (2, {0: 9})
    newer.commit([], batch=3, offsets={0: 12})
    with pytest.raises(LakeConflict):
        older.set_properties({"codeq.test": "late"})
    assert older.batch == 3
    assert "added" in deltalake.DeltaTable(str(lake.queues.folder)).schema().to_arrow().names


@pytest.fixture
def before(tmp_path: Path) -> Lake:
    with tarfile.open(BEFORE) as packed:
        packed.extractall(tmp_path / "before", filter="data")
    return Lake(tmp_path / "before" / "lake")


def test_a_lake_of_the_version_before_is_continued(spark: SparkSession, before: Lake, tmp_path: Path) -> None:
    rows = before.bronze.read(spark).count()
    moves = Counter(row.move for row in before.bronze.read(spark).collect())
    upgrade(spark, before)
    assert before.bronze.read(spark).count() == rows > 0
    assert all(file.shard is not None for file in before.bronze.files())
    update_silver(spark, before)
    update_gold(spark, before)
    assert sum(row.enqueues for row in before.gold[1][1].read(spark).collect()) == moves["enqueue"]
    events: list[Any] = [row.asDict() for row in before.bronze.read(spark).collect()]
    # Rows that were closed by that version do not have the columns that were added since.
    assert_as_rebuilt_at_once(spark, Lake(before.folder), events, tmp_path, without=["current_deliveries"])
    again = Lake(before.folder)
    rebuild(spark, again)
    assert_as_rebuilt_at_once(spark, Lake(before.folder), events, tmp_path / "again")


def test_new_events_bring_a_lake_of_the_version_before_the_columns_of_this_one(
    spark: SparkSession, before: Lake, history: History
) -> None:
    upgrade(spark, before)
    ends = before.bronze.offsets
    put(spark, before, [{**row, "seq": row["seq"] + ends[row["shard"]] - 1} for row in history.events])
    update_silver(spark, before)
    new = {row["task_id"] for row in history.events}
    named = {(row["task_id"], row["lease_token"]): row["worker_name"] for row in history.events if row["worker_name"]}
    assert len(set(named.values())) > 1
    for table in (before.bronze, before.attempts):
        rows = deltalake.DeltaTable(str(table.folder)).to_pyarrow_table().to_pylist()
        assert {row["worker_name"] for row in rows if row["task_id"] not in new} == {None}, table.folder.name
        found = {(row["task_id"], row["lease_token"]): row["worker_name"] for row in rows if row["worker_name"]}
        assert found == named, table.folder.name


def test_a_table_whose_log_is_damaged_is_an_error_in_one_line(lake: Lake) -> None:
    lake.queues.commit([], batch=1, offsets={0: 1})
    last = Path(lake.queues.folder) / "_delta_log" / f"{1:020}.json"
    last.write_text(last.read_text()[:50])
    with pytest.raises(LakeDamaged, match="audit_queues cannot be read") as error:
        Lake(lake.folder)
    assert "\n" not in str(error.value)
    assert "unknown" not in str(error.value), "no stack"
