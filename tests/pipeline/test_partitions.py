"""Partitions of the tasks: every row is in exactly one, whatever wrote the files."""

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.pipeline.histories import History, Row, arrow, churn

from codeq.errors import Unreachable
from codeq.pipeline.lake.parquet import write_stream
from codeq.pipeline.lake.partitions import ParquetFiles, partition_of, run_on_executors
from codeq.wire import events as wire

PARTITIONS = 3


@pytest.fixture(scope="module")
def history() -> History:
    return churn(5, 200)


@pytest.fixture
def written(history: History, tmp_path: Path) -> tuple[str, ...]:
    """The history in two files."""
    paths = tuple(str(tmp_path / f"{part}.parquet") for part in range(2))
    for part, path in enumerate(paths):
        pq.write_table(arrow(history.events[part::2]), path)
    return paths


def rows_of(table: pa.Table) -> list[Row]:
    return sorted(table.to_pylist(), key=lambda row: (row["shard"], row["seq"]))


def files(*paths: str, **given: dict[int, int]) -> ParquetFiles:
    return ParquetFiles(paths, wire.arrow_schema(), 0, **given)


def test_every_row_is_in_one_partition_with_all_of_its_task(history: History, written: tuple[str, ...]) -> None:
    partitions = [files(*written).partition(number, PARTITIONS) for number in range(PARTITIONS)]
    assert rows_of(pa.concat_tables(partitions)) == rows_of(arrow(history.events))
    owners = [set(partition["task_id"].to_pylist()) for partition in partitions]
    assert all(owners)
    assert sum(map(len, owners)) == len(set.union(*owners))


def test_events_before_an_offset_are_passed_over(history: History, written: tuple[str, ...]) -> None:
    since = {0: 40, 1: 7}
    wanted = [row for row in history.events if row["seq"] >= since[row["shard"]]]
    assert 0 < len(wanted) < len(history.events)
    partitions = [files(*written, start_offsets=since).partition(number, PARTITIONS) for number in range(PARTITIONS)]
    assert rows_of(pa.concat_tables(partitions)) == rows_of(arrow(wanted))
    for known, unknown in ((0, 1), (1, 0)):  # of a shard without an offset, all events
        wanted = [row for row in history.events if row["shard"] == unknown or row["seq"] >= 7]
        assert rows_of(files(*written, start_offsets={known: 7}).partition(0, 1)) == rows_of(arrow(wanted))


def test_the_ends_are_one_past_the_last_event_of_each_shard(history: History, written: tuple[str, ...]) -> None:
    ends = {shard: max(row["seq"] for row in history.events if row["shard"] == shard) + 1 for shard in (0, 1)}
    assert files(*written).end_offsets() == ends
    assert files().end_offsets() == {}


def test_no_files_are_no_rows_with_the_same_columns() -> None:
    nothing = files().partition(0, 1)
    assert (nothing.num_rows, nothing.schema.names) == (0, wire.arrow_schema().names)


def test_a_column_that_a_file_does_not_have_yet_is_null(history: History, tmp_path: Path) -> None:
    old = str(tmp_path / "old.parquet")
    pq.write_table(arrow(history.events).drop_columns(["trace_id", "error"]), old)
    read = files(old).partition(0, 1)
    assert read.num_rows == len(history.events)
    assert read["error"].null_count == read["trace_id"].null_count == read.num_rows


def test_times_written_the_old_way_are_read_as_the_same_times(history: History, tmp_path: Path) -> None:
    """As Spark writes them with its default settings."""
    old = str(tmp_path / "old.parquet")
    pq.write_table(arrow(history.events), old, use_deprecated_int96_timestamps=True, store_schema=False)
    assert pq.read_schema(old).field("at").type == pa.timestamp("ns")
    assert rows_of(files(old).partition(0, 1)) == rows_of(arrow(history.events))


def test_executors_answer_for_every_piece_and_an_error_of_ours_is_raised_as_it_was(spark: SparkSession) -> None:
    def work(piece: tuple[str, int]) -> list[str]:
        if piece[1] > 2:
            raise Unreachable(f"nobody answers for {piece[0]}")
        return [piece[0]] * piece[1]

    assert sorted(run_on_executors(spark, work, [("a", 1), ("b", 0), ("c", 2)])) == ["a", "c", "c"]
    with pytest.raises(Unreachable, match="nobody answers for d"):
        run_on_executors(spark, work, [("a", 1), ("d", 3)])


def test_a_worker_that_is_killed_is_replaced_and_only_the_values_of_its_successor_count(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = pa.table({"task_id": ["a"]})

    def work(folder: str) -> list[str]:
        paths = write_stream(folder, rows.schema, rows.to_batches())
        if len(list(Path(folder).iterdir())) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return paths

    folders = [str(tmp_path / name) for name in ("one", "two")]
    values = run_on_executors(spark, work, folders)
    assert [Path(path).parent.name for path in sorted(values)] == ["one", "two"]
    assert [len(list(Path(folder).iterdir())) for folder in folders] == [2, 2]


@given(st.lists(st.text(max_size=50)), st.integers(1, 7))
def test_the_partition_of_an_id_depends_on_nothing_else(ids: list[str], partitions: int) -> None:
    found = partition_of(pa.array(ids, pa.string()), partitions)
    assert ((found >= 0) & (found < partitions)).all()
    alone = [int(partition_of(pa.array([one], pa.string()), partitions)[0]) for one in ids]
    assert found.tolist() == alone
    among_others = partition_of(pa.array(["x", *ids, "yyyyyyyyy"], pa.string()).slice(1, len(ids)), partitions)
    assert among_others.tolist() == alone


def test_partitions_of_ids_that_differ_in_little_have_about_the_same_size() -> None:
    ids = pa.array([f"01a1e50e-75fe-{7000 + number:04x}-8a31-525adf400000" for number in range(4000)])
    sizes = np.bincount(partition_of(ids, 4), minlength=4)
    assert sizes.min() > 800
