"""One row per delivery and one per task, carried forward by each batch of events.

Both functions take the rows that are open so far and new events, each once and in any order, and give the rows that are
still open and those that this batch has closed. However the events are cut into batches, the rows are the same.

Each row is made in one pass over what belongs to it, without looking from event to event: a delivery takes what its
claim and its end say; a task takes the latest event, and adds up times. All the time that a task was run is the sum of
the times when deliveries ended, less the sum of the times when they began.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from codeq.domain.task import Move, Status
from codeq.pipeline.tables import SILVER_ATTEMPTS, SILVER_TASKS

_BURYING = [Move.NACK.value, Move.EXPIRE.value, Move.ABANDON.value]
_LIVE = [Status.PENDING.value, Status.IN_PROGRESS.value]


def is_burial(move: str = "move", status_after: str = "status_after") -> Column:
    """Whether the move sent the task to the dead-letter queue."""
    return f.col(move).isin(_BURYING) & (f.col(status_after) == Status.FAILED.value)


def attempts(open_rows: DataFrame, events: DataFrame) -> DataFrame:
    """The deliveries that are open or were closed by these events. One that was withdrawn before it began is dropped.

    An event belongs to a delivery by its lease token: a claim and what ends it carry the number of the delivery, and
    what made the task ready for it carries the number before.
    """
    parts = _parts_of_events(events).unionByName(_parts_of_rows(open_rows), allowMissingColumns=True)
    rows = _gathered(parts).groupBy("bucket", "task_id", "lease_token").agg(
        f.first("constant").alias("constant"),
        f.min("ready").alias("ready"),  # a delay that ends comes after what began it
        f.max("claim").alias("claim"),
        f.max("end").alias("end"),
        f.coalesce(f.max("is_withdrawn"), f.lit(False)).alias("is_withdrawn"),
        f.min("first_seq").alias("first_seq"),
        f.max("last_seq").alias("last_seq"),
    )  # fmt: skip
    rows = rows.where("claim is not null or end is not null or not is_withdrawn")
    rows = rows.select("*", "constant.*", "ready.*", "claim.*", "end.*")
    failed = f.col("ended_by").isin(Move.FAIL.value, Move.NACK.value, Move.EXPIRE.value)
    return rows.select(
        "*",
        f.coalesce("claim.claimed_as", "end.ended_as").alias("attempt"),
        f.coalesce("claim.claimed_by", "end.held_by").alias("worker_id"),
        (f.unix_millis("claimed_at") - f.unix_millis("ready_at")).alias("wait_ms"),
        (f.unix_millis("ended_at") - f.unix_millis("claimed_at")).alias("run_ms"),
        f.when(f.col("end").isNotNull(), is_burial("ended_by")).alias("is_dead"),
        f.when(failed | is_burial("ended_by"), f.col("ended_error")).alias("error"),
        f.col("end").isNull().alias("is_open"),
    ).select(SILVER_ATTEMPTS.names)


def tasks(open_rows: DataFrame, events: DataFrame) -> DataFrame:
    """The tasks that are open or were closed by these events. A purge closes a dead one and changes nothing else."""
    steps = _steps_of_rows(open_rows).unionByName(_steps_of_events(events), allowMissingColumns=True)
    rows = _gathered(steps).groupBy("bucket", "task_id").agg(*_task_values()).where("last is not null")
    rows = rows.select("*", "constant.*", "last.*")
    is_dead = (rows.status == Status.FAILED.value) & rows.last_move.isin(_BURYING)
    is_live = rows.status.isin(_LIVE)
    ended_at = f.when(~is_live, rows.last_at)
    outcome = (
        f.when(is_live, "live")
        .when(rows.status == Status.COMPLETED.value, "completed")
        .when(rows.status == Status.CANCELLED.value, "cancelled")
        .otherwise(f.when(is_dead, "dead").otherwise("failed"))
    )
    was_promoted = rows.last_move == Move.PROMOTE.value
    waited, ran = _times_of_task()
    return rows.select(
        "*",
        f.col("latest_worker.worker_id").alias("last_worker"),
        f.when(was_promoted, rows.latest_delay.visible_at).otherwise(rows.held_until).alias("visible_at"),
        waited.alias("total_wait_ms"),
        ran.alias("total_run_ms"),
        ended_at.alias("ended_at"),
        outcome.alias("outcome"),
        is_dead.alias("is_dead"),
        (f.unix_millis(ended_at) - f.unix_millis("enqueued_at")).alias("end_to_end_ms"),
        (is_live | (is_dead & ~rows.is_purged)).alias("is_open"),
    ).select(SILVER_TASKS.names)


# -- deliveries --------------------------------------------------------------------------------------------------------

_CONSTANT = ("tenant", "command", "shard", "priority", "max_attempts")


def _parts_of_events(events: DataFrame) -> DataFrame:
    """What each event says of the delivery it belongs to, and of the one to come."""
    was_running = f.col("status_before") == Status.IN_PROGRESS.value
    is_ready = f.col("status_after") == Status.PENDING.value
    is_withdrawal = _moved(Move.CANCEL) & (f.col("status_before") == Status.PENDING.value)
    is_claim = _moved(Move.CLAIM)
    here, to_come = is_claim | was_running, is_ready | is_withdrawal
    steps = f.when(here & to_come, f.array(f.lit(0), f.lit(1))).when(here, f.array(f.lit(0)))
    part = events.withColumn("step", f.explode(steps.when(to_come, f.array(f.lit(1)))))
    is_here = f.col("step") == 0
    # A failed delivery is counted by the event that ends it.
    tried = f.when(f.col("move").isin(Move.NACK.value, Move.EXPIRE.value), 0).otherwise(1)
    number = f.col("attempts") + tried
    return part.select(
        f.struct(*_CONSTANT).alias("constant"),
        "task_id",
        (f.col("lease_token") + f.col("step")).alias("lease_token"),
        f.when(~is_here & is_ready, _ready(f.col("seq"), f.col("move"), f.coalesce("visible_at", "at"))).alias("ready"),
        f.when(is_here & is_claim, _claim(f.col("at"), number, f.col("worker_id"))).alias("claim"),
        f.when(
            is_here & ~is_claim,
            f.struct(
                f.col("at").alias("ended_at"),
                f.col("move").alias("ended_by"),
                "status_after",
                f.col("error").alias("ended_error"),
                number.alias("ended_as"),
                f.col("worker_id").alias("held_by"),
            ),
        ).alias("end"),
        (~is_here & ~is_ready).alias("is_withdrawn"),
        f.col("seq").alias("first_seq"),
        f.col("seq").alias("last_seq"),
    )


def _parts_of_rows(open_rows: DataFrame) -> DataFrame:
    return open_rows.select(
        f.struct(*_CONSTANT).alias("constant"),
        "task_id",
        "lease_token",
        f.when(f.col("ready_by").isNotNull(), _ready(f.col("first_seq"), f.col("ready_by"), f.col("ready_at"))).alias(
            "ready"
        ),
        f.when(
            f.col("claimed_at").isNotNull(), _claim(f.col("claimed_at"), f.col("attempt"), f.col("worker_id"))
        ).alias("claim"),
        "first_seq",
        "last_seq",
    )


def _ready(seq: Column, by: Column, at: Column) -> Column:
    return f.struct(seq.alias("ready_seq"), by.alias("ready_by"), "visible_at", at.alias("ready_at"))


def _claim(at: Column, number: Column, worker: Column) -> Column:
    return f.struct(at.alias("claimed_at"), number.alias("claimed_as"), worker.alias("claimed_by"), "lease_until")


# -- tasks -------------------------------------------------------------------------------------------------------------

_COUNTED = {"nacks": Move.NACK, "expiries": Move.EXPIRE, "abandons": Move.ABANDON, "replays": Move.REPLAY,
            "promotes": Move.PROMOTE}  # fmt: skip
_TASK_CONSTANT = ("tenant", "command", "shard", "priority", "max_attempts", "payload_bytes", "trace_id")
_TIMES = ("ready_ms", "claim_ms", "end_ms", "running_since_ms")
_CARRIED = ("first_seq", "enqueued_at", "first_claimed_at", "total_wait_ms", "total_run_ms", *_COUNTED)


def _steps_of_events(events: DataFrame) -> DataFrame:
    is_ready = (f.col("status_after") == Status.PENDING.value) & ~_moved(Move.PROMOTE)
    was_running = f.col("status_before") == Status.IN_PROGRESS.value
    is_claim = _moved(Move.CLAIM)
    at_ms = f.unix_millis("at")
    return events.select(
        "task_id",
        f.struct(*_TASK_CONSTANT).alias("constant"),
        "seq",
        "worker_id",
        "visible_at",
        f.when(is_ready, f.unix_millis(f.coalesce("visible_at", "at"))).alias("ready_ms"),
        f.when(is_claim, at_ms).alias("claim_ms"),
        f.when(was_running, at_ms).alias("end_ms"),
        f.when(~_moved(Move.PURGE), _last_step(f.col("move"), f.col("at"))).alias("step"),
        f.struct("seq", "move", at_ms.alias("at_ms"), was_running.alias("was_running")).alias("begin"),
        *(_moved(move).cast("bigint").alias(name) for name, move in _COUNTED.items()),
        f.col("seq").alias("first_seq"),
        f.when(_moved(Move.ENQUEUE), f.col("at")).alias("enqueued_at"),
        f.when(is_claim & (f.col("lease_token") == 1), f.col("at")).alias("first_claimed_at"),
    )


def _last_step(move: Column, at: Column) -> Column:
    """What the latest step says of its task; compared by its number, which comes first."""
    return f.struct(
        f.col("seq").alias("last_seq"),
        f.col("status_after").alias("status"),
        move.alias("last_move"),
        at.alias("last_at"),
        f.col("lease_token").alias("deliveries"),
        "attempts",
        f.col("visible_at").alias("held_until"),
        f.col("error").alias("last_error"),
    )


def _steps_of_rows(open_rows: DataFrame) -> DataFrame:
    """An open row stands for all events that made it: it is the latest of them, with the sums of all."""
    row = open_rows.withColumns(
        {"seq": f.col("last_seq"), "status_after": f.col("status"), "lease_token": f.col("deliveries"),
         "error": f.col("last_error"), "worker_id": f.col("last_worker")}
    )  # fmt: skip
    was_ready = f.col("status") == Status.PENDING.value
    was_running = f.col("status") == Status.IN_PROGRESS.value
    return row.select(
        "task_id",
        f.struct(*_TASK_CONSTANT).alias("constant"),
        "seq",
        "worker_id",
        "visible_at",
        f.when(was_ready, f.unix_millis(f.coalesce("visible_at", "last_at"))).alias("ready_ms"),
        f.when(was_running, f.unix_millis("last_at")).alias("running_since_ms"),
        _last_step(f.col("last_move"), f.col("last_at")).alias("step"),
        *_CARRIED,
    )


def _task_values() -> list[Column]:
    return [
        f.first("constant").alias("constant"),
        f.max("step").alias("last"),
        *(f.sum(name).alias(name) for name in _COUNTED),
        *(f.min(name).alias(name) for name in ("first_seq", "enqueued_at", "first_claimed_at")),
        *(f.sum(name).alias(name) for name in _TIMES),
        f.sum("total_wait_ms").alias("waited_ms"),
        f.sum("total_run_ms").alias("ran_ms"),
        f.max(f.when(f.col("ready_ms").isNotNull(), f.struct("seq", "ready_ms"))).alias("latest_ready"),
        f.max(
            f.when(
                f.coalesce("claim_ms", "running_since_ms").isNotNull(),
                f.struct("seq", f.coalesce("claim_ms", "running_since_ms").alias("claim_ms")),
            )
        ).alias("latest_claim"),
        f.max(f.when(f.col("visible_at").isNotNull(), f.struct("seq", "visible_at"))).alias("latest_delay"),
        f.max(f.when(f.col("worker_id").isNotNull(), f.struct("seq", "worker_id"))).alias("latest_worker"),
        f.min("begin").alias("begin"),
        f.max(f.col("begin").isNull()).alias("is_carried"),
        f.max(f.col("step").isNull()).alias("is_purged"),
    ]


def _times_of_task() -> tuple[Column, Column]:
    """Sums of what has begun and ended. What has not ended yet is taken out again; and so is what began before the
    first event that was kept, unless a row carries it."""
    is_lost = ~f.col("is_carried")
    is_unclaimed = f.col("latest_ready.seq") > f.coalesce("latest_claim.seq", f.lit(-1))
    first_ms = f.col("begin.at_ms")
    lost_claim = is_lost & (f.col("begin.move") == Move.CLAIM.value)
    lost_delay = is_lost & (f.col("begin.move") == Move.PROMOTE.value) & f.col("latest_claim").isNotNull()
    waited = [
        f.col("waited_ms"), f.col("claim_ms"), -f.col("ready_ms"),
        f.when(is_unclaimed, f.col("latest_ready.ready_ms")),
        f.when(lost_claim | lost_delay, -first_ms),
    ]  # fmt: skip
    ran = [
        f.col("ran_ms"), f.col("end_ms"), -f.col("claim_ms"), -f.col("running_since_ms"),
        f.when(f.col("status") == Status.IN_PROGRESS.value, f.col("latest_claim.claim_ms")),
        f.when(is_lost & f.col("begin.was_running"), -first_ms),
    ]  # fmt: skip
    return _added(waited), _added(ran)


def _added(values: list[Column]) -> Column:
    total = f.lit(0).cast("bigint")
    for value in values:
        total = total + f.coalesce(value, f.lit(0))
    return total


def _gathered(steps: DataFrame) -> DataFrame:
    """All that belongs to one task in one place. Ids begin alike, so sorting by a hash of them first is faster."""
    return steps.withColumn("bucket", f.xxhash64("task_id")).repartition("bucket")


def _moved(move: Move) -> Column:
    return f.col("move") == move.value
