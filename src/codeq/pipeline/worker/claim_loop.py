"""The loop of one Spark task: claims tasks, extends their leases, runs a function on them, and submits the results.

It uses the calls of the SDK's backend, but not the worker of the SDK, whose heartbeats and submits belong to an event
loop and to single jobs. A Spark task has no event loop, and its unit is a batch: one function call, one thread for the
heartbeats of all its tasks, one submit.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from msgspec import Struct

from codeq.domain.limits import BATCH_TASKS_MAX, RESULT_BYTES_MAX, WORKER_CHARS_MAX
from codeq.domain.requests import Claim, LeaseExtension, Outcome
from codeq.domain.task import Holder, Status
from codeq.errors import CodeqError, InvalidRequest, NotFound, Refused
from codeq.pipeline.client import TRANSIENT, PipelineClient, ServerOptions, log_line
from codeq.sdk.arguments import reason_text
from codeq.sdk.blocking import run_blocking
from codeq.sdk.jobs import Job
from codeq.sdk.worker_info import claimer_info

FUNCTION_INPUT = pa.schema(
    [("id", pa.string()), ("command", pa.string()), ("payload", pa.string()), ("priority", pa.int32()),
     ("attempt", pa.int32())]
)  # fmt: skip
"""The columns of a task that the user's function gets."""
TASKS = FUNCTION_INPUT.append(pa.field("lease_token", pa.int64())).append(pa.field("worker", pa.string()))
VERDICTS = pa.schema([("id", pa.string()), ("verdict", pa.string())])
SUBMIT_BYTES_MAX = 8 << 20
RETRY_S = 30.0
HEARTBEATS_PER_LEASE = 3
NO_RESULT = "the function gave no row for this task"

Result = tuple[Status, bytes | None, str | None]
"""Status, result as JSON, and error."""


class WorkCounts(Struct, frozen=True):
    """The number of tasks by what happened to them."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    returned: int = 0
    refused: int = 0

    def __add__(self, other: "WorkCounts") -> "WorkCounts":
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return WorkCounts(*(a + b for a, b in pairs))

    def to_batch(self) -> pa.RecordBatch:
        return pa.record_batch([[number] for number in msgspec.structs.astuple(self)], schema=COUNTS)


COUNTS = pa.schema([(name, pa.int64()) for name in WorkCounts.__struct_fields__])


def count_verdicts(verdicts: Sequence[str]) -> WorkCounts:
    return WorkCounts(**{name: verdicts.count(name) for name in ("completed", "failed", "returned", "refused")})


class ClaimLoop(Struct, frozen=True, kw_only=True):
    """Which tasks are claimed, how many at a time and for how long. Sent to executors."""

    server: ServerOptions
    command: str
    batch: int
    lease_s: float
    wait_s: float
    round_s: float

    def run(self, function: "FunctionRunner") -> WorkCounts:
        """Claims, runs and submits until the round is over or no task is ready."""
        deadline_s = time.monotonic() + self.round_s
        total = WorkCounts()
        with closing(PipelineClient(self.server, retry_s=RETRY_S)) as client:
            while jobs := self.claim(client):
                with self.heartbeats(jobs) as lost:
                    results, errors = function.run(jobs)
                    held = [job for job in jobs if job.id not in lost]  # those that end now are lost from then on too
                    verdicts = submit(client, held, results, errors)
                refused = len(jobs) - len(held)
                total += WorkCounts(claimed=len(jobs), refused=refused) + count_verdicts(list(verdicts.values()))
                if time.monotonic() >= deadline_s:
                    break
        return total

    def claim(self, client: PipelineClient) -> list[Job]:
        lease_ms, wait_ms = round(self.lease_s * 1000), round(self.wait_s * 1000)
        request = Claim(
            worker=executor_name(),
            commands=(self.command,),
            limit=self.batch,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            info=msgspec.structs.replace(claimer_info(), name=executor_name()),
        )
        return run_blocking(client.backend.claim(request))

    @contextmanager
    def heartbeats(self, jobs: Sequence[Job]) -> Iterator[set[str]]:
        """Extends the leases from a thread while the block runs. Yields the ids of tasks whose lease was lost."""
        lost: set[str] = set()
        done = threading.Event()
        thread = threading.Thread(
            target=self._send_heartbeats, args=(jobs, lost, done), name="codeq-heartbeat", daemon=True
        )
        thread.start()
        try:
            yield lost
        finally:
            done.set()
            thread.join()

    def _send_heartbeats(self, jobs: Sequence[Job], lost: set[str], done: threading.Event) -> None:
        interval_s, lease_ms = self.lease_s / HEARTBEATS_PER_LEASE, round(self.lease_s * 1000)
        with closing(PipelineClient(self.server, retry_s=interval_s)) as client:
            while not done.wait(interval_s):
                held = [job for job in jobs if job.id not in lost]
                for start in range(0, len(held), BATCH_TASKS_MAX):
                    if not done.is_set():
                        _extend_leases(client, held[start : start + BATCH_TASKS_MAX], lease_ms, lost)


def _extend_leases(client: PipelineClient, jobs: Sequence[Job], lease_ms: int, lost: set[str]) -> None:
    """Sends heartbeats in one call, and adds the ids of tasks whose lease is gone."""
    beats = [LeaseExtension(task_id=job.id, holder=job.holder, extend_ms=lease_ms) for job in jobs]
    try:
        answers = run_blocking(client.backend.heartbeat_many(beats))
    except CodeqError as fault:
        log_line(f"no heartbeat: {fault}")
        return
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, Refused | NotFound):  # claimed by another worker, or cancelled
            log_line(f"task {job.id} was lost: {answer}")
            lost.add(job.id)


def executor_name() -> str:
    """Returns a name for the executor that this runs on: all its Python processes have the same parent."""
    return f"spark-{socket.gethostname()}-{os.getppid()}"[:WORKER_CHARS_MAX]


class FunctionRunner:
    """Runs the user's function on claimed tasks, as pandas or as Arrow."""

    def __init__(self, fn: Callable[..., Any], *, kind: str) -> None:
        self._fn = fn
        self._kind = kind

    def run(self, jobs: Sequence[Job]) -> tuple[dict[str, Result], dict[str, str]]:
        """Returns the results by task id, and by task id the errors of the others.

        If the function raises, the batch is halved until the tasks that it raises on are alone, so that one bad task
        does not send a thousand good ones to the dead-letter queue.
        """
        try:
            rows = self._call(task_batch(jobs, FUNCTION_INPUT))
        except Exception as fault:  # noqa: BLE001 - a user's function may raise anything
            if len(jobs) == 1:
                return {}, {jobs[0].id: f"{type(fault).__name__}: {fault}"}
            middle = len(jobs) // 2
            (results, errors), (more_results, more_errors) = self.run(jobs[:middle]), self.run(jobs[middle:])
            return {**results, **more_results}, {**errors, **more_errors}
        return _parse_rows(rows, {job.id for job in jobs})

    def _call(self, tasks: pa.RecordBatch) -> list[dict[str, Any]]:
        if self._kind == "pandas":
            frame = self._fn(tasks.to_pandas())
            return frame.to_dict("records")  # type: ignore[no-any-return]
        return [row for batch in self._fn(iter([tasks])) for row in batch.to_pylist(maps_as_pydicts="lossy")]


def task_batch(jobs: Sequence[Job], schema: pa.Schema) -> pa.RecordBatch:
    columns = {
        "id": [job.id for job in jobs],
        "command": [job.command for job in jobs],
        "payload": [job.raw.decode() for job in jobs],
        "priority": [job.priority for job in jobs],
        "attempt": [job.attempt for job in jobs],
        "lease_token": [job.holder.token for job in jobs],
        "worker": [job.holder.worker for job in jobs],
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def leases_of(rows: Sequence[Any]) -> list[Job]:
    """Returns jobs with id and lease alone, from rows with the columns of `TASKS`."""
    return [Job(row["id"], "", b"", Holder(row["worker"], row["lease_token"])) for row in rows]


def submit_rows(server: ServerOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Submits result rows that have the columns of their lease, and yields a verdict for each."""
    with closing(PipelineClient(server, retry_s=RETRY_S)) as client:
        for batch in batches:
            rows = batch.to_pylist(maps_as_pydicts="lossy")
            results, errors = _parse_rows(rows, {row["id"] for row in rows})
            verdicts = submit(client, leases_of(rows), results, errors)
            yield pa.record_batch([list(verdicts), list(verdicts.values())], schema=VERDICTS)


def submit(
    client: PipelineClient, jobs: Sequence[Job], results: dict[str, Result], errors: dict[str, str]
) -> dict[str, str]:
    """Submits the results, and nacks jobs without one. Returns by task id: completed, failed, returned or refused."""
    verdicts: dict[str, str] = {}
    for chunk in _chunks([job for job in jobs if job.id in results], results):
        outcomes = []
        for job in chunk:
            status, result, error = results[job.id]
            outcomes.append(Outcome(task_id=job.id, holder=job.holder, status=status, result=result, error=error))
        for job, refusal in zip(chunk, run_blocking(client.backend.submit(outcomes)), strict=True):
            if isinstance(refusal, InvalidRequest):
                errors[job.id] = f"the result was refused: {refusal}"
            else:
                accepted = "completed" if results[job.id][0] is Status.COMPLETED else "failed"
                verdicts[job.id] = accepted if refusal is None else "refused"
    for job in jobs:
        if job.id not in verdicts:
            verdicts[job.id] = nack(client, job, errors.get(job.id, NO_RESULT))
    return verdicts


def nack(client: PipelineClient, job: Job, reason: str) -> str:
    """Reports a failed attempt. Returns the verdict: `returned`, or `refused` if the lease was lost."""
    try:
        run_blocking(client.backend.nack(job, None, reason_text(reason)))
    except TRANSIENT:
        raise
    except CodeqError:
        return "refused"
    return "returned"


def _parse_rows(rows: list[dict[str, Any]], known: set[str]) -> tuple[dict[str, Result], dict[str, str]]:
    """Returns the results by task id, and by task id the errors of rows that are not a result."""
    results: dict[str, Result] = {}
    errors: dict[str, str] = {}
    for row in rows:
        task_id = row.get("id")
        if task_id not in known:
            log_line(f"the function gave a row for {task_id!r}, which is not among its tasks")
            continue
        try:
            results[task_id] = _parse_row(row)
        except InvalidRequest as fault:
            errors[task_id] = str(fault)
    return results, errors


def _parse_row(row: dict[str, Any]) -> Result:
    status, error = row.get("status"), row.get("error")
    if _is_missing(status) or status == "COMPLETED":
        return Status.COMPLETED, _json(row.get("result")), None
    if status != "FAILED":
        raise InvalidRequest(f"status is COMPLETED or FAILED, not {status!r}")
    return Status.FAILED, _json(row.get("result")), reason_text(error if isinstance(error, str) else "") or "failed"


def _json(value: Any) -> bytes | None:
    """Text must be JSON, any other value is encoded as JSON, and missing values of pandas become null. A result that is
    too large is refused here: the server would refuse all results of its call.
    """
    if _is_missing(value):
        return b"null"
    try:
        if isinstance(value, str):
            msgspec.json.decode(value)
            encoded = value.encode()
        else:
            encoded = msgspec.json.encode(value.tolist() if hasattr(value, "tolist") else value)
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise InvalidRequest(f"the result is not JSON: {fault}") from None
    if len(encoded) > RESULT_BYTES_MAX:
        raise InvalidRequest(f"the result has {len(encoded)} bytes as JSON, and {RESULT_BYTES_MAX} are allowed")
    return encoded


def _is_missing(value: Any) -> bool:
    """Whether it is None, NaN, NaT or NA. Of an array pandas answers for each element."""
    return pd.isna(value) is True


def _chunks(jobs: Sequence[Job], results: dict[str, Result]) -> Iterator[list[Job]]:
    chunk: list[Job] = []
    size_bytes = 0
    for job in jobs:
        chunk.append(job)
        size_bytes += len(results[job.id][1] or b"")
        if size_bytes >= SUBMIT_BYTES_MAX:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk
