"""Gold tables about durations: percentiles of waits, runs and whole tasks, and service levels."""

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as f

from codeq.pipeline.lake.gold.batch import Goals, GoldBatch, day_of, start_of
from codeq.pipeline.lake.gold.merge import GoldTable, number_when, ratio
from codeq.pipeline.lake.tables import GOLD_LATENCY, GOLD_SERVICE_LEVELS

_MEASURES = {"waits": "wait", "runs": "run", "ends": "end_to_end"}


def _latency(batch: GoldBatch) -> DataFrame:
    attempts, tasks = (_per_hour(rows, batch.hour_s) for rows in (batch.closed_attempts, batch.finished_tasks))
    delivered = attempts.agg(*_measured("waits", "wait"), *_measured("runs", "run"))
    hours = delivered.unionByName(tasks.agg(*_measured("ends", "end_to_end")), allowMissingColumns=True)
    # The sketch of a day is merged from those of its hours, which is far cheaper than sketching every row twice.
    days = hours.groupBy("tenant", "command", "priority", "day").agg(
        *(f.sum(name).alias(name) for name in (*_MEASURES, *(f"{measure}_ms" for measure in _MEASURES.values()))),
        *(f.kll_merge_agg_double(f"{measure}_sketch").alias(f"{measure}_sketch") for measure in _MEASURES.values()),
    )
    days = days.withColumn("start", f.expr("timestamp_micros(unix_date(day) * 86400000000L)"))
    return hours.withColumn("grain", f.lit("hour")).unionByName(days.withColumn("grain", f.lit("day")))


def _per_hour(rows: DataFrame, seconds: int) -> GroupedData:
    start, day = start_of("ended_at", seconds).alias("start"), day_of("ended_at").alias("day")
    return rows.groupBy("tenant", "command", "priority", start, day)


def _measured(count: str, measure: str) -> list[Column]:
    milliseconds = f.col(f"{measure}_ms")
    return [
        f.count(milliseconds).alias(count),
        f.sum(milliseconds).alias(f"{measure}_ms"),
        f.kll_sketch_agg_double(milliseconds.cast("double")).alias(f"{measure}_sketch"),
    ]


def _with_percentiles(rows: DataFrame, goals: Goals) -> DataFrame:  # noqa: ARG001
    # Reading a quantile of an empty sketch is an error.
    return rows.withColumns(
        {
            f"{measure}_p{p}_ms": f.when(
                f.col(count) > 0, f.kll_sketch_get_quantile_double(f"{measure}_sketch", f.lit(p / 100))
            )
            for count, measure in _MEASURES.items()
            for p in (50, 90, 95, 99)
        }
    )


def _service_levels(batch: GoldBatch) -> DataFrame:
    """Counts tasks that were completed or failed, and deliveries that made their task dead."""
    keys = ("tenant", "command", "hour", "day")
    finished = batch.task_sums.select(
        *keys,
        f.col("number").alias("tasks"),
        *number_when(
            good="outcome = 'completed' and in_time",
            late="outcome = 'completed' and not in_time",
            failed="outcome = 'failed'",
        ),
    )
    dead = batch.delivery_sums.where("is_dead").select(
        *keys, f.col("number").alias("tasks"), f.col("number").alias("failed")
    )
    rows = finished.unionByName(dead, allowMissingColumns=True)
    return rows.withColumns({"target_ms": batch.goals.target_ms, "objective": batch.goals.objective})


def _with_burn(rows: DataFrame, goals: Goals) -> DataFrame:  # noqa: ARG001
    rows = rows.withColumn("share", ratio("good", "tasks"))
    return rows.withColumn("burn", f.try_divide(1 - f.col("share"), 1 - f.col("objective")))


LATENCY = GoldTable(GOLD_LATENCY, _latency, _with_percentiles)
SERVICE_LEVELS = GoldTable(GOLD_SERVICE_LEVELS, _service_levels, _with_burn)
