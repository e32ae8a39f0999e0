"""Spark as a worker: claim in large batches on executors, run a function on them, submit the results.

Spark keeps no state of this: the leases do. Kill an executor, the driver or the machine at any point, and the leases
run out, the tasks are handed out again, and the work is done again; a result is accepted once, from the newest lease.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
from msgspec import Struct
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.errors import CodeqError, InvalidRequest
from codeq.pipeline.client import Calls, Connection, say
from codeq.pipeline.session import tasks_at_once
from codeq.pipeline.worker import claim_loop
from codeq.pipeline.worker.claim_loop import REPORT, TASKS, VERDICTS, Claims, Report, Runner, add
from codeq.sdk.blocking import run_blocking
from codeq.sdk.client import DEFAULT_URL

Kind = Literal["pandas", "arrow", "dataframe"]
JOB_FAILED = (PySparkException, Py4JJavaError)
"""A session without Spark Connect says it by either, depending on what Java raised."""
FAILED_ROUNDS_MAX = 3
"""Rounds that may fail one after the other, by lost executors, before the driver gives up."""


class Progress(Struct, frozen=True, kw_only=True):
    """What has been done so far."""

    rounds: int = 0
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    """Tasks that the function answered with FAILED: ended for good."""
    returned: int = 0
    """Tasks that the function raised on or forgot: given back for another try."""
    refused: int = 0
    """Results that came too late: the task had been handed out again, or cancelled."""
    seconds: float = 0.0


def work(
    spark: SparkSession,
    command: str,
    fn: Callable[..., Any],
    *,
    kind: Kind = "pandas",
    endpoint: str = DEFAULT_URL,
    token_file: str | None = None,
    token_env: str | None = None,
    batch: int = BATCH_TASKS_MAX,
    lease: float | timedelta = 300,
    parallelism: int | None = None,
    round_seconds: float = 10,
    wait: float = 1,
    until_idle: bool = False,
    rounds_max: int | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> Progress:
    """Work on the tasks of a command: with `until_idle` until none is ready (those that wait for their next try are not
    waited for), else until it is interrupted.

    `fn` gets tasks with the columns `id`, `command`, `payload` (JSON text), `priority`, `attempt`, and gives rows with
    `id` and `result` (JSON text, or anything that can be written as JSON), and where it likes `status` (COMPLETED or
    FAILED) and `error`. With `kind="pandas"` both are a pandas DataFrame; with `"arrow"` an iterator of record batches;
    with `"dataframe"` a DataFrame of Spark, so that all of Spark can be used.

    A task without a row in the answer is given back and tried again. Where `fn` raises, the batch is halved until the
    tasks that it raises on are found, and only those are given back with the reason; so `fn` may see a task twice.
    `parallelism` tasks of Spark claim `batch` at a time, for about `round_seconds` per job. `on_progress` is called in
    the driver after each.
    """
    if not 1 <= batch <= BATCH_TASKS_MAX:
        raise InvalidRequest(f"a batch has 1 to {BATCH_TASKS_MAX} tasks, not {batch}")
    if kind not in ("pandas", "arrow", "dataframe"):
        raise InvalidRequest(f"kind is pandas, arrow or dataframe, not {kind!r}")
    claims = Claims(
        connection=Connection(endpoint=endpoint, token_file=token_file, token_env=token_env),
        command=command,
        batch=batch,
        lease_s=lease.total_seconds() if isinstance(lease, timedelta) else float(lease),
        wait_s=wait,
        round_s=round_seconds,
    )
    slots = parallelism or tasks_at_once(spark)
    if kind == "dataframe":
        one_round: Callable[[], Report] = lambda: _whole_round(spark, claims, fn, slots)  # noqa: E731
    else:
        one_round = lambda: _split_round(spark, claims, Runner(fn, kind=kind), slots)  # noqa: E731
    return _rounds(one_round, until_idle=until_idle, rounds_max=rounds_max, on_progress=on_progress)


def _rounds(
    one_round: Callable[[], Report],
    *,
    until_idle: bool,
    rounds_max: int | None,
    on_progress: Callable[[Progress], object] | None,
) -> Progress:
    total, rounds, failed, started_s = Report(), 0, 0, time.monotonic()
    while True:
        try:
            done = one_round()
            failed = 0
        except JOB_FAILED as fault:  # an executor was lost; its leases run out, and its tasks come again
            failed += 1
            if failed >= FAILED_ROUNDS_MAX:
                raise
            say(f"a round failed, going on: {str(fault).splitlines()[0]}")
            continue
        rounds += 1
        total = add(total, done)
        seconds = time.monotonic() - started_s
        progress = Progress(rounds=rounds, seconds=seconds, **{name: getattr(total, name) for name in REPORT.names})
        if done.claimed:
            say(f"round {rounds}: {done.claimed} claimed, {done.completed} completed; {total.completed} in all")
        if on_progress is not None:
            on_progress(progress)
        if (until_idle and not done.claimed) or (rounds_max is not None and rounds >= rounds_max):
            return progress


def _split_round(spark: SparkSession, claims: Claims, runner: Runner, slots: int) -> Report:
    """Each task of Spark claims, runs and submits by itself, until its time is over or the queue is empty."""

    def run(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield claims.run(runner).as_batch()

    return _added(spark.range(0, slots, 1, slots).mapInArrow(run, _ddl(REPORT)))


def _whole_round(spark: SparkSession, claims: Claims, fn: Callable[[DataFrame], DataFrame], slots: int) -> Report:
    """Tasks are claimed on executors into one DataFrame; what `fn` makes of it is submitted from executors.

    Where that fails, all that were claimed are handed back unharmed.
    """

    def take(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        calls = Calls(claims.connection)
        yield claim_loop.table_of(claims.take(calls), TASKS)
        calls.close()

    def submit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return claim_loop.submit_rows(claims.connection, batches)

    # Kept where it was computed, and its lineage cut: computing it again would claim other tasks.
    taken = spark.range(0, slots, 1, slots).mapInArrow(take, _ddl(TASKS)).localCheckpoint(eager=True)
    leases = taken.select("id", "lease_token", "worker")
    held = claim_loop.held_by(leases.collect())
    if not held:
        return Report()
    calls = Calls(claims.connection)
    with claims.kept_alive(held):
        verdicts: dict[str, str] = {}
        try:
            made = fn(taken.drop("lease_token", "worker"))
            columns = ["id", "result", *(name for name in ("status", "error") if name in made.columns)]
            answered = made.select(*columns).join(leases, "id").mapInArrow(submit, _ddl(VERDICTS))
            verdicts = dict(answered.collect())
        except BaseException:
            for job in held:
                with contextlib.suppress(CodeqError):
                    run_blocking(calls.backend.abandon(job))
            raise
        for job in held:
            if job.id not in verdicts:
                verdicts[job.id] = claim_loop.give_back(calls, job, claim_loop.NO_ANSWER)
    return add(Report(claimed=len(held)), claim_loop.counted(list(verdicts.values())))


def _added(reports: DataFrame) -> Report:
    total = Report()
    for row in reports.collect():
        total = add(total, Report(**row.asDict()))
    return total


def _ddl(schema: pa.Schema) -> str:
    kinds = {pa.int64(): "long", pa.int32(): "int", pa.string(): "string"}
    return ", ".join(f"{field.name} {kinds[field.type]}" for field in schema)
