"""The input of gold: the new rows of a batch, and sums of them that several tables share, each computed in one pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from codeq.pipeline.lake.gold.adding import added_up
from codeq.pipeline.lake.grouping import Numbers, Rows
from codeq.pipeline.lake.tables import BRONZE_EVENTS, SILVER_ATTEMPTS, SILVER_TASKS, Merge, Table

TIME = pa.timestamp("us", "UTC")
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Target:
    """A service level of a command: the fraction of its tasks that is to complete within a time."""

    within_ms: int
    objective: float


@dataclass(frozen=True)
class Goals:
    """The targets that gold compares with."""

    targets: Mapping[str, Target] = field(default_factory=dict)
    """By command."""
    default: Target = Target(within_ms=60_000, objective=0.99)
    """For commands without a target of their own."""
    wait_ms: int = 1000
    """The mean wait for which capacity is computed."""

    def target_ms(self, command: str | None) -> int:
        return self._target(command).within_ms

    def objective(self, command: str | None) -> float:
        return self._target(command).objective

    def _target(self, command: str | None) -> Target:
        return self.targets.get(command or "", self.default)


def no_rows(table: Table) -> pa.Table:
    return to_arrow_schema(table.schema, timezone="UTC").empty_table()


@dataclass(frozen=True)
class GoldBatch:
    """New events, each once, and the silver rows that they closed; or some of them, because all that is computed adds
    up.

    Open rows may be among the silver rows. Only closed rows count, so that each counts once: in the batch that closed
    it.

    Sums are grouped by every column that a condition may use. So one pass counts each row once, and conditions are
    evaluated on the few rows of the result.
    """

    events: pa.Table = field(default_factory=partial(no_rows, BRONZE_EVENTS))
    attempts: pa.Table = field(default_factory=partial(no_rows, SILVER_ATTEMPTS))
    tasks: pa.Table = field(default_factory=partial(no_rows, SILVER_TASKS))
    goals: Goals = field(default_factory=Goals)
    minute_s: int = 60
    """Seconds of a `minute` of throughput: a report of a short time has less."""
    hour_s: int = 3600
    """Seconds of an `hour` of latency."""

    @cached_property
    def closed_attempts(self) -> Rows:
        return Rows(self.attempts.filter(pc.invert(self.attempts["is_open"])))

    @cached_property
    def finished_tasks(self) -> Rows:
        """Tasks that a worker completed or failed. Dead tasks are counted by deliveries: a task may die repeatedly."""
        closed = Rows(self.tasks.filter(pc.invert(self.tasks["is_open"])))
        return Rows(closed.table.filter(pa.array(closed.is_in("outcome", "completed", "failed"))))

    @cached_property
    def move_sums(self) -> Rows:
        """Events by minute and move."""
        rows = Rows(self.events)
        kind = ("tenant", "command", "priority", "move", "status_before", "status_after")
        minute = start_of(rows, "at", self.minute_s)
        columns = {name: rows.column(name) for name in (*kind, "payload_bytes", "artifacts", "artifact_bytes")}
        columns |= {"minute": minute, "day": day_of(minute), "number": _ones(rows)}
        columns |= dict.fromkeys(("first_at", "last_at"), rows.column("at"))
        ways = dict.fromkeys(("number", "payload_bytes", "artifacts", "artifact_bytes"), Merge.SUM)
        ways |= {"first_at": Merge.MIN, "last_at": Merge.MAX}
        return Rows(added_up(Rows(pa.table(columns)), (*kind, "minute", "day"), ways))

    @cached_property
    def delivery_sums(self) -> Rows:
        """Closed attempts by hour, worker and end; `is_timed` if the run time is known."""
        rows = self.closed_attempts
        kind = ("tenant", "command", "worker_id", "ended_by", "is_dead")
        hour, ended_at = start_of(rows, "ended_at", 3600), rows.column("ended_at")
        columns = {name: rows.column(name) for name in (*kind, "run_ms")}
        columns |= {"hour": hour, "day": day_of(hour), "number": _ones(rows), "is_timed": pa.array(rows.has("run_ms"))}
        columns |= {
            "first_claimed_at": rows.column("claimed_at"),
            "first_ended_at": ended_at,
            "last_ended_at": ended_at,
        }
        ways = {"number": Merge.SUM, "run_ms": Merge.SUM, "first_claimed_at": Merge.MIN, "first_ended_at": Merge.MIN,
                "last_ended_at": Merge.MAX}  # fmt: skip
        return Rows(added_up(Rows(pa.table(columns)), (*kind, "is_timed", "hour", "day"), ways))

    @cached_property
    def task_sums(self) -> Rows:
        """Finished tasks by hour and outcome; `took` is the number of deliveries, 11 for more than ten."""
        rows = self.finished_tasks
        target_ms = rows.by_text("command", self.goals.target_ms)
        in_time = rows.has("end_to_end_ms") & (rows.numbers("end_to_end_ms") <= target_ms)
        hour = start_of(rows, "ended_at", 3600)
        columns = {name: rows.column(name) for name in ("tenant", "command", "outcome")}
        columns |= {"in_time": pa.array(in_time), "took": pa.array(np.minimum(rows.numbers("deliveries"), 11))}
        columns |= {"hour": hour, "day": day_of(hour), "number": _ones(rows)}
        keys = ("tenant", "command", "outcome", "in_time", "took", "hour", "day")
        return Rows(added_up(Rows(pa.table(columns)), keys, {"number": Merge.SUM}))


def start_of(rows: Rows, name: str, seconds: int) -> pa.Array:
    """Returns the start of the minute or hour in UTC."""
    micros, unit = rows.numbers(name), seconds * 1_000_000
    return _times(micros // unit * unit)


def day_of(times: pa.Array) -> pa.Array:
    """Returns the day in UTC."""
    days = times.view(pa.int64()).to_numpy() // _DAY_US
    return pa.array(days.astype(np.int32)).view(pa.date32())


def midnight_of(days: pa.Array) -> pa.Array:
    return _times(days.view(pa.int32()).to_numpy().astype(np.int64) * _DAY_US)


def _times(micros: Numbers) -> pa.Array:
    return pa.array(micros).view(TIME)


def _ones(rows: Rows) -> pa.Array:
    return pa.array(np.ones(len(rows), np.int64))
