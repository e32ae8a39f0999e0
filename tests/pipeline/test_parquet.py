"""Files that Python writes: every row once, in row groups of limited size."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.histories import arrow, churn

from codeq.pipeline.lake import parquet
from codeq.pipeline.lake.parquet import write_by_state, write_stream
from codeq.wire import events as wire

SCHEMA = wire.arrow_schema()


def test_rows_are_written_as_they_come_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 100)
    rows = arrow(churn(5, 200).events)
    [path] = write_stream(str(tmp_path / "new"), SCHEMA, iter(rows.to_batches(max_chunksize=30)))
    assert pq.read_table(path).cast(SCHEMA).equals(rows)
    footer = pq.read_metadata(path)
    sizes = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    assert set(sizes[:-1]) == {120}, "the first number of batches that is enough"
    columns = {footer.row_group(0).column(place).path_in_schema: place for place in range(footer.num_columns)}
    encodings = {name: footer.row_group(0).column(place).encodings for name, place in columns.items()}
    assert "RLE_DICTIONARY" in encodings["move"]
    assert "RLE_DICTIONARY" not in encodings["task_id"]
    assert footer.row_group(0).column(columns["at"]).statistics.has_min_max


def test_no_rows_leave_no_file(tmp_path: Path) -> None:
    assert write_stream(str(tmp_path), SCHEMA, iter(())) == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_open_lies_apart_from_what_is_closed(tmp_path: Path) -> None:
    schema = pa.schema([("task_id", pa.string()), ("status", pa.string()), ("is_open", pa.bool_())])
    rows = pa.table({"task_id": ["a", "b", "c"], "status": ["x", None, "x"], "is_open": [True, False, True]}, schema)
    coded = rows.set_column(1, "status", rows["status"].dictionary_encode())
    folders = {str(tmp_path / "open"): True, str(tmp_path / "closed"): False}
    found = {Path(path).parent.name: pq.read_table(path).to_pylist() for path in write_by_state(folders, schema, coded)}
    assert found == {
        "open": [row for row in rows.to_pylist() if row["is_open"]],
        "closed": [row for row in rows.to_pylist() if not row["is_open"]],
    }
    assert write_by_state(folders, schema, coded.slice(0, 0)) == []
    twice = {path for _ in range(2) for path in write_by_state(folders, schema, coded)}
    assert len(twice) == 4, "nothing is written over"
