"""Gold tables about failures: retries and dead letters."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from codeq.pipeline.lake.gold.batch import Goals, GoldBatch, day_of
from codeq.pipeline.lake.gold.merge import GoldTable, number_when
from codeq.pipeline.lake.tables import GOLD_DEAD_LETTERS, GOLD_RETRIES

_SIGNATURE_CHARS_MAX = 200

_PATTERNS = (
    (r"(?s)[\r\n].*", ""),
    (r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+", "<url>"),
    (r"[\w.+-]+@[\w-]+\.[\w.-]+", "<mail>"),
    (r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\"[^\"]*\"|`[^`]*`|(?<!\w)'[^']*'(?!\w)", "<text>"),
    (r"(?<![\w<])(?:[A-Za-z]:)?(?:[\\/][\w.@%+~-]+)+[\\/]?", "<path>"),
    (r"(?i)\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", "<hex>"),
    (r"(?<![A-Za-z_])[+-]?\d+(?:[.,:]\d+)*", "<n>"),
    (r"\s+", " "),
)
"""Applied in this order: quotes may contain paths, paths contain numbers, and hexadecimal numbers contain decimals."""


def signature(error: Column) -> Column:
    """Returns the part of an error that is the same for many tasks: the first line, with numbers, ids, quotes and paths
    replaced.
    """
    text = f.trim(error)
    for pattern, replacement in _PATTERNS:
        text = f.regexp_replace(text, pattern, replacement)
    return f.coalesce(f.nullif(f.substring(f.trim(text), 1, _SIGNATURE_CHARS_MAX), f.lit("")), f.lit("unknown"))


def _retries(batch: GoldBatch) -> DataFrame:
    keys = ("tenant", "command", "hour", "day")
    ended = batch.delivery_sums.select(
        *keys,
        f.col("number").alias("deliveries"),
        *number_when(
            completes="ended_by = 'complete'",
            fails="ended_by = 'fail'",
            nacks="ended_by = 'nack'",
            expiries="ended_by = 'expire'",
            abandons="ended_by = 'abandon'",
            cancels="ended_by = 'cancel'",
            deaths="is_dead",
        ),
    )
    took = batch.task_sums.select(
        *keys,
        *number_when(
            **{f"took_{number}": f"took = {number}" for number in range(1, 6)},
            took_6_to_10="took between 6 and 10",
            took_more="took > 10",
        ),
    )
    return ended.unionByName(took, allowMissingColumns=True)


def _with_retry_share(rows: DataFrame, goals: Goals) -> DataFrame:  # noqa: ARG001
    retried = f.col("nacks") + f.col("expiries") + f.col("abandons")
    return rows.withColumn("retry_share", f.try_divide(retried.cast("double"), f.col("deliveries").cast("double")))


def _dead_letters(batch: GoldBatch) -> DataFrame:
    dead = batch.closed_attempts.where("is_dead").withColumn("signature", signature(f.col("error")))
    few = {
        "commands": "command", "workers": "worker_id", "task_ids": "task_id", "errors": "error",
    }  # fmt: skip
    limits = {column.name: column.few for column in GOLD_DEAD_LETTERS.columns}
    return dead.groupBy("tenant", "signature", day_of("ended_at").alias("day")).agg(
        f.count("*").alias("deaths"),
        f.min("ended_at").alias("first_at"),
        f.max("ended_at").alias("last_at"),
        *(f.slice(f.array_sort(f.collect_set(of)), 1, limits[name]).alias(name) for name, of in few.items()),
    )


RETRIES = GoldTable(GOLD_RETRIES, _retries, _with_retry_share)
DEAD_LETTERS = GoldTable(GOLD_DEAD_LETTERS, _dead_letters)
