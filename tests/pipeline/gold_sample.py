"""One history with its silver and gold rows, shared by the tests of gold and of the report."""

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from tests.pipeline.histories import Row, arrow, churn, cut, empty, frame
from tests.pipeline.table_comparison import in_parallel

from codeq.pipeline.lake import gold, silver
from codeq.pipeline.lake.gold import Goals, GoldBatch, GoldTable, Target
from codeq.pipeline.lake.tables import SILVER_ATTEMPTS, SILVER_TASKS

SILVER = (SILVER_ATTEMPTS, SILVER_TASKS)
GOALS = Goals(targets={"mail": Target(15_000, 0.9)}, default=Target(40_000, 0.95), wait_ms=2000)


@dataclass(frozen=True)
class GoldSample:
    """One history as one batch, and the same in three batches."""

    events: list[Row]
    attempts: list[Row]
    tasks: list[Row]
    whole: GoldBatch
    parts: list[GoldBatch]
    rows: dict[str, list[Any]]
    """The rows of each gold table, computed from the one batch."""


def make_gold_sample(spark: SparkSession) -> GoldSample:
    history = churn(3, 400)
    cuts = [once(batch) for batch in cut(history, random.Random(2), 3)]
    made = in_parallel({"whole": lambda: batches(spark, [history.events]), "parts": lambda: batches(spark, cuts)})
    [whole] = made["whole"]
    return GoldSample(
        history.events,
        [row.asDict() for row in whole.attempts.where("not is_open").collect()],
        [row.asDict() for row in whole.tasks.collect()],
        whole,
        made["parts"],
        in_parallel({of.table.name: partial(rows_of, of, whole) for of in gold.ALL}),
    )


def rows_of(table: GoldTable, batch: GoldBatch) -> list[Any]:
    none = empty(batch.events.sparkSession, table.table.schema)
    return table.merged(none, table.partials(batch), GOALS).collect()


def once(batch: list[Row]) -> list[Row]:
    return list({(event["shard"], event["seq"]): event for event in batch}.values())


def batches(spark: SparkSession, cuts: list[list[Row]]) -> list[GoldBatch]:
    attempts, tasks = (to_arrow_schema(table.schema, timezone="UTC").empty_table() for table in SILVER)
    made = []
    for rows in cuts:
        attempts, tasks = (
            carry(so_far.filter(pc.field("is_open")), arrow(rows)).cast(so_far.schema)
            for carry, so_far in ((silver.attempts, attempts), (silver.tasks, tasks))
        )
        deliveries, ends = (
            spark.createDataFrame(made_so_far, table.schema)
            for made_so_far, table in ((attempts, SILVER_ATTEMPTS), (tasks, SILVER_TASKS))
        )
        made.append(GoldBatch(frame(spark, rows), deliveries, ends, GOALS))
    return made
