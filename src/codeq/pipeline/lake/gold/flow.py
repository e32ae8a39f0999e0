"""Gold tables about load: throughput, usage by tenant and by worker, and the capacity needed."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from codeq.domain.queue import SYSTEM_PREFIX
from codeq.pipeline.lake.gold.batch import Goals, GoldBatch, start_of
from codeq.pipeline.lake.gold.merge import GoldTable, number_when, ratio
from codeq.pipeline.lake.tables import GOLD_CAPACITY, GOLD_THROUGHPUT, GOLD_USAGE, GOLD_WORKERS

_DEATH = "status_after = 'FAILED' and move in ('nack', 'expire', 'abandon')"
_LIVE = "('PENDING', 'IN_PROGRESS')"
_SYSTEM = f"startswith(command, '{SYSTEM_PREFIX}')"
"""Tasks that the server made for itself: deliveries of result callbacks."""


def _throughput(batch: GoldBatch) -> DataFrame:
    return batch.move_sums.select(
        "tenant", "command", "priority", "minute", "day",
        *number_when(
            enqueues="move = 'enqueue'",
            claims="move = 'claim'",
            completes="move = 'complete'",
            fails="move = 'fail'",
            nacks="move = 'nack'",
            expiries="move = 'expire'",
            abandons="move = 'abandon'",
            promotes="move = 'promote'",
            cancels="move = 'cancel'",
            replays="move = 'replay'",
            purges="move = 'purge'",
            deaths=_DEATH,
            entered=f"status_after in {_LIVE} and not coalesce(status_before, '') in {_LIVE}",
            left=f"status_before in {_LIVE} and not status_after in {_LIVE}",
            began="move = 'claim'",
            stopped="status_before = 'IN_PROGRESS'",
        ),
        f.expr("if(move = 'enqueue', payload_bytes, 0)").alias("payload_bytes"),
    )  # fmt: skip


def _usage(batch: GoldBatch) -> DataFrame:
    """Result callbacks are tasks of a system queue: they are counted by themselves, and not as the tenant's tasks."""
    moved = batch.move_sums.select(
        "tenant",
        "day",
        *number_when(
            tasks=f"move = 'enqueue' and not {_SYSTEM}",
            webhooks=f"move = 'enqueue' and {_SYSTEM}",
        ),
        f.expr(f"if(move = 'enqueue' and not {_SYSTEM}, payload_bytes, 0)").alias("payload_bytes"),
        *(
            f.expr(f"if(move in ('complete', 'fail'), {name}, 0)").alias(name)
            for name in ("artifacts", "artifact_bytes")
        ),
    )
    delivered = batch.delivery_sums.select(
        "tenant",
        "day",
        *number_when(
            deliveries=f"not {_SYSTEM}",
            completes=f"ended_by = 'complete' and not {_SYSTEM}",
            webhook_attempts=f"ended_by <> 'abandon' and {_SYSTEM}",
        ),
        f.expr(f"if({_SYSTEM}, 0, run_ms)").alias("run_ms"),
    )
    return moved.unionByName(delivered, allowMissingColumns=True)


def _with_run_seconds(rows: DataFrame, goals: Goals) -> DataFrame:  # noqa: ARG001
    return rows.withColumn("run_seconds", f.col("run_ms") / 1000)


def _workers(batch: GoldBatch) -> DataFrame:
    return batch.delivery_sums.where("worker_id is not null").select(
        "tenant", "worker_id", "hour", "day",
        f.col("number").alias("deliveries"),
        *number_when(
            completes="ended_by = 'complete'",
            failures="ended_by in ('fail', 'nack')",
            expiries="ended_by = 'expire'",
            abandons="ended_by = 'abandon'",
        ),
        f.col("run_ms").alias("busy_ms"),
        f.col("first_claimed_at").alias("first_at"),
        f.col("last_ended_at").alias("last_at"),
    )  # fmt: skip


def _with_failure_share(rows: DataFrame, goals: Goals) -> DataFrame:  # noqa: ARG001
    bad = f.col("failures") + f.col("expiries")
    return rows.withColumns(
        {"busy_seconds": f.col("busy_ms") / 1000, "failure_share": f.try_divide(bad.cast("double"), "deliveries")}
    )


def _capacity(batch: GoldBatch) -> DataFrame:
    """Without result callbacks, which the server sends: no worker is needed for them."""
    arrived = batch.move_sums.where(f"status_after = 'PENDING' and move <> 'promote' and not {_SYSTEM}")
    arrivals = arrived.select(
        "tenant", "command", start_of("minute", 3600).alias("hour"), "day",
        f.col("number").alias("arrivals"), "first_at", "last_at",
    )  # fmt: skip
    served = batch.delivery_sums.where(f"is_timed and not {_SYSTEM}").groupBy("tenant", "command", "hour", "day")
    return arrivals.unionByName(
        served.agg(
            f.sum("number").alias("deliveries"),
            f.sum("run_ms").alias("run_ms"),
            f.min("first_ended_at").alias("first_at"),
            f.max("last_ended_at").alias("last_at"),
            f.hll_sketch_agg("worker_id").alias("worker_sketch"),
        ),
        allowMissingColumns=True,
    )


def _with_workers_needed(rows: DataFrame, goals: Goals) -> DataFrame:
    span = (f.unix_millis("last_at") - f.unix_millis("first_at")) / 1000
    rows = rows.withColumns({
        "workers": f.hll_sketch_estimate("worker_sketch"),
        "seconds": f.greatest(f.lit(60.0), span),
        "service_ms": ratio("run_ms", "deliveries"),
        "wait_target_ms": f.lit(goals.wait_ms),
    })  # fmt: skip
    rows = rows.withColumn("arrivals_per_second", f.col("arrivals") / f.col("seconds"))
    rows = rows.withColumn("load", f.col("arrivals_per_second") * f.col("service_ms") / 1000)
    busy = f.col("run_ms") / 1000 / f.col("seconds")
    return rows.withColumns({
        "utilisation": f.try_divide(busy, f.col("workers").cast("double")),
        "workers_needed": workers_needed("load", "service_ms", goals.wait_ms),
    })  # fmt: skip


def workers_needed(load: str, service_ms: str, wait_ms: int) -> Column:
    """Returns the fewest servers of an M/M/c queue with a mean wait of at most `wait_ms`; null if the load is unknown.

    Erlang B is computed from one server up, B(c) = a B(c-1) / (c + a B(c-1)); Erlang C follows from it,
    C = B / (1 - (a/c)(1 - B)), and the mean wait is C s / (c - a). Five deviations above the load is always enough.
    """
    most = f"cast(least(ceil({load} + 5 * sqrt({load}) + 10), 100000) as int)"
    blocked = f"{load} * seen.b / (c + {load} * seen.b)"
    wait = f"(next.b / (1 - {load} / c * (1 - next.b))) * {service_ms} / (c - {load})"
    step = f"""transform(array(named_struct('b', {blocked})), next -> named_struct(
        'b', next.b, 'needed', coalesce(seen.needed, if(c > {load} and {wait} <= {wait_ms}, c, null))))[0]"""
    none = "named_struct('b', 1.0D, 'needed', cast(null as int))"
    found = f"aggregate(sequence(1, {most}), {none}, (seen, c) -> {step}, seen -> coalesce(seen.needed, {most}))"
    return f.expr(f"case when {load} is null then null when {load} = 0 then 0 else {found} end").cast("bigint")


THROUGHPUT = GoldTable(GOLD_THROUGHPUT, _throughput)
USAGE = GoldTable(GOLD_USAGE, _usage, _with_run_seconds)
WORKERS = GoldTable(GOLD_WORKERS, _workers, _with_failure_share)
CAPACITY = GoldTable(GOLD_CAPACITY, _capacity, _with_workers_needed)
