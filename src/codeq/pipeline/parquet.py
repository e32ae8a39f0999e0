"""How files of the lake are written: the same whether Spark does it, or Python on an executor."""

import uuid
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COMPRESSION = "zstd"
UNLIKE = ("task_id", "trace_id", "seq", "first_seq", "last_seq", "at", "enqueued_at", "first_claimed_at", "ready_at",
          "claimed_at", "lease_until", "ended_at", "last_at")  # fmt: skip
"""Columns whose values hardly ever repeat. Parquet would collect them in a dictionary, and then throw it away."""

OPTIONS = {"compression": COMPRESSION, **{f"parquet.enable.dictionary#{column}": "false" for column in UNLIKE}}
"""For Spark."""


def write_apart(folders: Mapping[str, bool], schema: pa.Schema, rows: pa.Table) -> list[str]:
    """Write the rows into one folder or another by whether they are open, in files of their own. Answers which.

    A task of Spark that is run twice writes twice, and only one of them is heard: what nobody names is no harm.
    """
    paths = []
    for folder, is_open in folders.items():
        chosen = rows.filter(pc.equal(rows["is_open"], is_open)).cast(schema)
        if not len(chosen):
            continue
        Path(folder).mkdir(parents=True, exist_ok=True)
        paths.append(str(Path(folder, f"{uuid.uuid4().hex}.parquet")))
        alike = [name for name in schema.names if name not in UNLIKE]
        pq.write_table(chosen, paths[-1], compression=COMPRESSION, use_dictionary=alike, store_schema=False)
    return paths
