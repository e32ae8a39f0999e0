"""`format("codeq")`: a row is a task, for batches and for streams.

Rows without a key of their own get one made of the write (the job of a batch; the query and batch number of a stream),
the partition and the number of the row in it. So a Spark task that is tried again, or a batch that is replayed after a
crash, enqueues nothing twice. For that a partition must have the same rows in the same order each time, which holds for
files, tables and Kafka, and not behind `rand()`, `limit` without an order or a non-deterministic function: give rows
`idempotency_key` there, or a checkpoint. Where a row came back as another one, the write fails and says so.

Calls of one partition overlap (`inFlight`), so tasks of one partition may enter the queue in another order than theirs;
`inFlight=1` keeps it.
"""

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
from codeq.pipeline.client import Calls, Connection, Taken, patiently
from codeq.pipeline.connector import rejects, write_summary
from codeq.pipeline.connector.options import CONNECTION, RETRY_S_DEFAULT, Given
from codeq.pipeline.connector.task_rows import Rejected, check_columns, orders
from codeq.wire.tasks import PackedTask

CALL_BYTES_MAX = 8 << 20
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
SINK = (*CONNECTION, "command", "mode", "rejectedPath", "summaryPath", "inFlight", "batchSize")


class RowRejected(CodeqError):
    """A row is no task, and mode is FAILFAST."""

    code = "row-rejected"


class RowsChanged(CodeqError):
    """A task was tried again, and its rows came in another order or with other values."""

    code = "rows-changed"


class WriteOptions(Struct, frozen=True, kw_only=True):
    connection: Connection
    command: str
    mode: str
    rejected_path: str | None
    summary_path: str | None
    calls_in_flight: int
    batch_size: int
    retry_s: float


class Written(WriterCommitMessage):
    """What one task did."""

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
            raise InvalidRequest('tasks are added to a queue, never replaced: use mode("append")')
        check_columns(schema, options.command)
        return TaskWriter(options, uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TaskStreamWriter":  # noqa: N802, ARG002 - Spark's
        options = write_options(self.options)
        check_columns(schema, options.command)
        return TaskStreamWriter(options)


def write_options(options: Any) -> WriteOptions:
    given = Given(options, SINK)
    mode = given.choice("mode", MODES)
    rejected_path = given.text("rejectedPath") or None
    if mode == "PERMISSIVE" and rejected_path is None:
        raise InvalidRequest("mode PERMISSIVE needs rejectedPath, where rejected rows are kept with the reason")
    return WriteOptions(
        connection=given.connection(),
        command=given.text("command"),
        mode=mode,
        rejected_path=rejected_path,
        summary_path=given.text("summaryPath") or None,
        calls_in_flight=given.number("inFlight", 4, most=64),
        batch_size=given.number("batchSize", BATCH_TASKS_MAX, most=BATCH_TASKS_MAX),
        retry_s=given.seconds("retrySeconds", RETRY_S_DEFAULT),
    )


class TaskWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, job: str) -> None:
        self.options = options
        self.job = job
        """Made once, in the driver: every try of every task uses the same."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self.options, self.job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self.options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self.options, messages)


class TaskStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if query is None or batch is None:
            raise InvalidRequest("Spark does not say which query and batch this is, so no key can be made of them")
        return _write(self.options, f"{query}-{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        _commit(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        _abort(self.options, messages)


def _write(options: WriteOptions, name: str, batches: Iterator[pa.RecordBatch]) -> Written:
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    attempt = context.taskAttemptId() if context else 0
    task = _Task(options, name, partition)
    kept = None
    if options.rejected_path is not None:
        kept = task.rejects = rejects.Rejects(options.rejected_path, name, partition, attempt)
    try:
        task.run(batches)
        if kept is not None:
            task.written.rejected_file = kept.close()
    except BaseException:
        if kept is not None:
            kept.drop()
        raise
    return task.written


class _Call:
    """Rows on their way to the server in one call."""

    def __init__(self) -> None:
        self.orders: list[PackedTask] = []
        self.origins: list[tuple[int, pa.RecordBatch, int]] = []
        """The number of each row in its partition, and where it is found."""
        self.size = 0


class _Task:
    """One partition on its way into the queue."""

    def __init__(self, options: WriteOptions, name: str, partition: int) -> None:
        self.options = options
        self.prefix = f"{name}-{partition}-"
        self.written = Written(name)
        self.rejects: rejects.Rejects | None = None
        self._calls = Calls(options.connection)

    def run(self, batches: Iterator[pa.RecordBatch]) -> None:
        waiting: list[tuple[_Call, Future[list[Taken]]]] = []
        with ThreadPoolExecutor(self.options.calls_in_flight) as pool:
            try:
                for call in self._filled(batches):
                    waiting.append((call, pool.submit(self._send, call)))
                    while len(waiting) >= self.options.calls_in_flight or (waiting and waiting[0][1].done()):
                        self._settle(*waiting.pop(0))
                while waiting:
                    self._settle(*waiting.pop(0))
            finally:
                for _, future in waiting:
                    future.cancel()
        self._calls.close()

    def _filled(self, batches: Iterator[pa.RecordBatch]) -> Iterator[_Call]:
        call, first = _Call(), 0
        for batch in batches:
            found = orders(batch, first, command=self.options.command, key=lambda row: f"{self.prefix}{row}")
            for place, order in enumerate(found):
                if isinstance(order, Rejected):
                    self._reject(order, batch, place)
                    continue
                call.orders.append(order)
                call.origins.append((first + place, batch, place))
                call.size += len(order.payload)
                if len(call.orders) >= self.options.batch_size or call.size >= CALL_BYTES_MAX:
                    yield call
                    call = _Call()
            first += batch.num_rows
        if call.orders:
            yield call

    def _send(self, call: _Call) -> list[Taken]:
        return patiently(lambda: self._calls.enqueue(call.orders), "cannot enqueue", within_s=self.options.retry_s)

    def _settle(self, call: _Call, future: "Future[list[Taken]]") -> None:
        for order, (row, batch, place), taken in zip(call.orders, call.origins, future.result(), strict=True):
            if taken.code is None:
                self.written.enqueued += not taken.replayed
                self.written.deduplicated += taken.replayed
            elif taken.code == IdempotencyMismatch.code and (order.idempotency_key or "").startswith(self.prefix):
                raise RowsChanged(
                    f"row {row} of this partition was another one when the task was tried before, so rows would be "
                    "lost or doubled; give rows an idempotency_key, or make the rows and their order deterministic"
                )
            else:
                self._reject(Rejected(row, taken.code, taken.error or ""), batch, place)

    def _reject(self, rejected: Rejected, batch: pa.RecordBatch, place: int) -> None:
        if self.options.mode == "FAILFAST":
            raise RowRejected(f"row {rejected.row}: {rejected.reason} (mode is FAILFAST; see also PERMISSIVE)")
        self.written.reasons[rejected.code] += 1
        if self.rejects is not None and self.options.mode == "PERMISSIVE":
            [content] = batch.slice(place, 1).to_pylist(maps_as_pydicts="lossy")
            self.rejects.add(rejected, content)


def _commit(options: WriteOptions, messages: list[Any], batch: int | None = None) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    if options.rejected_path is not None:
        rejects.put_in_place(options.rejected_path, [one.rejected_file for one in done if one.rejected_file])
    reasons: Counter[str] = sum((one.reasons for one in done), Counter())
    whole = write_summary.Summary(
        job=done[0].name if done else "",
        batch=batch,
        enqueued=sum(one.enqueued for one in done),
        deduplicated=sum(one.deduplicated for one in done),
        rejected=reasons.total(),
        reasons=dict(reasons),
    )
    write_summary.record(whole, options.summary_path)


def _abort(options: WriteOptions, messages: list[Any]) -> None:
    files = [message.rejected_file for message in messages if isinstance(message, Written) and message.rejected_file]
    if options.rejected_path is not None:
        rejects.throw_away(options.rejected_path, files)
