"""`format("codeq")`: enqueues each row as a task, from batches and from streams.

A row without an idempotency key gets one derived from the write (the job of a batch; the query and batch number of a
stream), the partition and the number of the row in it. So a Spark task that is retried, or a batch that is replayed
after a crash, enqueues nothing twice. That requires the same rows in the same order at each attempt, which holds for
files, tables and Kafka, but not after `rand()`, `limit` without an order or a non-deterministic function: there rows
need an `idempotency_key`, or the DataFrame a checkpoint. If a retry has another row under the same key, the
write fails.

With `jobId` a batch job that is started again derives the same keys, so it enqueues only what the first attempt did
not. Keys are those of partitions and rows, so both attempts need the same partitions too. A key protects for as long as
its task exists: until it has ended, and `retention.seconds` of the server (a day by default) have passed.

Calls of one partition overlap (`inFlight`), so its tasks may enter the queue in another order than the rows;
`inFlight=1` keeps the order.
"""

import re
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.errors import CodeqError, IdempotencyMismatch, InvalidRequest
from codeq.pipeline.client import PipelineClient, ServerOptions, log_line, retry_transient
from codeq.pipeline.connector import rejects, write_summary
from codeq.pipeline.connector.options import RETRY_S_DEFAULT, SERVER, OptionMap
from codeq.pipeline.connector.task_rows import Rejected, check_columns, new_tasks
from codeq.wire.client import ItemVerdict
from codeq.wire.tasks import PackedTask

CALL_BYTES_MAX = 8 << 20
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
SINK = (*SERVER, "command", "mode", "jobId", "rejectedPath", "summaryPath", "inFlight", "batchSize")
_JOB_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class RowRejected(CodeqError):
    """A row is not a valid task, and mode is FAILFAST."""

    code = "row-rejected"


class RowsChanged(CodeqError):
    """A Spark task was retried, and its rows had another order or other values."""

    code = "rows-changed"


class WriteOptions(Struct, frozen=True, kw_only=True):
    server: ServerOptions
    command: str
    mode: str
    job_id: str | None
    """Identifies the job across restarts."""
    rejected_path: str | None
    summary_path: str | None
    calls_in_flight: int
    batch_size: int
    retry_s: float


class PartitionResult(WriterCommitMessage):
    """The counts of one partition, sent from its Spark task to the commit in the driver."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.enqueued = 0
        self.deduplicated = 0
        self.reasons: Counter[str] = Counter()
        self.rejected_file: tuple[str, str] | None = None


class TaskSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "codeq"

    def writer(self, schema: StructType, overwrite: bool) -> "TaskWriter":
        options = write_options(self.options)
        if overwrite:
            raise InvalidRequest('the tasks of a queue are never replaced: use mode("append")')
        check_columns(schema, options.command)
        return TaskWriter(options, options.job_id or uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TaskStreamWriter":  # noqa: N802, ARG002 - Spark's
        options = write_options(self.options)
        if options.job_id is not None:
            raise InvalidRequest("jobId is for batches: a stream has the id of its query, which its checkpoint keeps")
        check_columns(schema, options.command)
        return TaskStreamWriter(options)


def write_options(options: Any) -> WriteOptions:
    values = OptionMap(options, SINK)
    mode = values.choice("mode", MODES)
    rejected_path = values.text("rejectedPath") or None
    if mode == "PERMISSIVE" and rejected_path is None:
        raise InvalidRequest("mode PERMISSIVE needs rejectedPath, the folder for rejected rows and the reasons")
    job_id = values.text("jobId") or None
    if job_id is not None and not _JOB_ID.fullmatch(job_id):
        raise InvalidRequest("option jobId must be 1 to 128 letters, digits, or any of _ . : -")
    return WriteOptions(
        server=values.server(),
        job_id=job_id,
        command=values.text("command"),
        mode=mode,
        rejected_path=rejected_path,
        summary_path=values.text("summaryPath") or None,
        calls_in_flight=values.number("inFlight", 4, most=64),
        batch_size=values.number("batchSize", BATCH_TASKS_MAX, most=BATCH_TASKS_MAX),
        retry_s=values.seconds("retrySeconds", RETRY_S_DEFAULT),
    )


class TaskWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, job: str) -> None:
        self.options = options
        self.job = job
        """Chosen once, in the driver, so that every attempt of every Spark task derives the same keys."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionResult:
        return _write(self.options, self.job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self.options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self.options, messages)


class TaskStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionResult:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if query is None or batch is None:
            raise InvalidRequest("Spark passed no ids of query and batch, from which idempotency keys are derived")
        return _write(self.options, f"{query}-{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        _commit(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        _abort(self.options, messages)


def _write(options: WriteOptions, name: str, batches: Iterator[pa.RecordBatch]) -> PartitionResult:
    """Enqueues the rows of one partition. Runs on an executor."""
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    attempt = context.taskAttemptId() if context else 0
    rejected = None
    if options.rejected_path is not None:
        rejected = rejects.Rejects(options.rejected_path, name, partition, attempt)
    writer = _PartitionWriter(options, f"{name}-{partition}-", PartitionResult(name), rejected)
    try:
        writer.run(batches)
        if rejected is not None:
            writer.result.rejected_file = rejected.close()
    except BaseException:
        if rejected is not None:
            rejected.drop()
        raise
    return writer.result


class _EnqueueBatch:
    """The tasks of one call, with the rows that they were made from."""

    def __init__(self) -> None:
        self.tasks: list[PackedTask] = []
        self.rows: list[tuple[int, pa.RecordBatch, int]] = []
        """The number of each row in its partition, and where to find the row."""
        self.size_bytes = 0


class _PartitionWriter:
    """Enqueues the rows of one partition, several calls at a time."""

    def __init__(
        self, options: WriteOptions, key_prefix: str, result: PartitionResult, rejected: rejects.Rejects | None
    ) -> None:
        self.options = options
        self.key_prefix = key_prefix
        self.result = result
        self.rejected = rejected
        self._client = PipelineClient(options.server)

    def run(self, batches: Iterator[pa.RecordBatch]) -> None:
        pending: list[tuple[_EnqueueBatch, Future[list[ItemVerdict]]]] = []
        with ThreadPoolExecutor(self.options.calls_in_flight) as pool:
            try:
                for batch in self._enqueue_batches(batches):
                    pending.append((batch, pool.submit(self._send, batch)))
                    while len(pending) >= self.options.calls_in_flight or (pending and pending[0][1].done()):
                        self._count(*pending.pop(0))
                while pending:
                    self._count(*pending.pop(0))
            finally:
                for _, future in pending:
                    future.cancel()
        self._client.close()

    def _enqueue_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[_EnqueueBatch]:
        """Groups the tasks of all rows into calls, limited by number and by bytes. Rejects rows that are not tasks."""
        call, first = _EnqueueBatch(), 0
        for batch in batches:
            rows = new_tasks(batch, first, command=self.options.command, key_prefix=self.key_prefix)
            for index, task in enumerate(rows):
                if isinstance(task, Rejected):
                    self._reject(task, batch, index)
                    continue
                call.tasks.append(task)
                call.rows.append((first + index, batch, index))
                call.size_bytes += len(task.payload)
                if len(call.tasks) >= self.options.batch_size or call.size_bytes >= CALL_BYTES_MAX:
                    yield call
                    call = _EnqueueBatch()
            first += batch.num_rows
        if call.tasks:
            yield call

    def _send(self, call: _EnqueueBatch) -> list[ItemVerdict]:
        return retry_transient(
            lambda: self._client.enqueue(call.tasks), "cannot enqueue", within_s=self.options.retry_s
        )

    def _count(self, call: _EnqueueBatch, future: "Future[list[ItemVerdict]]") -> None:
        """Counts the verdicts of one call, and rejects the rows that the server refused."""
        for task, (row, batch, index), verdict in zip(call.tasks, call.rows, future.result(), strict=True):
            code = IdempotencyMismatch.code if verdict.mismatched else verdict.code
            if code is None:
                self.result.enqueued += not verdict.replayed
                self.result.deduplicated += verdict.replayed
            elif code == IdempotencyMismatch.code and (task.idempotency_key or "").startswith(self.key_prefix):
                raise RowsChanged(
                    f"row {row} of this partition was another one in an earlier attempt of the Spark task, so rows "
                    "would be lost or enqueued twice; give rows an idempotency_key, or make the rows and their order "
                    "deterministic"
                )
            else:
                reason = verdict.error or "the key was used for a task with another command or payload"
                self._reject(Rejected(row, code, reason), batch, index)

    def _reject(self, rejected: Rejected, batch: pa.RecordBatch, index: int) -> None:
        if self.options.mode == "FAILFAST":
            raise RowRejected(f"row {rejected.row}: {rejected.reason} (mode is FAILFAST; see also PERMISSIVE)")
        self.result.reasons[rejected.code] += 1
        if self.rejected is not None and self.options.mode == "PERMISSIVE":
            [content] = batch.slice(index, 1).to_pylist(maps_as_pydicts="lossy")
            self.rejected.add(rejected, content)


def _commit(options: WriteOptions, messages: list[Any], batch: int | None = None) -> None:
    """Publishes the rejected rows and records the summary of the whole write. Runs in the driver."""
    results = [message for message in messages if isinstance(message, PartitionResult)]
    if options.rejected_path is not None:
        rejects.publish(options.rejected_path, _rejected_files(results))
    reasons: Counter[str] = sum((result.reasons for result in results), Counter())
    summary = write_summary.WriteSummary(
        job=results[0].name if results else "",
        batch=batch,
        enqueued=sum(result.enqueued for result in results),
        deduplicated=sum(result.deduplicated for result in results),
        rejected=reasons.total(),
        reasons=dict(reasons),
    )
    write_summary.record(summary, options.summary_path)
    if options.job_id is not None:
        log_line(
            f"job {options.job_id}: started again, it enqueues nothing twice as long as these tasks exist: until they "
            "have ended and the server's retention.seconds have passed"
        )


def _abort(options: WriteOptions, messages: list[Any]) -> None:
    if options.rejected_path is not None:
        rejects.discard(options.rejected_path, _rejected_files(messages))


def _rejected_files(messages: list[Any]) -> list[tuple[str, str]]:
    results = [message for message in messages if isinstance(message, PartitionResult)]
    return [result.rejected_file for result in results if result.rejected_file]
