"""Brings a lake that the version before has written to the form of this one, in place. It costs one look at each file.

Files of events get the range of their numbers recorded; those with several shards in them, which only compaction wrote,
are written anew, a file per shard. Very many open rows are put into leaves.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import SparkSession

from codeq.pipeline.lake.data_file import DataFile, NewFile, ranges_of, stats_json
from codeq.pipeline.lake.folder import file_at, storage_errors
from codeq.pipeline.lake.leaves import LEAF_ROWS_MAX
from codeq.pipeline.lake.maintenance import Log
from codeq.pipeline.lake.partitions import ParquetFiles, run_on_executors
from codeq.pipeline.lake.table import EVENTS, OPEN, Lake, LakeTable

_BOUNDED = ("at", "shard", "seq", "task_id")


class _Found(Struct, frozen=True):
    """What is in a file of events."""

    path: str
    shards: list[int]
    stats: str


class _OfShard(Struct, frozen=True):
    """The events of one shard in some files."""

    files: ParquetFiles
    shard: int


def upgrade(spark: SparkSession, lake: Lake, *, log: Log = lambda _: None) -> None:
    """Does nothing to a lake of this version."""
    unknown = [file for file in lake.bronze.files(part=EVENTS) if file.shard is None]
    if unknown:
        log(f"{lake.bronze.folder.name}: {len(unknown):,} files of the version before")
        _record_ranges(spark, lake.bronze, unknown)
    for table in lake.silver:
        open_files = table.files(part=OPEN)
        if any(file.first_id is None for file in open_files) and sum(f.rows for f in open_files) > LEAF_ROWS_MAX:
            _write_leaves(spark, table, open_files)


def _record_ranges(spark: SparkSession, bronze: LakeTable, files: Sequence[DataFile]) -> None:
    by_path = {bronze.path(file): file for file in files}
    found = [msgspec.json.decode(text, type=_Found) for text in run_on_executors(spark, _look, list(by_path))]
    known = [by_path[one.path] for one in found if len(one.shards) == 1]
    stats = {by_path[one.path].path: one.stats for one in found}
    added = [NewFile(file.path, file.rows, file.size_bytes, stats[file.path]) for file in known]
    mixed = [one for one in found if len(one.shards) > 1]
    for batch in sorted({by_path[one.path].batch for one in mixed}):  # which the gold of the version before counts by
        of_batch = [one for one in mixed if by_path[one.path].batch == batch]
        paths = bronze.parquet_files([by_path[one.path] for one in of_batch])
        pieces = [_OfShard(paths, shard) for shard in sorted({shard for one in of_batch for shard in one.shards})]
        added += bronze.write_pieces(spark, _of_shard, pieces, part=EVENTS, batch=batch)
    bronze.commit(added, batch=None, removed=files)


def _look(path: str) -> list[str]:
    """Reads what is in a file of events, on an executor."""
    with storage_errors([path]):
        system, name = file_at(path)
        rows = pq.read_table(name, columns=list(_BOUNDED), use_threads=False, filesystem=system)
    rows = rows.set_column(rows.schema.get_field_index("at"), "at", rows["at"].cast(pa.timestamp("us", "UTC")))
    shards = np.unique(rows["shard"].to_numpy()).tolist()
    return [msgspec.json.encode(_Found(path, shards, stats_json(len(rows), ranges_of(rows, _BOUNDED)))).decode()]


def _of_shard(piece: _OfShard) -> Iterator[pa.RecordBatch]:
    for batch in piece.files.batches():
        yield batch.filter(pa.array(batch.column("shard").to_numpy() == piece.shard))


def _write_leaves(spark: SparkSession, table: LakeTable, files: Sequence[DataFile]) -> None:
    count = -(-sum(file.rows for file in files) * 2 // LEAF_ROWS_MAX)
    rows = table.read(spark, files).repartitionByRange(count, "task_id")
    table.commit(table.write(rows, part=OPEN, batch=table.batch), batch=None, removed=files)
