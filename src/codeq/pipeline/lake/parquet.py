"""Writes Parquet files of the lake with the same settings in Spark and in Python on executors."""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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
ROWS_PER_GROUP = 1 << 18
"""Rows held in memory before they are written, some fifty megabytes."""


def write_stream(folder: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Writes the rows into a new file as they come. Returns its path; nothing if there were no rows."""
    path, rows = _new_file(folder), 0
    with pq.ParquetWriter(path, schema, **_options(schema)) as writer:
        for group in _row_groups(batches):
            writer.write_table(pa.Table.from_batches(group).cast(schema))
            rows += sum(map(len, group))
    if not rows:
        Path(path).unlink()
        return []
    return [path]


def write_by_state(folders: Mapping[str, bool], schema: pa.Schema, rows: pa.Table) -> list[str]:
    """Writes open rows and closed rows into new files of their own folders. Returns the paths.

    A Spark task that runs twice writes twice. Only the paths of one attempt are committed; the other files belong to no
    table.
    """
    paths = []
    for folder, is_open in folders.items():
        chosen = rows.filter(pc.equal(rows["is_open"], is_open)).cast(schema)
        if not len(chosen):
            continue
        paths.append(_new_file(folder))
        pq.write_table(chosen, paths[-1], row_group_size=ROWS_PER_GROUP, **_options(schema))
    return paths


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Collects batches until they have ROWS_PER_GROUP rows."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(map(len, group)) >= ROWS_PER_GROUP:
            yield group
            group = []
    if group:
        yield group


def _new_file(folder: str) -> str:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return str(Path(folder, f"{uuid.uuid4().hex}.parquet"))


def _options(schema: pa.Schema) -> dict[str, Any]:
    repetitive = [name for name in schema.names if name not in HIGH_CARDINALITY]
    return {"compression": COMPRESSION, "use_dictionary": repetitive, "store_schema": False}
