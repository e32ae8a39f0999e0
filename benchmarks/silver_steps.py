"""Measures a step of silver beside many open tasks: `python benchmarks/silver_steps.py --open 0 1000000 5000000`.

Writes open rows into leaves, and bronze with events of work that is first in, first out; then computes the shares of a
step in this process, without Spark and without a server, and prints CPU seconds, leaves read, and memory.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.pop(0)  # http.py lies beside this file, and would hide Python's own
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa

from codeq.pipeline.lake import silver, update
from codeq.pipeline.lake.data_file import EVENTS
from codeq.pipeline.lake.parquet import write_stream
from codeq.pipeline.lake.table import Lake, LakeTable
from codeq.pipeline.lake.verdicts import Auditor, verdicts_of
from codeq.wire import events as wire

START_MS = 1_767_225_480_000
TASKS_AT_ONCE = 100_000


def task_ids(first: int, count: int) -> pa.Array:
    """Ids as the server makes them: a task every millisecond."""
    ms = START_MS + np.arange(first, first + count)
    return pa.array([f"{n >> 16:08x}-{n & 0xFFFF:04x}-7001-8a3f-ef8513780000" for n in ms.tolist()])


def events_of(ids: pa.Array, move: str, first_seq: int, at_ms: int) -> pa.Table:
    count = len(ids)
    before, after = {"enqueue": (None, "PENDING"), "claim": ("PENDING", "IN_PROGRESS"),
                     "complete": ("IN_PROGRESS", "COMPLETED")}[move]  # fmt: skip
    token = 0 if move == "enqueue" else 1
    values: dict[str, Any] = {
        "shard": 0, "move": move, "tenant": "acme", "command": "mail", "priority": 0, "status_before": before,
        "status_after": after, "attempts": 0, "deliveries": token, "max_attempts": 5, "lease_token": token,
        "worker_id": None if move == "enqueue" else "worker-1", "payload_bytes": 100,
    }  # fmt: skip
    times = pa.array((at_ms + np.arange(count)) * 1000)
    columns = []
    for field in wire.arrow_schema():
        if field.name == "task_id":
            column = ids
        elif field.name == "seq":
            column = pa.array(np.arange(first_seq, first_seq + count))
        elif field.name == "at":
            column = times.cast(field.type)
        else:
            column = pa.repeat(pa.scalar(values.get(field.name), field.type), count)
        columns.append(column)
    return pa.table(columns, schema=wire.arrow_schema())


class Bench:
    def __init__(self, folder: Path, parallelism: int) -> None:
        self.lake = Lake(folder)
        self.parallelism = parallelism
        self.next_seq = 1
        self.tasks = 0
        self.claimed = 0

    def put(self, tables: list[pa.Table]) -> None:
        """Commits events to bronze, as one file of one shard."""
        bronze = self.lake.bronze
        batch = bronze.batch + 1
        target = bronze.target(bronze.new_folder(batch), EVENTS)
        batches = [one for table in tables for one in table.to_batches()]
        bronze.commit(write_stream(target, batches), batch=batch, offsets={0: self.next_seq})

    def enqueue(self, count: int) -> None:
        while count > 0:
            some = min(count, TASKS_AT_ONCE)
            table = self.events("enqueue", self.tasks, some)
            self.tasks += some
            self.put([table])
            count -= some

    def events(self, move: str, first: int, count: int) -> pa.Table:
        table = events_of(task_ids(first, count), move, self.next_seq, START_MS + self.next_seq)
        self.next_seq += count
        return table

    def work(self, events: int) -> None:
        """A third of the events each: new tasks, claims of the oldest, and their completion."""
        count = events // 3
        new = self.events("enqueue", self.tasks, count)
        self.tasks += count
        tables = [new]
        tables += [self.events(move, self.claimed, count) for move in ("claim", "complete")]
        self.claimed += count
        self.put(tables)

    def step(self) -> tuple[float, int]:
        """Brings silver up to bronze. Returns CPU seconds and leaves rewritten."""
        started_s, rewritten = time.process_time(), 0
        for table, function in ((self.lake.attempts, silver.attempts), (self.lake.tasks, silver.tasks)):
            rewritten += self._step(table, function)
        return time.process_time() - started_s, rewritten

    def _step(self, table: LakeTable, function: update.Update) -> int:
        bronze, starts = self.lake.bronze, {0: table.offsets.get(0, 0)}
        files = [file for file in bronze.files(part=EVENTS) if file.overlaps(starts, bronze.offsets)]
        events = update.NewEvents(bronze, files, starts, bronze.offsets)
        auditor = Auditor(self.lake) if table is self.lake.tasks else None
        plan, work = update.plan_step(table, function, events, parallelism=self.parallelism, auditor=auditor)
        update.commit_step(table, plan, events, [work.result(share) for share in plan.shares], auditor=auditor)
        return len(plan.removed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, nargs="+", default=[0, 200_000])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    for waiting in asked.open:
        with tempfile.TemporaryDirectory(prefix="codeq-silver-") as name:
            bench = Bench(Path(name), asked.parallelism)
            bench.enqueue(waiting + asked.events)  # what the turns are to claim comes on top
            bench.step()
            costs = []
            for _ in range(asked.turns):
                bench.work(asked.events)
                costs.append(bench.step())
            cpu_s, leaves = min(costs)
            assert all(not verdict.violations for verdict in verdicts_of(bench.lake)), verdicts_of(bench.lake)
            peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{waiting:>10,} open, {asked.events:,} events, {asked.parallelism} at once: {cpu_s:.2f} CPU s, "
                f"{leaves} leaves rewritten, peak {peak_mib:,.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
