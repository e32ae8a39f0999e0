"""A Spark program that runs jobs on request: started by Python, or by spark-submit.

Its functions travel to executors by value, as those of a user's program do.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

import codeq
from codeq.pipeline import audit, make_session, register, work
from codeq.pipeline.client import ServerOptions
from codeq.pipeline.lake.run import run_once
from codeq.pipeline.lake.table import Lake
from codeq.pipeline.session import parallelism_of


def read(spark: SparkSession, options: dict[str, str], mark: str | None = None) -> list[tuple[Any, ...]]:
    """Reads events as shard, number, move and task id."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            die_once(mark)
            yield batch

    events = spark.read.format("codeq-events").options(**options).load()
    passed = events.mapInArrow(pass_on, events.schema).select("shard", "seq", "move", "task_id")
    return [tuple(row) for row in passed.collect()]


def write(spark: SparkSession, options: dict[str, str], rows: int, mark: str | None = None) -> None:
    """Enqueues the numbers below `rows`. An executor is killed when half of a partition is in the queue."""

    def halfway(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 5 and mark is not None and not os.path.exists(mark):
                wait_for_tasks(options)
                die_once(mark)
            yield batch

    # A payload of a kilobyte, in batches of a hundred: more than Spark buffers before it passes rows on.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    numbers = spark.range(0, rows, 1, 2).selectExpr("named_struct('n', id, 'text', repeat('x', 1000)) as payload")
    made = numbers.mapInArrow(halfway, numbers.schema)
    made.write.format("codeq").options(**options).mode("append").save()


def do_tasks(spark: SparkSession, mark: str | None = None, **arguments: Any) -> int:
    """Runs one round, and returns the completed tasks that reached the driver."""

    def number_of(tasks: Any) -> Any:
        import json  # noqa: PLC0415

        die_once(mark)
        return tasks.assign(result=[json.loads(text)["n"] for text in tasks["payload"]])

    def numbers_of(tasks: DataFrame) -> DataFrame:
        def same(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                die_once(mark)
                yield batch

        return tasks.mapInArrow(same, tasks.schema).selectExpr("id", "get_json_object(payload, '$.n') as result")

    fn = numbers_of if arguments.get("kind") == "dataframe" else number_of
    return work(spark, fn=fn, rounds_max=1, **arguments).completed


def update_lake(spark: SparkSession, folder: str, options: dict[str, str]) -> int:
    """Updates a lake, and returns the number of ingested events."""
    server = ServerOptions(endpoint=options["endpoint"], token_file=options["tokenFile"])
    return run_once(spark, Lake(Path(folder)), server).events


def audited(spark: SparkSession, folder: str) -> bool:
    return audit.is_clean(audit.audit(Lake(Path(folder)).bronze.read(spark)))


def width(spark: SparkSession) -> int:
    return parallelism_of(spark)


def die_once(mark: str | None) -> None:
    """Kills the Java process of the executor that this runs on; only the first time."""
    if mark is None:
        return
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    next(process for process in psutil.Process().parents() if process.name() == "java").kill()
    time.sleep(600)  # Spark ends this process when it notices that the executor is gone


def wait_for_tasks(options: dict[str, str]) -> None:
    deadline_s = time.monotonic() + 60
    with codeq.Client(options["endpoint"], Path(options["tokenFile"]).read_text().strip()) as client:
        while not client.list(command=options["command"]).tasks:
            if time.monotonic() > deadline_s:
                raise TimeoutError("nothing was enqueued")
            time.sleep(0.02)


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job for job in (read, write, do_tasks, update_lake, audited, width)
}


def main() -> None:
    with Client(("127.0.0.1", int(sys.argv[1]))) as asked:
        spark = make_session()
        register(spark)
        while True:
            try:
                name, arguments = asked.recv()
            except EOFError:
                break
            try:
                asked.send((None, JOBS[name](spark, **arguments)))
            except Exception:  # noqa: BLE001 - the error is sent to the test
                asked.send((traceback.format_exc(), None))
        spark.stop()


if __name__ == "__main__":
    main()
