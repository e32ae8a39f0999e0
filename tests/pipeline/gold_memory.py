"""Reads and passes on so many gold rows with full sketches, as a step does with those that it replaces, and prints the
most memory that it took in MiB: `python -m tests.pipeline.gold_memory FOLDER ROWS`.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from codeq.pipeline.lake import gold
from codeq.pipeline.lake.data_file import DAYS
from codeq.pipeline.lake.gold.sketches import kll_of
from codeq.pipeline.lake.gold_step import GoldOutput, GoldStep, Piece
from codeq.pipeline.lake.parquet import write_stream
from codeq.pipeline.lake.partitions import ParquetFiles
from codeq.pipeline.lake.table import Lake

AT_ONCE = 4096


def rows_of_hours(count: int) -> Iterator[pa.RecordBatch]:
    """Rows of as many tenants."""
    dice = np.random.default_rng(1)
    sketches = [kll_of(dice.exponential(1000, 1000)) for _ in range(AT_ONCE)]
    for start in range(0, count, AT_ONCE):
        texts = {"grain": "hour", "command": "mail"}
        columns = []
        for field in gold.LATENCY.schema:
            if field.name == "tenant":
                column = pa.array([f"tenant-{number}" for number in range(start, start + AT_ONCE)])
            elif field.name.endswith("_sketch"):
                column = pa.array(sketches)
            else:
                one = pa.scalar(texts.get(field.name, 1)).cast(pa.string() if field.name in texts else pa.int32())
                column = pa.repeat(one, AT_ONCE)
                if not pa.types.is_date(field.type) and field.name not in texts:
                    column = column.cast(pa.int64())
            columns.append(column.cast(field.type))
        yield pa.record_batch(columns, schema=gold.LATENCY.schema)


if __name__ == "__main__":
    lake = Lake(Path(sys.argv[1]))
    [table] = [table for definition, table in lake.gold if definition is gold.LATENCY]
    target = table.target("new", DAYS)
    [file] = write_stream(target, rows_of_hours(int(sys.argv[2])))
    step = GoldStep((GoldOutput(gold.LATENCY, target, "1970-01-02", buckets=8),))
    files = ParquetFiles((f"{table.folder}/{file.path}",), gold.LATENCY.schema)
    assert sum(1 for _ in step.add_up(Piece(0, files))) > 1
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)  # noqa: T201
