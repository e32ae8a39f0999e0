"""The input of gold: the new rows of a batch, and sums of them that several tables share, each computed in one pass."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f


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

    @property
    def target_ms(self) -> Column:
        within_ms = {command: target.within_ms for command, target in self.targets.items()}
        return _by_command(within_ms, f.lit(self.default.within_ms).cast("bigint"))

    @property
    def objective(self) -> Column:
        objectives = {command: target.objective for command, target in self.targets.items()}
        return _by_command(objectives, f.lit(self.default.objective))


@dataclass(frozen=True)
class GoldBatch:
    """New events, each once, and the silver rows that they closed.

    Open rows may be among the silver rows. Only closed rows count, so that each counts once: in the batch that closed
    it.

    Sums are grouped by every column that a condition may use. So one pass counts each row once, and conditions are
    evaluated on the few rows of the result. Their values are numbers and times alone, because for other types Spark
    would sort the rows instead of hashing them.
    """

    events: DataFrame
    attempts: DataFrame
    tasks: DataFrame
    goals: Goals = field(default_factory=Goals)

    @property
    def closed_attempts(self) -> DataFrame:
        return self.attempts.where("not is_open")

    @property
    def finished_tasks(self) -> DataFrame:
        """Tasks that a worker completed or failed. Dead tasks are counted by deliveries: a task may die repeatedly."""
        return self.tasks.where("not is_open and outcome in ('completed', 'failed')")

    @cached_property
    def move_sums(self) -> DataFrame:
        """Events by minute and move."""
        kind = ("tenant", "command", "priority", "move", "status_before", "status_after")
        sums = self.events.groupBy(*kind, start_of("at", 60).alias("minute")).agg(
            f.count("*").alias("number"),
            f.sum("payload_bytes").alias("payload_bytes"),
            f.sum("artifacts").alias("artifacts"),
            f.sum("artifact_bytes").alias("artifact_bytes"),
            f.min("at").alias("first_at"),
            f.max("at").alias("last_at"),
        )
        return sums.withColumn("day", day_of("minute"))

    @cached_property
    def delivery_sums(self) -> DataFrame:
        """Closed attempts by hour, worker and end; `is_timed` if the run time is known."""
        kind = ("tenant", "command", "worker_id", "ended_by", "is_dead")
        is_timed = f.col("run_ms").isNotNull().alias("is_timed")
        sums = self.closed_attempts.groupBy(*kind, is_timed, start_of("ended_at", 3600).alias("hour")).agg(
            f.count("*").alias("number"),
            f.sum("run_ms").alias("run_ms"),
            f.min("claimed_at").alias("first_claimed_at"),
            f.min("ended_at").alias("first_ended_at"),
            f.max("ended_at").alias("last_ended_at"),
        )
        return sums.withColumn("day", day_of("hour"))

    @cached_property
    def task_sums(self) -> DataFrame:
        """Finished tasks by hour and outcome; `took` is the number of deliveries, 11 for more than ten."""
        in_time = f.coalesce(f.col("end_to_end_ms") <= self.goals.target_ms, f.lit(False))
        took = f.expr("if(deliveries > 10, 11, deliveries)")
        sums = self.finished_tasks.groupBy(
            "tenant", "command", "outcome", in_time.alias("in_time"), took.alias("took"),
            start_of("ended_at", 3600).alias("hour"),
        ).agg(f.count("*").alias("number"))  # fmt: skip
        return sums.withColumn("day", day_of("hour"))

    @contextmanager
    def cached(self) -> Iterator[None]:
        """Computes the sums that tables have used so far, and caches them until the block ends."""
        sums = [vars(self)[name] for name in ("move_sums", "delivery_sums", "task_sums") if name in vars(self)]
        try:
            for rows in sums:
                rows.persist()
            if sums:
                # In one job before the tables: two of them at the same time would both compute the same sums.
                all_sums = reduce(DataFrame.union, [rows.select(f.lit(1)) for rows in sums])
                all_sums.write.format("noop").mode("append").save()
            yield
        finally:
            for rows in sums:
                rows.unpersist()


def start_of(column: str, seconds: int) -> Column:
    """Returns the start of the minute or hour in UTC."""
    micros = seconds * 1_000_000
    return f.expr(f"timestamp_micros((unix_micros({column}) div {micros}) * {micros})")


def day_of(column: str) -> Column:
    """Returns the day in UTC, whatever the time zone of the session."""
    return f.expr(f"date_from_unix_date(cast(unix_micros({column}) div 86400000000 as int))")


def _by_command(values: Mapping[str, float], default: Column) -> Column:
    if not values:
        return default
    known = f.create_map(*(f.lit(x) for pair in values.items() for x in pair))
    return f.coalesce(f.try_element_at(known, f.col("command")), default)
