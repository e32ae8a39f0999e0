"""Gold of how long things took: percentiles of waits, runs and whole tasks, and the share that met its target."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from codeq.pipeline.gold.summing import Batch, Goals, Gold, count_when, per_hour, share
from codeq.pipeline.tables import GOLD_LATENCY, GOLD_SERVICE_LEVELS

_MEASURES = {"waits": "wait", "runs": "run", "ends": "end_to_end"}


def _latency(batch: Batch) -> DataFrame:
    attempts, tasks = (
        per_hour(rows, "ended_at", "tenant", "command", "priority", name="start")
        for rows in (batch.closed_attempts, batch.finished_tasks)
    )
    delivered = attempts.agg(*_measured("waits", "wait"), *_measured("runs", "run"))
    hours = delivered.unionByName(tasks.agg(*_measured("ends", "end_to_end")), allowMissingColumns=True)
    # A day is made of its hours' sketches, which is far cheaper than sketching every row twice.
    days = hours.groupBy("tenant", "command", "priority", "day").agg(
        *(f.sum(name).alias(name) for name in (*_MEASURES, *(f"{measure}_ms" for measure in _MEASURES.values()))),
        *(f.kll_merge_agg_double(f"{measure}_sketch").alias(f"{measure}_sketch") for measure in _MEASURES.values()),
    )
    days = days.withColumn("start", f.expr("timestamp_micros(unix_date(day) * 86400000000L)"))
    return hours.withColumn("grain", f.lit("hour")).unionByName(days.withColumn("grain", f.lit("day")))


def _measured(count: str, measure: str) -> list[Column]:
    milliseconds = f.col(f"{measure}_ms")
    return [
        f.count(milliseconds).alias(count),
        f.sum(milliseconds).alias(f"{measure}_ms"),
        f.kll_sketch_agg_double(milliseconds.cast("double")).alias(f"{measure}_sketch"),
    ]


def _with_percentiles(rows: DataFrame, goals: Goals) -> DataFrame:  # noqa: ARG001
    # An empty sketch has no quantiles, and asking it for one is an error.
    return rows.withColumns(
        {
            f"{measure}_p{p}_ms": f.when(
                f.col(count) > 0, f.kll_sketch_get_quantile_double(f"{measure}_sketch", f.lit(p / 100))
            )
            for count, measure in _MEASURES.items()
            for p in (50, 90, 95, 99)
        }
    )


def _service_levels(batch: Batch) -> DataFrame:
    """Tasks count where they are completed or failed, and deliveries where they make their task dead."""
    targets, default = batch.goals.targets, batch.goals.default
    within_ms = {command: target.within_ms for command, target in targets.items()}
    objectives = {command: target.objective for command, target in targets.items()}
    judged = {
        "target_ms": _of_command(within_ms, f.lit(default.within_ms).cast("bigint")),
        "objective": _of_command(objectives, f.lit(default.objective)),
    }
    keys = ("tenant", "command", *judged)
    finished = per_hour(batch.finished_tasks.withColumns(judged), "ended_at", *keys)
    dead = per_hour(batch.closed_attempts.where("is_dead").withColumns(judged), "ended_at", *keys)
    return finished.agg(
        f.count("*").alias("tasks"),
        *count_when(
            good="outcome = 'completed' and end_to_end_ms <= target_ms",
            late="outcome = 'completed' and not coalesce(end_to_end_ms <= target_ms, false)",
            failed="outcome = 'failed'",
        ),
    ).unionByName(dead.agg(f.count("*").alias("tasks"), f.count("*").alias("failed")), allowMissingColumns=True)


def _of_command(values: Mapping[str, float], default: Column) -> Column:
    if not values:
        return default
    known = f.create_map(*(f.lit(x) for pair in values.items() for x in pair))
    return f.coalesce(f.try_element_at(known, f.col("command")), default)


def _with_burn(rows: DataFrame, goals: Goals) -> DataFrame:  # noqa: ARG001
    rows = rows.withColumn("share", share("good", "tasks"))
    return rows.withColumn("burn", f.try_divide(1 - f.col("share"), 1 - f.col("objective")))


LATENCY = Gold(GOLD_LATENCY, _latency, _with_percentiles)
SERVICE_LEVELS = Gold(GOLD_SERVICE_LEVELS, _service_levels, _with_burn)
