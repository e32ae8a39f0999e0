"""Measures Spark on a real server, compared with Spark's own Parquet: `python benchmarks/pipeline.py`.

Reads N events into Parquet through `codeq-events` and from Parquet files with the same rows, builds a whole lake,
enqueues M tasks through the sink, works on them, and measures a run with few new events after a short and after a long
history, and beside tasks that wait (`--waiting`; `--only open` measures CPU seconds, which a busy machine changes
less). Server and Spark share the cores. `--events 1000000` and `--events 5000000` are the sizes that we publish.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.pop(0)  # http.py lies beside this file, and would hide Python's own
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import event_log, machine
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from codeq.pipeline import event_schema, last_write_summary, make_session, work
from codeq.pipeline.client import ServerOptions
from codeq.pipeline.lake.run import RunSummary, ingest, run_once, update_gold, update_silver
from codeq.pipeline.lake.table import Lake

OPEN_NEW_EVENTS = 100_000
"""New events of a run that is measured beside tasks that wait."""
NEW_EVENTS = 30_000
"""New events of a run that is measured after a history."""
TURNS = 2
"""The first turn warms Java up; the best turn counts."""
LAKE_TURNS = 4
"""Gold is mostly planning, which Java compiles after some runs. The first turn is shown too."""


class Bench:
    def __init__(self, spark: SparkSession, url: str, folder: Path, pid: int) -> None:
        self.spark = spark
        self.options = {"endpoint": url, "tokenEnv": "CODEQ_TOKEN"}
        self.server = ServerOptions(endpoint=url, token_env="CODEQ_TOKEN")
        self.folder = folder
        self.pid = pid
        self.table = Table("what", "rows", "s", "k/s", "server CPU s", title="Spark and codeQ on the same cores")

    def measure(self, what: str, rows: int, run: Callable[[], object], turns: int = TURNS) -> None:
        best_s, cpu_s = float("inf"), 0.0
        for _ in range(turns):
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            spent_s, started_s = event_log.cpu_s(self.pid), time.perf_counter()
            run()
            took_s = time.perf_counter() - started_s
            if took_s < best_s:
                best_s, cpu_s = took_s, event_log.cpu_s(self.pid) - spent_s
        self.table.add_row(what, f"{rows:,}", f"{best_s:.1f}", f"{rows / best_s / 1000:.0f}", f"{cpu_s:.1f}")

    def events(self) -> DataFrame:
        return self.spark.read.format("codeq-events").options(**self.options, minPartitions="2").load()

    def keep(self, frame: DataFrame) -> None:
        frame.write.parquet(str(self.folder / "out"))

    def stream(self, frame: DataFrame) -> None:
        out = self.folder / "out"
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(out / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(out / "rows"))
        query.awaitTermination()

    def reading(self, total: int) -> None:
        native = self.folder / "native"
        self.events().write.parquet(str(native))
        files = len(list(native.glob("*.parquet")))
        reader = self.spark.readStream.format("codeq-events").options(**self.options, minPartitions="2")
        self.measure("Parquet files -> Parquet", total, lambda: self.keep(self.spark.read.parquet(str(native))))
        self.measure("codeq-events -> Parquet", total, lambda: self.keep(self.events()))
        self.measure("codeq-events -> nothing", total, lambda: self.events().write.format("noop").mode("append").save())
        frame = self.spark.readStream.schema(event_schema()).parquet(str(native))
        self.measure(f"Parquet files -> stream, {files} files", total, lambda: self.stream(frame))
        self.measure("codeq-events -> stream, 1 batch", total, lambda: self.stream(reader.load()))
        fifth = str(-(-total // 5))
        five = reader.option("maxEventsPerTrigger", fifth)
        self.measure("codeq-events -> stream, 5 batches", total, lambda: self.stream(five.load()), turns=1)

    def lake(self, total: int) -> None:
        """Measures all layers, from the server's log to gold. The best turn counts."""
        runs = []
        for turn in range(LAKE_TURNS):
            runs.append(run_once(self.spark, Lake(self.folder / f"lake-{turn}"), self.server))
            assert runs[-1].events == total
        best = min(runs, key=_whole_s)
        whole = {"whole": _whole_s(best), "whole, the first turn": _whole_s(runs[0])}
        for what, seconds in {**best.seconds, **whole}.items():
            self.row(f"lake: {what}", total, seconds)

    def increment(self, history: str, lake: Path) -> float:
        """Measures a run with few new events, after a first run that ingests the history."""
        tables = Lake(lake)
        run_once(self.spark, tables, self.server)
        took_s = []
        for _ in range(TURNS + 1):
            event_log.add_events(self.options["endpoint"], NEW_EVENTS)
            summary = run_once(self.spark, tables, self.server)
            assert summary.events >= NEW_EVENTS
            took_s.append(_whole_s(summary))
        self.row(f"a run beside {history}", NEW_EVENTS, min(took_s))
        return min(took_s)

    def beside_open(self, waiting: int, lake: Path) -> dict[str, float]:
        """Measures the CPU seconds of a run with new events beside tasks that wait, by layer. The best turn counts."""
        tables, started_s = Lake(lake), time.perf_counter()
        built = {layer: round(cpu_s, 1) for layer, cpu_s in self.cpu_by_layer(tables).items()}
        print(
            f"{waiting:,} open: taken in before in {time.perf_counter() - started_s:.1f} s, CPU s {built}", flush=True
        )
        turns = []
        for _ in range(TURNS + 1):
            event_log.add_events(self.options["endpoint"], OPEN_NEW_EVENTS)
            turns.append(self.cpu_by_layer(tables))
        best = {layer: min(turn[layer] for turn in turns) for layer in turns[0]}
        for layer, cpu_s in best.items():
            self.table.add_row(f"{waiting:,} open: {layer}", f"{OPEN_NEW_EVENTS:,}", "", "", f"{cpu_s:.2f}")
        turns_s = [round(sum(turn.values()), 2) for turn in turns]
        layers_s = {layer: round(cpu_s, 2) for layer, cpu_s in best.items()}
        print(
            f"{waiting:,} open: CPU s by layer {layers_s}, turns {turns_s}, load {os.getloadavg()[0]:.1f}", flush=True
        )
        return best

    def cpu_by_layer(self, tables: Lake) -> dict[str, float]:
        """Brings the lake up to date. Returns the CPU seconds of Spark, its Python processes and this one."""
        steps: dict[str, Callable[[], None]] = {
            "bronze": partial(self.ingest_all, tables),
            "silver": partial(update_silver, self.spark, tables),
            "gold": partial(update_gold, self.spark, tables),
        }
        spent = {}
        for layer, step in steps.items():
            before_s = event_log.tree_cpu_s(os.getpid(), without=self.pid)
            step()
            spent[layer] = event_log.tree_cpu_s(os.getpid(), without=self.pid) - before_s
        return spent

    def ingest_all(self, tables: Lake) -> None:
        while ingest(self.spark, tables, self.server):
            pass

    def row(self, what: str, rows: int, seconds: float) -> None:
        self.table.add_row(what, f"{rows:,}", f"{seconds:.1f}", f"{rows / max(seconds, 0.001) / 1000:.0f}", "")

    def writing(self, tasks: int) -> None:
        rows = self.spark.range(0, tasks, 1, 2).selectExpr("struct(id, repeat('x', 40) as to) as payload")

        def enqueue() -> None:
            rows.write.format("codeq").options(**self.options, command="bench").mode("append").save()
            assert last_write_summary().enqueued == tasks

        self.measure("sink: DataFrame -> tasks, fsync", tasks, enqueue)

    def working(self, tasks: int) -> None:
        def run() -> None:
            done = work(
                self.spark, "bench", lambda tasks: tasks.assign(result="1")[["id", "result"]], until_idle=True, wait=0,
                endpoint=self.options["endpoint"], token_env="CODEQ_TOKEN", parallelism=2,
            )  # fmt: skip
            assert done.completed == tasks * TURNS

        self.measure("worker: claim, pandas, submit, fsync", tasks * TURNS, run, turns=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--waiting", type=int, nargs="*", default=[], help="measure runs beside so many open tasks")
    parser.add_argument("--only", choices=["reading", "lake", "tasks", "growth", "open"], help="only this part")
    asked = parser.parse_args()
    os.environ["CODEQ_TOKEN"] = "dev-token"
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = make_session("local[2]")
        before_s = machine.calibrate()
        tables = []
        if asked.only in (None, "growth"):
            tables.append(growth(spark, folder / "short", asked.events // 10))
        total = event_log.make_log(folder / "data", asked.events)
        if asked.only == "open":
            console.print(beside_open(spark, folder, asked.waiting or [0]))
            return
        with event_log.serving(folder) as (url, pid):
            bench = Bench(spark, url, folder, pid)
            if asked.only in (None, "reading"):
                bench.reading(total)
            if asked.only in (None, "lake", "growth"):
                bench.lake(total)
            if asked.only in (None, "growth"):
                bench.increment(f"{total:,} events", folder / "lake-0")
                waiting = 0
                for wanted in sorted(asked.waiting):
                    event_log.add_waiting(url, wanted - waiting)
                    waiting = wanted
                    bench.increment(f"{waiting:,} open tasks", folder / "lake-0")
            if asked.only in (None, "tasks"):
                bench.writing(asked.tasks)
                bench.working(asked.tasks)
            after_s = machine.calibrate()
        tables.append(bench.table)
        spark.stop()
    for table in tables:
        console.print(table)
    console.print(f"calibration {before_s:.2f} s before, {after_s:.2f} s after (0.27 is quiet)")


def beside_open(spark: SparkSession, folder: Path, waiting: list[int]) -> Table:
    """Measures runs beside more and more tasks that wait. They are enqueued while no server runs, which is quicker."""
    known, table = 0, None
    for wanted in sorted(waiting):
        if wanted > known:
            event_log.enqueue_waiting(folder / "data", wanted - known)
            known = wanted
        with event_log.serving(folder) as (url, pid):
            bench = Bench(spark, url, folder, pid)
            bench.table = table = table or bench.table
            bench.beside_open(wanted, folder / "lake-open")
    assert table is not None
    return table


def _whole_s(summary: RunSummary) -> float:
    return sum(summary.seconds.values())


def growth(spark: SparkSession, folder: Path, events: int) -> Table:
    """Measures a run with few new events after a tenth of the history."""
    total = event_log.make_log(folder / "data", events)
    with event_log.serving(folder) as (url, pid):
        bench = Bench(spark, url, folder, pid)
        bench.increment(f"{total:,} events", folder / "lake")
    return bench.table


if __name__ == "__main__":
    main()
