"""Merges partial rows of a batch into the rows of a gold table."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from codeq.pipeline.lake.gold.batch import Goals, GoldBatch
from codeq.pipeline.lake.tables import Column as TableColumn
from codeq.pipeline.lake.tables import Merge, Table


def _unchanged(rows: DataFrame, goals: Goals) -> DataFrame:  # noqa: ARG001
    return rows


@dataclass(frozen=True)
class GoldTable:
    """How a gold table is computed."""

    table: Table
    partials: Callable[[GoldBatch], DataFrame]
    """Computes the partial rows of a batch: keys, day, and the columns that add up. A key may occur more than once."""
    derive: Callable[[DataFrame, Goals], DataFrame] = _unchanged
    """Adds the columns that are computed from merged columns."""

    def file_key(self, newest_day: str) -> Column:
        """Returns the file that a row belongs to: its day; or, in tables that are split by the hour, its hour if that
        is of the newest day. A run every minute then rewrites an hour instead of a day.
        """
        day = f.col("day").cast("string")
        if self.table.partition != "hour":
            return day
        start = f.col("minute" if "minute" in self.table.keys else "start")
        number = f.floor(f.unix_seconds(start) / 3600) % 24
        hour = f.concat(day, f.lit("T"), f.lpad(number.cast("string"), 2, "0"))
        is_hourly = f.col("grain") == "hour" if "grain" in self.table.keys else f.lit(True)
        return f.when(is_hourly & (day >= newest_day), hour).otherwise(day)

    def merged(self, existing: DataFrame, partials: DataFrame, goals: Goals | None = None) -> DataFrame:
        """Merges partial rows into existing rows, to one row per key. The order and grouping of merges do not matter,
        except for sketches of quantiles, which agree within their error.
        """
        adding = [column.name for column in self.table.columns if column.merge]
        keys = list(dict.fromkeys([*self.table.keys, "day"]))
        rows = existing.select(*keys, *adding).unionByName(partials, allowMissingColumns=True)
        return self.roll_up(rows, *keys, goals=goals).select(
            *(f.col(column.name).cast(column.kind).alias(column.name) for column in self.table.columns)
        )

    def roll_up(self, rows: DataFrame, *keys: str, goals: Goals | None = None) -> DataFrame:
        """Adds up the rows to one row per combination of these keys, and computes the derived columns."""
        adding = {column.name: column for column in self.table.columns if column.merge}
        summed = rows.groupBy(*keys).agg(*(_merge(column).alias(name) for name, column in adding.items()))
        return self.derive(summed, goals or Goals())


def number_when(**conditions: str) -> list[Column]:
    """Returns a column for each condition in SQL: `number` if it holds, else 0."""
    return [f.expr(f"if({condition}, number, 0) as `{name}`") for name, condition in conditions.items()]


def ratio(part: str, whole: str) -> Column:
    return f.try_divide(f.col(part).cast("double"), f.col(whole).cast("double"))


def _merge(column: TableColumn) -> Column:
    name = column.name
    match column.merge:
        case Merge.SUM:
            return f.coalesce(f.sum(name), f.lit(0))
        case Merge.MIN:
            return f.min(name)
        case Merge.MAX:
            return f.max(name)
        case Merge.KLL:
            return f.kll_merge_agg_double(name)
        case Merge.HLL:
            return f.hll_union_agg(name)
        case Merge.FEW:
            # The first few of all values are among the first few of each part.
            return f.slice(f.array_sort(f.array_distinct(f.flatten(f.collect_list(name)))), 1, column.few)
    raise ValueError(f"{name} does not add up")
