"""Computes silver rows with a shuffle of Spark instead of the lake's own partitions, to compare with them."""

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from codeq.pipeline.lake.update import Update
from codeq.pipeline.session import parallelism_of


def silver_by_spark(update: Update, open_rows: DataFrame, events: DataFrame) -> DataFrame:
    schema = to_arrow_schema(open_rows.schema, timezone="UTC")
    partition = f.pmod(f.xxhash64("task_id"), f.lit(parallelism_of(open_rows.sparkSession)))

    def work(open_rows: pa.Table, events: pa.Table) -> pa.Table:
        return update(open_rows, events).cast(schema)

    both = open_rows.groupBy(partition).cogroup(events.groupBy(partition))
    return both.applyInArrow(work, open_rows.schema)
