"""Shares of the tasks: every row in exactly one, read from files of every make."""

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
from codeq.pipeline.lake.partitions import Files, on_executors, share_of
from codeq.wire import events as wire

SHARES = 3


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


def files(*paths: str, **given: dict[int, int]) -> Files:
    return Files(paths, wire.arrow_schema(), 0, **given)


def test_every_row_is_in_one_share_with_all_of_its_task(history: History, written: tuple[str, ...]) -> None:
    shares = [files(*written).share(number, SHARES) for number in range(SHARES)]
    assert rows_of(pa.concat_tables(shares)) == rows_of(arrow(history.events))
    owners = [set(share["task_id"].to_pylist()) for share in shares]
    assert all(owners)
    assert sum(map(len, owners)) == len(set.union(*owners))


def test_events_before_an_offset_are_passed_over(history: History, written: tuple[str, ...]) -> None:
    since = {0: 40, 1: 7}
    wanted = [row for row in history.events if row["seq"] >= since[row["shard"]]]
    assert 0 < len(wanted) < len(history.events)
    shares = [files(*written, since=since).share(number, SHARES) for number in range(SHARES)]
    assert rows_of(pa.concat_tables(shares)) == rows_of(arrow(wanted))
    for known, unknown in ((0, 1), (1, 0)):  # of a shard that was never heard of, all is wanted
        wanted = [row for row in history.events if row["shard"] == unknown or row["seq"] >= 7]
        assert rows_of(files(*written, since={known: 7}).share(0, 1)) == rows_of(arrow(wanted))


def test_the_ends_are_one_past_the_last_event_of_each_shard(history: History, written: tuple[str, ...]) -> None:
    ends = {shard: max(row["seq"] for row in history.events if row["shard"] == shard) + 1 for shard in (0, 1)}
    assert files(*written).ends() == ends
    assert files().ends() == {}


def test_no_files_are_no_rows_with_the_same_columns() -> None:
    nothing = files().share(0, 1)
    assert (nothing.num_rows, nothing.schema.names) == (0, wire.arrow_schema().names)


def test_a_column_that_a_file_does_not_have_yet_is_null(history: History, tmp_path: Path) -> None:
    old = str(tmp_path / "old.parquet")
    pq.write_table(arrow(history.events).drop_columns(["trace_id", "error"]), old)
    read = files(old).share(0, 1)
    assert read.num_rows == len(history.events)
    assert read["error"].null_count == read["trace_id"].null_count == read.num_rows


def test_times_written_the_old_way_are_read_as_the_same_times(history: History, tmp_path: Path) -> None:
    """As a session of Spark writes them that was not told otherwise."""
    old = str(tmp_path / "old.parquet")
    pq.write_table(arrow(history.events), old, use_deprecated_int96_timestamps=True, store_schema=False)
    assert pq.read_schema(old).field("at").type == pa.timestamp("ns")
    assert rows_of(files(old).share(0, 1)) == rows_of(arrow(history.events))


def test_executors_answer_for_every_piece_and_an_error_of_ours_is_raised_as_it_was(spark: SparkSession) -> None:
    def work(piece: tuple[str, int]) -> list[str]:
        if piece[1] > 2:
            raise Unreachable(f"nobody answers for {piece[0]}")
        return [piece[0]] * piece[1]

    assert sorted(on_executors(spark, work, [("a", 1), ("b", 0), ("c", 2)])) == ["a", "c", "c"]
    with pytest.raises(Unreachable, match="nobody answers for d"):
        on_executors(spark, work, [("a", 1), ("d", 3)])


def test_a_worker_that_is_killed_is_replaced_and_only_its_successor_is_heard(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = pa.table({"task_id": ["a"]})

    def work(folder: str) -> list[str]:
        paths = write_stream(folder, rows.schema, rows.to_batches())
        if len(list(Path(folder).iterdir())) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return paths

    folders = [str(tmp_path / name) for name in ("one", "two")]
    heard = on_executors(spark, work, folders)
    assert [Path(path).parent.name for path in sorted(heard)] == ["one", "two"]
    assert [len(list(Path(folder).iterdir())) for folder in folders] == [2, 2]


@given(st.lists(st.text(max_size=50)), st.integers(1, 7))
def test_the_share_of_an_id_depends_on_nothing_else(ids: list[str], shares: int) -> None:
    found = share_of(pa.array(ids, pa.string()), shares)
    assert ((found >= 0) & (found < shares)).all()
    alone = [int(share_of(pa.array([one], pa.string()), shares)[0]) for one in ids]
    assert found.tolist() == alone
    among_others = share_of(pa.array(["x", *ids, "yyyyyyyyy"], pa.string()).slice(1, len(ids)), shares)
    assert among_others.tolist() == alone


def test_shares_of_ids_that_differ_in_little_are_alike_in_size() -> None:
    ids = pa.array([f"01a1e50e-75fe-{7000 + number:04x}-8a31-525adf400000" for number in range(4000)])
    sizes = np.bincount(share_of(ids, 4), minlength=4)
    assert sizes.min() > 800
