"""Writes the Parquet files of the lake, on executors.

Rows are sorted by task id, in small row groups. Ids sort by time, so whoever looks for some tasks, for those of an hour
or for a single one, reads few row groups; and the events of a task are stored side by side, which makes the files a
quarter smaller.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from codeq.pipeline.lake.data_file import DAY, NewFile, Ranges, joined, ranges_of, stats_json
from codeq.pipeline.lake.folder import Folder, LakeUnavailable, file_at, force_to_disk, storage_errors

COMPRESSION = "zstd"
HIGH_CARDINALITY = (
    "task_id", "trace_id", "seq", "first_seq", "last_seq", "at", "enqueued_at", "first_claimed_at", "ready_at",
    "claimed_at", "lease_until", "ended_at", "last_at",
)  # fmt: skip
"""Columns whose values hardly ever repeat. Parquet would build a dictionary for them, and then discard it."""

ROWS_PER_SORT = 1 << 18
"""Rows that are held in memory and sorted together, some fifty megabytes."""
ROWS_PER_GROUP, BYTES_PER_GROUP = 1 << 14, 16 << 20
"""Rows that a reader of a single task has to read. Fewer would make the files larger, and slower to read as a whole.
Rows with sketches are fewer: a reader holds whole groups.
"""


class FileTarget(Struct, frozen=True):
    """Where a new file is written: into `folder`, below the folder of the table."""

    table: Folder
    folder: str
    schema: pa.Schema
    bounded: tuple[str, ...]
    """The columns whose range is recorded."""


def write_stream(target: FileTarget, batches: Iterable[pa.RecordBatch]) -> list[NewFile]:
    """Writes the rows into a new file as they come, each ROWS_PER_SORT of them in the order of the tasks. Returns
    nothing if there were no rows.
    """
    runs = _runs(batches, ROWS_PER_SORT if "task_id" in target.schema.names else ROWS_PER_GROUP)
    first = next(runs, None)
    if first is None:
        return []
    rows, ranges = 0, list[Ranges]()
    with _new_address(target) as address:
        system, path = file_at(address)
        with pq.ParquetWriter(path, target.schema, filesystem=system, **_options(target.schema)) as writer:
            for run in chain([first], runs):
                table = pa.Table.from_batches(run).cast(target.schema)
                writer.write_table(sorted_by_id(table), row_group_size=_rows_per_group(table))
                ranges.append(ranges_of(table, target.bounded))
                rows += len(table)
        return [_new_file(target, address, rows, joined(ranges))]


def write_split(target: FileTarget, batches: Iterable[pa.RecordBatch]) -> Iterator[NewFile]:
    """Writes rows that come in the order of their column DAY into a new file for each of its values, without it."""
    for key, pieces in groupby(_by_key(batches), key=lambda piece: piece[0]):
        of_key = msgspec.structs.replace(target, folder=f"{target.folder}/{DAY}={key}")
        yield from write_stream(of_key, (rows for _, rows in pieces))


def _by_key(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for batch in batches:
        runs, start = pc.run_end_encode(batch.column(DAY)), 0
        rows = batch.drop_columns([DAY])
        for key, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield key, rows.slice(start, end - start)
            start = end


def write_rows(target: FileTarget, rows: pa.Table, *, rows_max: int) -> list[NewFile]:
    """Writes the rows in the order of the tasks into new files of at most so many rows."""
    if not len(rows):
        return []
    ordered, count = sorted_by_id(rows.cast(target.schema)), -(-len(rows) // rows_max)
    edges = [len(rows) * number // count for number in range(count + 1)]
    files = []
    for start, end in pairwise(edges):
        piece = ordered.slice(start, end - start)
        with _new_address(target) as address:
            system, path = file_at(address)
            pq.write_table(piece, path, filesystem=system, row_group_size=ROWS_PER_GROUP, **_options(target.schema))
            files.append(_new_file(target, address, len(piece), ranges_of(piece, target.bounded)))
    return files


def sorted_by_id(rows: pa.Table) -> pa.Table:
    """Sorts the rows by task; those of a task stay in their order."""
    return rows.take(pc.sort_indices(rows["task_id"])) if "task_id" in rows.column_names else rows


def _rows_per_group(rows: pa.Table) -> int:
    return min(ROWS_PER_GROUP, max(1, len(rows) * BYTES_PER_GROUP // max(1, int(rows.nbytes))))


def _runs(batches: Iterable[pa.RecordBatch], rows_min: int) -> Iterator[list[pa.RecordBatch]]:
    """Collects batches until they have so many rows."""
    run: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        run.append(batch)
        rows += len(batch)
        if rows >= rows_min:
            yield run
            run, rows = [], 0
    if rows:
        yield run


@contextmanager
def _new_address(target: FileTarget) -> Iterator[str]:
    """Yields the address of a new file. If writing it fails, nothing is left of it in a folder: a full disk stays as
    full as it was.
    """
    folder = target.table / target.folder
    address = str(folder / f"{uuid.uuid4().hex}.parquet")
    try:
        with storage_errors([address]):
            if folder.is_local:
                Path(folder).mkdir(parents=True, exist_ok=True)
            yield address
    except LakeUnavailable:
        if folder.is_local:
            Path(address).unlink(missing_ok=True)
        raise


def _new_file(target: FileTarget, address: str, rows: int, ranges: Ranges) -> NewFile:
    system, path = file_at(address)
    size_bytes = system.get_file_info(path).size
    if target.table.is_local:
        force_to_disk(path)
    return NewFile(target.table.relative(address), rows, size_bytes, stats_json(rows, ranges))


def _options(schema: pa.Schema) -> dict[str, Any]:
    repetitive = [name for name in schema.names if name not in HIGH_CARDINALITY]
    return {"compression": COMPRESSION, "use_dictionary": repetitive, "store_schema": False}
