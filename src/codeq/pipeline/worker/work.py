"""Spark as a worker: executors claim large batches of tasks, run a function on them and submit the results.

Spark keeps no state of this, only the leases do. If an executor, the driver or the machine is killed, the leases expire
and the tasks are delivered again; a result is accepted once, from the newest lease.
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
from codeq.pipeline.client import PipelineClient, ServerOptions, log_line
from codeq.pipeline.session import parallelism_of
from codeq.pipeline.worker import claim_loop
from codeq.pipeline.worker.claim_loop import COUNTS, TASKS, VERDICTS, ClaimLoop, FunctionRunner, WorkCounts
from codeq.sdk.blocking import run_blocking
from codeq.wire.local_server import DEFAULT_URL

Kind = Literal["pandas", "arrow", "dataframe"]
JOB_FAILED = (PySparkException, Py4JJavaError)
"""Without Spark Connect a failed job raises either, depending on the exception in Java."""
FAILED_ROUNDS_MAX = 3
"""Rounds in a row that may fail because executors were lost, before `work` raises the error."""


class Progress(Struct, frozen=True, kw_only=True):
    """The counts since `work` began."""

    rounds: int = 0
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    """Tasks with status FAILED in their result: they are not tried again."""
    returned: int = 0
    """Tasks that the function raised on or gave no row for: nacked, to be tried again."""
    refused: int = 0
    """Results that came too late: the task had been delivered again, or cancelled."""
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
    """Works on the tasks of a command: with `until_idle` until no task is ready (it does not wait for delayed tasks),
    else until it is interrupted.

    `fn` gets tasks with the columns `id`, `command`, `payload` (JSON text), `priority`, `attempt`. It returns rows
    with `id` and `result` (JSON text, or any value that can be encoded as JSON), and optionally `status` (COMPLETED or
    FAILED) and `error`. With `kind="pandas"` both are a pandas DataFrame; with `"arrow"` an iterator of record batches;
    with `"dataframe"` a Spark DataFrame.

    A task without a row in the result is nacked and tried again. If `fn` raises, the batch is halved until the tasks
    that it raises on are found, and only those are nacked with the error; so `fn` may get a task twice. `parallelism`
    Spark tasks claim `batch` tasks at a time, for about `round_seconds` per Spark job. `on_progress` is called in the
    driver after each Spark job.
    """
    if not 1 <= batch <= BATCH_TASKS_MAX:
        raise InvalidRequest(f"a batch has 1 to {BATCH_TASKS_MAX} tasks, not {batch}")
    if kind not in ("pandas", "arrow", "dataframe"):
        raise InvalidRequest(f"kind is pandas, arrow or dataframe, not {kind!r}")
    loop = ClaimLoop(
        server=ServerOptions(endpoint=endpoint, token_file=token_file, token_env=token_env),
        command=command,
        batch=batch,
        lease_s=lease.total_seconds() if isinstance(lease, timedelta) else float(lease),
        wait_s=wait,
        round_s=round_seconds,
    )
    slots = parallelism or parallelism_of(spark)
    if kind == "dataframe":
        one_round: Callable[[], WorkCounts] = lambda: _dataframe_round(spark, loop, fn, slots)  # noqa: E731
    else:
        one_round = lambda: _executor_round(spark, loop, FunctionRunner(fn, kind=kind), slots)  # noqa: E731
    return _run_rounds(one_round, until_idle=until_idle, rounds_max=rounds_max, on_progress=on_progress)


def _run_rounds(
    one_round: Callable[[], WorkCounts],
    *,
    until_idle: bool,
    rounds_max: int | None,
    on_progress: Callable[[Progress], object] | None,
) -> Progress:
    total, rounds, failed, started_s = WorkCounts(), 0, 0, time.monotonic()
    while True:
        try:
            counts = one_round()
            failed = 0
        except JOB_FAILED as fault:  # an executor was lost; its leases expire, and its tasks are delivered again
            failed += 1
            if failed >= FAILED_ROUNDS_MAX:
                raise
            log_line(f"a round failed, continuing: {str(fault).splitlines()[0]}")
            continue
        rounds += 1
        total += counts
        seconds = time.monotonic() - started_s
        progress = Progress(rounds=rounds, seconds=seconds, **{name: getattr(total, name) for name in COUNTS.names})
        if counts.claimed:
            log_line(
                f"round {rounds}: {counts.claimed} claimed, {counts.completed} completed; {total.completed} in all"
            )
        if on_progress is not None:
            on_progress(progress)
        if (until_idle and not counts.claimed) or (rounds_max is not None and rounds >= rounds_max):
            return progress


def _executor_round(spark: SparkSession, loop: ClaimLoop, function: FunctionRunner, slots: int) -> WorkCounts:
    """Runs one Spark job whose tasks each claim, run and submit until the round is over or the queue is empty."""

    def run(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield loop.run(function).to_batch()

    rows = spark.range(0, slots, 1, slots).mapInArrow(run, _ddl(COUNTS)).collect()
    return sum((WorkCounts(**row.asDict()) for row in rows), WorkCounts())


def _dataframe_round(
    spark: SparkSession, loop: ClaimLoop, fn: Callable[[DataFrame], DataFrame], slots: int
) -> WorkCounts:
    """Claims tasks on executors into one DataFrame, and submits the rows of `fn` from executors.

    If that fails, all claimed tasks are abandoned, which counts no attempt.
    """

    def claim(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with contextlib.closing(PipelineClient(loop.server)) as client:
            yield claim_loop.task_batch(loop.claim(client), TASKS)

    def submit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return claim_loop.submit_rows(loop.server, batches)

    # The checkpoint cuts the lineage: if Spark computed the claims again, they would be other tasks.
    tasks = spark.range(0, slots, 1, slots).mapInArrow(claim, _ddl(TASKS)).localCheckpoint(eager=True)
    leases = tasks.select("id", "lease_token", "worker")
    jobs = claim_loop.leases_of(leases.collect())
    if not jobs:
        return WorkCounts()
    with contextlib.closing(PipelineClient(loop.server)) as client, loop.heartbeats(jobs):
        try:
            rows = fn(tasks.drop("lease_token", "worker"))
            columns = ["id", "result", *(name for name in ("status", "error") if name in rows.columns)]
            submitted = rows.select(*columns).join(leases, "id").mapInArrow(submit, _ddl(VERDICTS))
            verdicts: dict[str, str] = dict(submitted.collect())
        except BaseException:
            for job in jobs:
                with contextlib.suppress(CodeqError):
                    run_blocking(client.backend.abandon(job))
            raise
        for job in jobs:
            if job.id not in verdicts:
                verdicts[job.id] = claim_loop.nack(client, job, claim_loop.NO_RESULT)
    return WorkCounts(claimed=len(jobs)) + claim_loop.count_verdicts(list(verdicts.values()))


def _ddl(schema: pa.Schema) -> str:
    kinds = {pa.int64(): "long", pa.int32(): "int", pa.string(): "string"}
    return ", ".join(f"{field.name} {kinds[field.type]}" for field in schema)
