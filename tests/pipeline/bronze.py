"""Commits events of a test's history to bronze, as a run does with those of a server."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from tests.pipeline.histories import Row, arrow

from codeq.pipeline.lake.table import EVENTS, Lake


def put(spark: SparkSession, lake: Lake, events: Sequence[Row], *, files_per_shard: int = 1) -> None:
    """Commits a batch of events to bronze, with some files for each shard."""
    pieces, offsets = [], dict(lake.bronze.offsets)
    for shard in sorted({row["shard"] for row in events}):
        rows = sorted((row for row in events if row["shard"] == shard), key=lambda row: row["seq"])
        size = -(-len(rows) // files_per_shard)
        pieces += [arrow(rows[start : start + size]) for start in range(0, len(rows), size)]
        offsets[shard] = rows[-1]["seq"] + 1
    batch = lake.bronze.batch + 1
    files = lake.bronze.write_pieces(spark, _batches, pieces, part=EVENTS, batch=batch)
    lake.bronze.commit(files, batch=batch, offsets=offsets)


def _batches(piece: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from piece.to_batches()
