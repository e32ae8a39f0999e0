"""Files that Python writes: every row once, sorted by task, in row groups of limited size, with their ranges."""

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.histories import arrow, churn
from tests.system.disks import fill, small_disk

from codeq.pipeline.lake import parquet
from codeq.pipeline.lake.folder import LakeUnavailable, folder_of
from codeq.pipeline.lake.parquet import FileTarget, write_rows, write_stream
from codeq.wire import events as wire

SCHEMA = wire.arrow_schema()


def target(folder: Path, schema: pa.Schema = SCHEMA) -> FileTarget:
    return FileTarget(folder_of(folder), "new", schema, ("at", "seq", "task_id") if schema is SCHEMA else ("task_id",))


def test_rows_are_written_as_they_come_each_run_sorted_by_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROWS_PER_SORT", 100)
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 50)
    rows = arrow(churn(5, 200).events)
    [file] = write_stream(target(tmp_path), iter(rows.to_batches(max_chunksize=30)))
    path = tmp_path / file.path
    written = pq.read_table(path).cast(SCHEMA).to_pylist()
    assert written[:120] == sorted(rows.to_pylist()[:120], key=lambda row: row["task_id"]), "events stay in their order"
    assert sorted(map(str, written)) == sorted(map(str, rows.to_pylist()))
    footer = pq.read_metadata(path)
    assert max(footer.row_group(number).num_rows for number in range(footer.num_row_groups)) == 50
    columns = {footer.row_group(0).column(place).path_in_schema: place for place in range(footer.num_columns)}
    encodings = {name: footer.row_group(0).column(place).encodings for name, place in columns.items()}
    assert "RLE_DICTIONARY" in encodings["move"]
    assert "RLE_DICTIONARY" not in encodings["task_id"]
    stats = json.loads(file.stats)
    assert (file.rows, stats["numRecords"], file.size_bytes) == (len(rows), len(rows), path.stat().st_size)
    numbers = rows["seq"].to_pylist()
    assert (stats["minValues"]["seq"], stats["maxValues"]["seq"]) == (min(numbers), max(numbers))
    assert stats["maxValues"]["at"] == max(rows["at"].to_pylist()).isoformat()


def test_no_rows_leave_no_file(tmp_path: Path) -> None:
    assert write_stream(target(tmp_path), iter(())) == []
    assert write_rows(target(tmp_path), SCHEMA.empty_table(), rows_max=1) == []
    assert list(tmp_path.rglob("*.parquet")) == []


def test_too_many_rows_for_a_file_are_split_by_task(tmp_path: Path) -> None:
    schema = pa.schema([("task_id", pa.string()), ("status", pa.string())])
    rows = pa.table({"task_id": list("cbadefg"), "status": ["x", None, "x", "x", "x", "x", "x"]}, schema)
    coded = rows.set_column(1, "status", rows["status"].dictionary_encode())
    files = write_rows(target(tmp_path, schema), coded, rows_max=3)
    ids = [pq.read_table(tmp_path / file.path)["task_id"].to_pylist() for file in files]
    assert ids == [["a", "b"], ["c", "d"], ["e", "f", "g"]]
    assert [json.loads(file.stats)["maxValues"] for file in files] == [{"task_id": last} for last in "bdg"]
    again = write_rows(target(tmp_path, schema), coded, rows_max=3)
    assert not {file.path for file in files} & {file.path for file in again}, "nothing is written over"


def test_a_full_disk_is_an_error_of_the_storage_and_stays_as_full_as_it_was(tmp_path: Path) -> None:
    rows = arrow(churn(5, 200).events)
    with small_disk(tmp_path, 1) as disk:
        fill(disk, leaving_bytes=8192)
        writes = [
            partial(write_stream, target(disk), rows.to_batches()),
            partial(write_rows, target(disk), rows, rows_max=1000),
        ]
        for write in writes:
            with pytest.raises(LakeUnavailable, match=r"No space left.*new/\w+\.parquet"):
                write()
            assert list(disk.rglob("*.parquet")) == []
