"""How files of the lake are written: the same whether Spark does it, or Python on an executor."""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COMPRESSION = "zstd"
UNLIKE = ("task_id", "trace_id", "seq", "first_seq", "last_seq", "at", "enqueued_at", "first_claimed_at", "ready_at",
          "claimed_at", "lease_until", "ended_at", "last_at")  # fmt: skip
"""Columns whose values hardly ever repeat. Parquet would collect them in a dictionary, and then throw it away."""

OPTIONS = {"compression": COMPRESSION, **{f"parquet.enable.dictionary#{column}": "false" for column in UNLIKE}}
"""For Spark."""
ROWS_PER_GROUP = 1 << 18
"""What is held in memory before it is written, some fifty megabytes."""


def write_stream(folder: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Write the rows into a file of their own as they come. Answers which; none for no rows."""
    path, rows = _new_file(folder), 0
    with pq.ParquetWriter(path, schema, **_options(schema)) as writer:
        for group in _groups(batches):
            writer.write_table(pa.Table.from_batches(group).cast(schema))
            rows += sum(map(len, group))
    if not rows:
        Path(path).unlink()
        return []
    return [path]


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """So many that they are worth a group of rows in the file, and few enough to hold."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(map(len, group)) >= ROWS_PER_GROUP:
            yield group
            group = []
    if group:
        yield group


def write_apart(folders: Mapping[str, bool], schema: pa.Schema, rows: pa.Table) -> list[str]:
    """Write the rows into one folder or another by whether they are open, in files of their own. Answers which.

    A task of Spark that is run twice writes twice, and only one of them is heard: what nobody names is no harm.
    """
    paths = []
    for folder, is_open in folders.items():
        chosen = rows.filter(pc.equal(rows["is_open"], is_open)).cast(schema)
        if not len(chosen):
            continue
        paths.append(_new_file(folder))
        pq.write_table(chosen, paths[-1], row_group_size=ROWS_PER_GROUP, **_options(schema))
    return paths


def _new_file(folder: str) -> str:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return str(Path(folder, f"{uuid.uuid4().hex}.parquet"))


def _options(schema: pa.Schema) -> dict[str, Any]:
    alike = [name for name in schema.names if name not in UNLIKE]
    return {"compression": COMPRESSION, "use_dictionary": alike, "store_schema": False}
