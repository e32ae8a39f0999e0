"""Computes a step of silver with so many events, without Spark, and prints the most memory that it took in MiB:
`python -m tests.pipeline.share_memory FOLDER EVENTS`.
"""

import resource
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from tests.pipeline.histories import arrow, churn

from codeq.pipeline.lake import silver, update
from codeq.pipeline.lake.data_file import EVENTS
from codeq.pipeline.lake.parquet import write_stream
from codeq.pipeline.lake.table import Lake
from codeq.pipeline.lake.verdicts import Auditor

EVENTS_PER_FILE = 50_000


def put(lake: Lake, events: int) -> None:
    """Commits so many events to bronze, as the same history again and again with other tasks."""
    history = arrow([row for row in churn(5, 400).events if row["shard"] == 0])
    size, seq, of_file = len(history), 1, list[pa.Table]()
    while seq <= events:
        ids = pc.binary_join_element_wise(f"{seq:09d}", history["task_id"], "-")
        again = history.set_column(history.schema.get_field_index("task_id"), history.schema.field("task_id"), ids)
        numbers = pc.add(history["seq"], seq - 1)
        of_file.append(again.set_column(history.schema.get_field_index("seq"), history.schema.field("seq"), numbers))
        seq += size
        if size * len(of_file) >= EVENTS_PER_FILE or seq > events:
            table = pa.concat_tables(of_file)
            batch = lake.bronze.batch + 1
            target = lake.bronze.target(lake.bronze.new_folder(batch), EVENTS)
            lake.bronze.commit(write_stream(target, table.to_batches()), batch=batch, offsets={0: seq})
            of_file.clear()


def step(lake: Lake) -> None:
    events = update.NewEvents(lake.bronze, lake.bronze.files(part=EVENTS), {0: 0}, lake.bronze.offsets)
    for table, function, auditor in (
        (lake.attempts, silver.attempts, None),
        (lake.tasks, silver.tasks, Auditor(lake)),
    ):
        plan, work = update.plan_step(table, function, events, parallelism=1, auditor=auditor)
        for share in plan.shares:
            work.result(share)


if __name__ == "__main__":
    made = Lake(Path(sys.argv[1]))
    put(made, int(sys.argv[2]))
    step(made)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)  # noqa: T201
