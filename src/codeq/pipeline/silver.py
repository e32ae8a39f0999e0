"""One row per delivery and one per task, carried forward by each batch of events.

Both functions take the rows that are open so far and new events, in any order and repeated or not, and give the rows
that are still open and those that this batch has closed. However the events are cut into batches, the rows are the
same. An event belongs to a delivery by its lease token: a claim and what ends it carry the number of the delivery, and
what made the task ready for it carries the number before.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from codeq.domain.lifecycle import MAX_ATTEMPTS, MAX_DELIVERIES
from codeq.domain.task import Move, Status
from codeq.pipeline.tables import SILVER_ATTEMPTS, SILVER_TASKS

_BURYING = [Move.NACK.value, Move.EXPIRE.value, Move.ABANDON.value]
_VERDICTS = [MAX_ATTEMPTS, MAX_DELIVERIES]
_LIVE = [Status.PENDING.value, Status.IN_PROGRESS.value]


def is_burial(move: str = "move", status_after: str = "status_after") -> Column:
    """Whether the move sent the task to the dead-letter queue."""
    return f.col(move).isin(_BURYING) & (f.col(status_after) == Status.FAILED.value)


def attempts(open_rows: DataFrame, events: DataFrame) -> DataFrame:
    """The deliveries that are open or were closed by these events. One that was withdrawn before it began is dropped.

    Each value comes from one event of its delivery, so the greatest of them is the one, however often it is repeated.
    """
    parts = _parts_of_deliveries(events).unionByName(open_rows.select(*_PART_COLUMNS), allowMissingColumns=True)
    row = _gathered(parts).groupBy("bucket", "task_id", "lease_token").agg(*_attempt_values())
    row = row.where("claimed_at is not null or ended_at is not null or not is_withdrawn")
    return row.select(
        "*",
        (f.unix_millis("claimed_at") - f.unix_millis("ready_at")).alias("wait_ms"),
        (f.unix_millis("ended_at") - f.unix_millis("claimed_at")).alias("run_ms"),
        f.when(f.col("ended_at").isNotNull(), is_burial("ended_by")).alias("is_dead"),
        _reason().alias("error"),
        f.col("ended_at").isNull().alias("is_open"),
    ).select(SILVER_ATTEMPTS.names)


def tasks(open_rows: DataFrame, events: DataFrame) -> DataFrame:
    """The tasks that are open or were closed by these events. A purge closes a dead one and changes nothing else."""
    steps = _steps_of_rows(open_rows).unionByName(_steps_of_events(events), allowMissingColumns=True)
    steps = _with_steps_before(_gathered(steps)).where("seq_before is null or seq_before < seq")
    steps = steps.where(~_moved(Move.PURGE) | f.col("seq_before").isNotNull())
    row = steps.groupBy("bucket", "task_id").agg(*_task_values()).select("*", "last.*")
    is_dead = (row.status == Status.FAILED.value) & row.last_move.isin(_BURYING)
    is_live = row.status.isin(_LIVE)
    ended_at = f.when(~is_live, row.last_at)
    outcome = (
        f.when(is_live, "live")
        .when(row.status == Status.COMPLETED.value, "completed")
        .when(row.status == Status.CANCELLED.value, "cancelled")
        .otherwise(f.when(is_dead, "dead").otherwise("failed"))
    )
    return row.select(
        "*",
        ended_at.alias("ended_at"),
        outcome.alias("outcome"),
        is_dead.alias("is_dead"),
        (f.unix_millis(ended_at) - f.unix_millis("enqueued_at")).alias("end_to_end_ms"),
        (is_live | (is_dead & ~row.is_purged)).alias("is_open"),
    ).select(SILVER_TASKS.names)


# -- deliveries --------------------------------------------------------------------------------------------------------

_CONSTANT = ("tenant", "command", "shard", "priority", "max_attempts")
_PART_COLUMNS = (
    *_CONSTANT, "task_id", "lease_token", "attempt", "worker_id", "ready_by", "visible_at", "ready_at", "claimed_at",
    "lease_until", "error_before", "first_seq", "last_seq",
)  # fmt: skip


def _parts_of_deliveries(events: DataFrame) -> DataFrame:
    """What each event says of the delivery it belongs to, and of the one to come."""
    was_running = f.col("status_before") == Status.IN_PROGRESS.value
    is_ready = f.col("status_after") == Status.PENDING.value
    is_withdrawal = _moved(Move.CANCEL) & (f.col("status_before") == Status.PENDING.value)
    is_claim = _moved(Move.CLAIM)
    here, to_come = is_claim | was_running, is_ready | is_withdrawal
    steps = f.when(here & to_come, f.array(f.lit(0), f.lit(1))).when(here, f.array(f.lit(0)))
    part = events.withColumn("step", f.explode(steps.when(to_come, f.array(f.lit(1)))))
    claimed = (f.col("step") == 0) & is_claim
    ended = (f.col("step") == 0) & ~is_claim
    ready = (f.col("step") == 1) & is_ready
    tried = f.when(f.col("move").isin(Move.NACK.value, Move.EXPIRE.value), 0).otherwise(1)
    return part.select(
        *_CONSTANT,
        "task_id",
        (f.col("lease_token") + f.col("step")).alias("lease_token"),
        f.when(claimed | ended, f.col("attempts") + tried).alias("attempt"),
        f.when(f.col("step") == 0, f.col("worker_id")).alias("worker_id"),
        f.when(ready, f.col("move")).alias("ready_by"),
        f.when(ready, f.col("visible_at")).alias("visible_at"),
        f.when(ready, f.coalesce("visible_at", "at")).alias("ready_at"),
        f.when(claimed, f.col("at")).alias("claimed_at"),
        f.when(claimed, f.col("lease_until")).alias("lease_until"),
        f.when(claimed, f.col("error")).alias("error_before"),
        f.when(ended, f.col("at")).alias("ended_at"),
        f.when(ended, f.col("move")).alias("ended_by"),
        f.when(ended, f.col("status_after")).alias("status_after"),
        f.when(ended, f.col("error")).alias("ended_error"),
        ((f.col("step") == 1) & ~is_ready).alias("is_withdrawn"),
        f.col("seq").alias("first_seq"),
        f.col("seq").alias("last_seq"),
    )


def _attempt_values() -> list[Column]:
    # A delay that ends is promoted after its time, so the least of the times is when it was due. And what made a task
    # ready comes before `promote` in the alphabet, but for `replay`, after which there is no delay to end.
    least = ["ready_by", "ready_at", "first_seq"]
    greatest = [
        "attempt", "worker_id", "visible_at", "claimed_at", "lease_until", "error_before", "ended_at", "ended_by",
        "status_after", "ended_error", "last_seq",
    ]  # fmt: skip
    return [
        *(f.first(name).alias(name) for name in _CONSTANT),
        *(f.min(name).alias(name) for name in least),
        *(f.max(name).alias(name) for name in greatest),
        f.coalesce(f.max("is_withdrawn"), f.lit(False)).alias("is_withdrawn"),
    ]


def _reason() -> Column:
    """Why the delivery failed. A log that says only that the limit was reached leaves the reason before it."""
    failed = f.col("ended_by").isin(Move.FAIL.value, Move.NACK.value, Move.EXPIRE.value)
    error = f.col("ended_error")
    known = f.when(error.isin(_VERDICTS), f.coalesce("error_before", error)).otherwise(error)
    return f.when(failed | is_burial("ended_by"), known)


# -- tasks -------------------------------------------------------------------------------------------------------------

_COUNTED = {"nacks": Move.NACK, "expiries": Move.EXPIRE, "abandons": Move.ABANDON, "replays": Move.REPLAY,
            "promotes": Move.PROMOTE}  # fmt: skip
_TASK_CONSTANT = ("tenant", "command", "shard", "priority", "max_attempts", "payload_bytes", "trace_id")


def _steps_of_events(events: DataFrame) -> DataFrame:
    return events.select(
        *_TASK_CONSTANT, "task_id", "seq", "move", "at", "visible_at", "lease_token", "attempts", "status_before",
        "status_after", "error", "worker_id",
    )  # fmt: skip


def _steps_of_rows(open_rows: DataFrame) -> DataFrame:
    """An open row stands for all events that made it: it is the latest of them, and `so_far` holds the sums of all."""
    return open_rows.select(
        *_TASK_CONSTANT, "task_id", "visible_at", "attempts",
        f.col("last_seq").alias("seq"),
        f.col("last_move").alias("move"),
        f.col("last_at").alias("at"),
        f.col("deliveries").alias("lease_token"),
        f.col("status").alias("status_after"),
        f.col("last_error").alias("error"),
        f.col("last_worker").alias("worker_id"),
        f.struct(
            "first_seq", "enqueued_at", "first_claimed_at", "total_wait_ms", "total_run_ms", *_COUNTED
        ).alias("so_far"),
    )  # fmt: skip


def _with_steps_before(steps: DataFrame) -> DataFrame:
    """Each step with what it needs of the steps before it. A repeated step has its own number before it."""
    by_task = Window.partitionBy("bucket", "task_id").orderBy("seq")
    return steps.select(
        "*",
        *(f.lag(name).over(by_task).alias(f"{name}_before") for name in ("seq", "move", "at", "visible_at", "error")),
        f.last("visible_at", ignorenulls=True)
        .over(by_task.rowsBetween(Window.unboundedPreceding, -1))
        .alias("delayed_to"),
    )


def _task_values() -> list[Column]:
    was_promoted = f.col("move_before") == Move.PROMOTE.value
    due = f.coalesce(f.when(was_promoted, f.col("delayed_to")).otherwise(f.col("visible_at_before")), "at_before")
    was_running = f.col("status_before") == Status.IN_PROGRESS.value
    times = {
        "total_wait_ms": f.when(_moved(Move.CLAIM), f.unix_millis("at") - f.unix_millis(due)),
        "total_run_ms": f.when(was_running, f.unix_millis("at") - f.unix_millis("at_before")),
    }
    firsts = {
        "first_seq": f.col("seq"),
        "enqueued_at": f.when(_moved(Move.ENQUEUE), f.col("at")),
        "first_claimed_at": f.when(_moved(Move.CLAIM) & (f.col("lease_token") == 1), f.col("at")),
    }
    is_row = f.col("so_far").isNotNull()
    lasting = ~_moved(Move.PURGE)
    worker = f.max(f.when(f.col("worker_id").isNotNull(), f.struct("seq", "worker_id")))["worker_id"]
    return [
        *(f.first(name).alias(name) for name in _TASK_CONSTANT),
        *(f.min(f.when(is_row, f.col(f"so_far.{name}")).otherwise(here)).alias(name) for name, here in firsts.items()),
        *(
            f.sum(f.when(is_row, f.col(f"so_far.{name}")).when(_moved(move), 1).otherwise(0)).alias(name)
            for name, move in _COUNTED.items()
        ),
        *(
            f.coalesce(f.sum(f.when(is_row, f.col(f"so_far.{name}")).otherwise(here)), f.lit(0)).alias(name)
            for name, here in times.items()
        ),
        f.max(f.when(lasting, _last_step())).alias("last"),
        worker.alias("last_worker"),
        f.max(~lasting).alias("is_purged"),
    ]


def _last_step() -> Column:
    """What the latest step says of its task; compared by its number, which comes first."""
    held_until = f.when(_moved(Move.PROMOTE), f.coalesce("visible_at", "delayed_to")).otherwise(f.col("visible_at"))
    known = f.when(f.col("error").isin(_VERDICTS), f.coalesce("error_before", "error")).otherwise(f.col("error"))
    return f.struct(
        f.col("seq").alias("last_seq"),
        f.col("status_after").alias("status"),
        f.col("move").alias("last_move"),
        f.col("at").alias("last_at"),
        f.col("lease_token").alias("deliveries"),
        "attempts",
        held_until.alias("visible_at"),
        known.alias("last_error"),
    )


def _gathered(steps: DataFrame) -> DataFrame:
    """All that belongs to one task in one place. Ids begin alike, so sorting by a hash of them first is faster."""
    return steps.withColumn("bucket", f.xxhash64("task_id")).repartition("bucket")


def _moved(move: Move) -> Column:
    return f.col("move") == move.value
