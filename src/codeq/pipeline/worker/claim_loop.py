"""What a Spark task does with claimed tasks: take them, keep their leases alive, run a function, submit its answers."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from codeq.domain.limits import ERROR_CHARS_MAX
from codeq.domain.requests import Claim, Outcome
from codeq.domain.task import Holder, Status
from codeq.errors import CodeqError, InvalidRequest
from codeq.pipeline.client import TRANSIENT, Calls, Connection, say
from codeq.sdk.blocking import run_blocking
from codeq.sdk.jobs import Job

VISIBLE = pa.schema(
    [("id", pa.string()), ("command", pa.string()), ("payload", pa.string()), ("priority", pa.int32()),
     ("attempt", pa.int32())]
)  # fmt: skip
TASKS = VISIBLE.append(pa.field("lease_token", pa.int64())).append(pa.field("worker", pa.string()))
VERDICTS = pa.schema([("id", pa.string()), ("verdict", pa.string())])
SUBMIT_BYTES_MAX = 8 << 20
RETRY_S = 30.0
NO_ANSWER = "the function gave no row for this task"

Answer = tuple[Status, bytes | None, str | None]


class Report(Struct, frozen=True):
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    returned: int = 0
    refused: int = 0

    def as_batch(self) -> pa.RecordBatch:
        return pa.record_batch([[number] for number in msgspec.structs.astuple(self)], schema=REPORT)


REPORT = pa.schema([(name, pa.int64()) for name in Report.__struct_fields__])


def add(one: Report, other: Report) -> Report:
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return Report(*(a + b for a, b in pairs))


def counted(verdicts: Sequence[str]) -> Report:
    return Report(**{name: verdicts.count(name) for name in ("completed", "failed", "returned", "refused")})


class Claims(Struct, frozen=True, kw_only=True):
    """Whose tasks are taken, how many at once and for how long. It travels to executors."""

    connection: Connection
    command: str
    batch: int
    lease_s: float
    wait_s: float
    round_s: float

    def run(self, runner: "Runner") -> Report:
        """Take, run and submit, until the time is over or there is nothing to take."""
        calls = Calls(self.connection, retry_s=RETRY_S)
        deadline_s = time.monotonic() + self.round_s
        total = Report()
        while jobs := self.take(calls):
            with self.kept_alive(jobs) as lost:
                answers, reasons = runner.run(jobs)
                held = [job for job in jobs if job.id not in lost]
                verdicts = submit(calls, held, answers, reasons)
            total = add(total, add(Report(claimed=len(jobs), refused=len(lost)), counted(list(verdicts.values()))))
            if time.monotonic() >= deadline_s:
                break
        calls.close()
        return total

    def take(self, calls: Calls) -> list[Job]:
        lease_ms, wait_ms = round(self.lease_s * 1000), round(self.wait_s * 1000)
        wanted = Claim(worker="spark", commands=(self.command,), limit=self.batch, lease_ms=lease_ms, wait_ms=wait_ms)
        return run_blocking(calls.backend.claim(wanted))

    @contextmanager
    def kept_alive(self, jobs: Sequence[Job]) -> Iterator[set[str]]:
        """Heartbeats from a thread while the block runs. Gives the ids of tasks that were lost meanwhile."""
        lost: set[str] = set()
        done = threading.Event()
        heart = threading.Thread(target=self._beat, args=(jobs, lost, done), name="codeq-heart", daemon=True)
        heart.start()
        try:
            yield lost
        finally:
            done.set()
            heart.join()

    def _beat(self, jobs: Sequence[Job], lost: set[str], done: threading.Event) -> None:
        calls = Calls(self.connection, retry_s=self.lease_s / 3)
        while not done.wait(self.lease_s / 3):
            for job in jobs:
                if done.is_set():
                    return
                if job.id not in lost:
                    try:
                        run_blocking(calls.backend.heartbeat(job, round(self.lease_s * 1000)))
                    except TRANSIENT as fault:
                        say(f"no heartbeat: {fault}")
                    except CodeqError as refusal:  # given to another, or cancelled
                        say(f"task {job.id} was lost: {refusal}")
                        lost.add(job.id)


class Runner:
    """A user's function on claimed tasks, whichever kind of table it likes."""

    def __init__(self, fn: Callable[..., Any], *, kind: str) -> None:
        self._fn = fn
        self._kind = kind

    def run(self, jobs: Sequence[Job]) -> tuple[dict[str, Answer], dict[str, str]]:
        """The answers by task, and why there is none for the others.

        Where the function raises, halves are tried until the tasks that it raises on stand alone: one bad task must
        not take a thousand good ones with it to the dead letters.
        """
        try:
            rows = self._call(table_of(jobs, VISIBLE))
        except Exception as fault:  # noqa: BLE001 - a user's function may raise anything
            if len(jobs) == 1:
                return {}, {jobs[0].id: f"{type(fault).__name__}: {fault}"[:ERROR_CHARS_MAX]}
            middle = len(jobs) // 2
            (answers, reasons), (more, others) = self.run(jobs[:middle]), self.run(jobs[middle:])
            return {**answers, **more}, {**reasons, **others}
        return _understood(rows, {job.id for job in jobs})

    def _call(self, tasks: pa.RecordBatch) -> list[dict[str, Any]]:
        if self._kind == "pandas":
            made = self._fn(tasks.to_pandas())
            return made.to_dict("records")  # type: ignore[no-any-return]
        return [row for batch in self._fn(iter([tasks])) for row in batch.to_pylist(maps_as_pydicts="lossy")]


def table_of(jobs: Sequence[Job], schema: pa.Schema) -> pa.RecordBatch:
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


def held_by(rows: Sequence[Any]) -> list[Job]:
    """The leases that rows of `TASKS` stand for."""
    return [Job(row["id"], "", b"", Holder(row["worker"], row["lease_token"])) for row in rows]


def submit_rows(connection: Connection, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Submit answers that carry their lease, and tell what became of each."""
    calls = Calls(connection, retry_s=RETRY_S)
    for batch in batches:
        rows = batch.to_pylist(maps_as_pydicts="lossy")
        answers, reasons = _understood(rows, {row["id"] for row in rows})
        verdicts = submit(calls, held_by(rows), answers, reasons)
        yield pa.record_batch([list(verdicts), list(verdicts.values())], schema=VERDICTS)
    calls.close()


def submit(calls: Calls, jobs: Sequence[Job], answers: dict[str, Answer], reasons: dict[str, str]) -> dict[str, str]:
    """What became of each task: completed, failed, returned or refused."""
    verdicts: dict[str, str] = {}
    for chunk in _chunks([job for job in jobs if job.id in answers], answers):
        outcomes = []
        for job in chunk:
            status, result, error = answers[job.id]
            outcomes.append(Outcome(task_id=job.id, holder=job.holder, status=status, result=result, error=error))
        for job, refusal in zip(chunk, run_blocking(calls.backend.submit(outcomes)), strict=True):
            if isinstance(refusal, InvalidRequest):
                reasons[job.id] = f"the result was refused: {refusal}"
            else:
                ended = "completed" if answers[job.id][0] is Status.COMPLETED else "failed"
                verdicts[job.id] = ended if refusal is None else "refused"
    for job in jobs:
        if job.id not in verdicts:
            verdicts[job.id] = give_back(calls, job, reasons.get(job.id, NO_ANSWER))
    return verdicts


def give_back(calls: Calls, job: Job, reason: str) -> str:
    """Report a failed try; what that came to."""
    try:
        run_blocking(calls.backend.nack(job, None, reason))
    except TRANSIENT:
        raise
    except CodeqError:
        return "refused"
    return "returned"


def _understood(rows: list[dict[str, Any]], known: set[str]) -> tuple[dict[str, Answer], dict[str, str]]:
    answers: dict[str, Answer] = {}
    reasons: dict[str, str] = {}
    for row in rows:
        task_id = row.get("id")
        if task_id not in known:
            say(f"the function answered for {task_id!r}, which it was not given")
            continue
        try:
            answers[task_id] = _answer(row)
        except InvalidRequest as fault:
            reasons[task_id] = str(fault)
    return answers, reasons


def _answer(row: dict[str, Any]) -> Answer:
    status, error = row.get("status"), row.get("error")
    if status not in (None, "COMPLETED", "FAILED"):
        raise InvalidRequest(f"status is COMPLETED or FAILED, not {status!r}")
    said = error if isinstance(error, str) else None
    if status == "FAILED":
        return Status.FAILED, _json(row.get("result")), said or "failed"
    return Status.COMPLETED, _json(row.get("result")), None


def _json(value: Any) -> bytes | None:
    """Text is taken as JSON, anything else is written as JSON; what pandas calls missing is null."""
    if value is None or value != value:  # noqa: PLR0124 - NaN alone differs from itself
        return b"null"
    try:
        if isinstance(value, str):
            msgspec.json.decode(value)
            return value.encode()
        return msgspec.json.encode(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise InvalidRequest(f"the result is not JSON: {fault}") from None


def _chunks(jobs: Sequence[Job], answers: dict[str, Answer]) -> Iterator[list[Job]]:
    chunk: list[Job] = []
    size = 0
    for job in jobs:
        chunk.append(job)
        size += len(answers[job.id][1] or b"")
        if size >= SUBMIT_BYTES_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
