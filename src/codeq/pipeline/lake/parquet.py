"""Writes Parquet files of the lake with the same settings in Spark and in Python on executors.

Rows are sorted by task id, in small row groups. Ids sort by time, so whoever looks for some tasks, for those of an hour
or for a single one, reads few row groups; and the events of a task are stored side by side, which makes the files a
quarter smaller.
"""

import uuid
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from codeq.pipeline.lake.data_file import NewFile, Ranges, joined, ranges_of, stats_json

COMPRESSION = "zstd"
HIGH_CARDINALITY = (
    "task_id", "trace_id", "seq", "first_seq", "last_seq", "at", "enqueued_at", "first_claimed_at", "ready_at",
    "claimed_at", "lease_until", "ended_at", "last_at",
)  # fmt: skip
"""Columns whose values hardly ever repeat. Parquet would build a dictionary for them, and then discard it."""

SPARK_OPTIONS = {
    "compression": COMPRESSION,
    **{f"parquet.enable.dictionary#{column}": "false" for column in HIGH_CARDINALITY},
}
ROWS_PER_SORT = 1 << 18
"""Rows that are held in memory and sorted together, some fifty megabytes."""
ROWS_PER_GROUP = 1 << 14
"""Rows that a reader of a single task has to read. Fewer would make the files larger, and slower to read as a whole."""


class FileTarget(Struct, frozen=True):
    """Where a new file is written: into `folder`, below the folder of the table."""

    table: str
    folder: str
    schema: pa.Schema
    bounded: tuple[str, ...]
    """The columns whose range is recorded."""


def write_stream(target: FileTarget, batches: Iterable[pa.RecordBatch]) -> list[NewFile]:
    """Writes the rows into a new file as they come, each ROWS_PER_SORT of them in the order of the tasks. Returns
    nothing if there were no rows.
    """
    path, rows, ranges = _new_path(target), 0, list[Ranges]()
    with pq.ParquetWriter(path, target.schema, **_options(target.schema)) as writer:
        for run in _runs(batches):
            table = pa.Table.from_batches(run).cast(target.schema)
            writer.write_table(sorted_by_id(table), row_group_size=ROWS_PER_GROUP)
            ranges.append(ranges_of(table, target.bounded))
            rows += len(table)
    if not rows:
        Path(path).unlink()
        return []
    return [_new_file(target, path, rows, joined(ranges))]


def write_rows(target: FileTarget, rows: pa.Table, *, rows_max: int) -> list[NewFile]:
    """Writes the rows in the order of the tasks into new files of at most so many rows."""
    if not len(rows):
        return []
    ordered, count = sorted_by_id(rows.cast(target.schema)), -(-len(rows) // rows_max)
    edges = [len(rows) * number // count for number in range(count + 1)]
    files = []
    for start, end in pairwise(edges):
        path, piece = _new_path(target), ordered.slice(start, end - start)
        pq.write_table(piece, path, row_group_size=ROWS_PER_GROUP, **_options(target.schema))
        files.append(_new_file(target, path, len(piece), ranges_of(piece, target.bounded)))
    return files


def sorted_by_id(rows: pa.Table) -> pa.Table:
    """Sorts the rows by task; those of a task stay in their order."""
    return rows.take(pc.sort_indices(rows["task_id"])) if "task_id" in rows.column_names else rows


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Collects batches until they have ROWS_PER_SORT rows."""
    run: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        run.append(batch)
        rows += len(batch)
        if rows >= ROWS_PER_SORT:
            yield run
            run, rows = [], 0
    if rows:
        yield run


def _new_path(target: FileTarget) -> str:
    folder = Path(target.table, target.folder)
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / f"{uuid.uuid4().hex}.parquet")


def _new_file(target: FileTarget, path: str, rows: int, ranges: Ranges) -> NewFile:
    file = Path(path)
    return NewFile(str(file.relative_to(target.table)), rows, file.stat().st_size, stats_json(rows, ranges))


def _options(schema: pa.Schema) -> dict[str, Any]:
    repetitive = [name for name in schema.names if name not in HIGH_CARDINALITY]
    return {"compression": COMPRESSION, "use_dictionary": repetitive, "store_schema": False}
