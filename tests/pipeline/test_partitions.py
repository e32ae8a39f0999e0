"""Ranges of the tasks: every row is in exactly one, whatever wrote the files."""

import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.histories import History, Row, arrow, churn

from codeq.errors import Unreachable
from codeq.pipeline.lake import leaves
from codeq.pipeline.lake.folder import LakeDamaged, LakeUnavailable, folder_of
from codeq.pipeline.lake.parquet import FileTarget, write_stream
from codeq.pipeline.lake.partitions import IdRange, ParquetFiles, run_on_executors
from codeq.wire import events as wire


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


def files(*paths: str, **given: Any) -> ParquetFiles:
    return ParquetFiles(paths, wire.arrow_schema(), **given)


def test_every_row_is_in_one_range_with_all_of_its_task(history: History, written: tuple[str, ...]) -> None:
    ids = sorted({row["task_id"] for row in history.events})
    cuts = ["", ids[len(ids) // 3], ids[len(ids) // 2], None]
    parts = [files(*written).read(IdRange(low or "", high)) for low, high in pairwise(cuts)]
    assert rows_of(pa.concat_tables(parts)) == rows_of(arrow(history.events))
    owners = [set(part["task_id"].to_pylist()) for part in parts]
    assert all(owners)
    assert sum(map(len, owners)) == len(set.union(*owners))


def test_events_outside_the_offsets_are_passed_over(history: History, written: tuple[str, ...]) -> None:
    starts, ends = {0: 40, 1: 7}, {0: 90, 1: 60}
    wanted = [row for row in history.events if starts[row["shard"]] <= row["seq"] < ends[row["shard"]]]
    assert 0 < len(wanted) < len(history.events)
    assert rows_of(files(*written, starts=starts, ends=ends).read()) == rows_of(arrow(wanted))
    wanted = [row for row in history.events if row["shard"] == 1 and row["seq"] < 60]
    assert rows_of(files(*written, ends={1: 60}).read()) == rows_of(arrow(wanted)), "of a shard without an end, none"


def test_no_files_are_no_rows_with_the_same_columns() -> None:
    nothing = files().read()
    assert (nothing.num_rows, nothing.schema.names) == (0, wire.arrow_schema().names)


def test_a_column_that_a_file_does_not_have_yet_is_null(history: History, tmp_path: Path) -> None:
    old = str(tmp_path / "old.parquet")
    pq.write_table(arrow(history.events).drop_columns(["trace_id", "error"]), old)
    read = files(old).read()
    assert read.num_rows == len(history.events)
    assert read["error"].null_count == read["trace_id"].null_count == read.num_rows


def test_times_written_the_old_way_are_read_as_the_same_times(history: History, tmp_path: Path) -> None:
    """As Spark writes them with its default settings."""
    old = str(tmp_path / "old.parquet")
    pq.write_table(arrow(history.events), old, use_deprecated_int96_timestamps=True, store_schema=False)
    assert pq.read_schema(old).field("at").type == pa.timestamp("ns")
    assert rows_of(files(old).read()) == rows_of(arrow(history.events))


def test_a_damaged_file_is_named(written: tuple[str, ...]) -> None:
    whole, damaged = (Path(path) for path in written)
    known = damaged.read_bytes()
    middle = len(known) // 2
    for wrong, error in (
        (known[:middle], LakeDamaged),
        (b"", LakeDamaged),
        (known[:64] + b"\xff" * (middle - 64) + known[middle:], LakeUnavailable),  # pyarrow has no error of its own
    ):
        damaged.write_bytes(wrong)
        with pytest.raises(error, match=damaged.name):
            files(str(whole), str(damaged)).read()
    damaged.unlink()
    for read in (lambda: files(str(whole), str(damaged)).read(), lambda: leaves.row_groups([str(damaged)])):
        with pytest.raises(LakeDamaged, match=damaged.name):
            read()


def test_executors_answer_for_every_piece_and_an_error_of_ours_is_raised_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    def work(piece: tuple[str, int]) -> list[str]:
        if piece[1] > 2:
            raise Unreachable(f"nobody answers for {piece[0]}")
        if piece[1] < 0:
            return [str(batch.num_rows) for batch in files(piece[0]).batches()]
        return [piece[0]] * piece[1]

    assert sorted(run_on_executors(spark, work, [("a", 1), ("b", 0), ("c", 2)])) == ["a", "c", "c"]
    with pytest.raises(Unreachable, match="nobody answers for d"):
        run_on_executors(spark, work, [("a", 1), ("d", 3)])
    with pytest.raises(LakeDamaged, match="missing"):
        run_on_executors(spark, work, [("a", 1), (str(tmp_path / "missing.parquet"), -1)])


def test_a_worker_that_is_killed_is_replaced_and_only_the_values_of_its_successor_count(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = pa.table({"task_id": ["a"]})

    def work(folder: str) -> list[str]:
        written = write_stream(FileTarget(folder_of(tmp_path), folder, rows.schema, ()), rows.to_batches())
        if len(list(Path(tmp_path, folder).iterdir())) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return [file.path for file in written]

    folders = ["one", "two"]
    values = run_on_executors(spark, work, folders)
    assert [Path(path).parent.name for path in sorted(values)] == ["one", "two"]
    assert [len(list(Path(tmp_path, folder).iterdir())) for folder in folders] == [2, 2]
