"""How gold tables grow: partial rows of one batch, and partial rows merged with those that are there."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from codeq.pipeline.lake.gold.batch import Batch, Goals
from codeq.pipeline.lake.tables import Column as TableColumn
from codeq.pipeline.lake.tables import Merge, Table


def _as_it_is(rows: DataFrame, goals: Goals) -> DataFrame:  # noqa: ARG001
    return rows


@dataclass(frozen=True)
class Gold:
    table: Table
    partials: Callable[[Batch], DataFrame]
    """What a batch adds: the keys, the day, and the columns that add up. A key may be there more than once."""
    derive: Callable[[DataFrame, Goals], DataFrame] = _as_it_is
    """Adds the columns that are computed from the merged ones."""

    def merged(self, existing: DataFrame, partials: DataFrame, goals: Goals | None = None) -> DataFrame:
        """Rows of the table with partial rows added in: one row per key. Any grouping of merges gives the same rows,
        but for sketches of quantiles, which then agree within their error."""
        adding = [column.name for column in self.table.columns if column.merge]
        keys = list(dict.fromkeys([*self.table.keys, "day"]))
        rows = existing.select(*keys, *adding).unionByName(partials, allowMissingColumns=True)
        return self.rolled_up(rows, *keys, goals=goals).select(
            *(f.col(column.name).cast(column.kind).alias(column.name) for column in self.table.columns)
        )

    def rolled_up(self, rows: DataFrame, *keys: str, goals: Goals | None = None) -> DataFrame:
        """The rows added up over all other keys than these, with what is computed from the sums."""
        adding = {column.name: column for column in self.table.columns if column.merge}
        summed = rows.groupBy(*keys).agg(*(_merge(column).alias(name) for name, column in adding.items()))
        return self.derive(summed, goals or Goals())


def number_when(**conditions: str) -> list[Column]:
    """Columns with the number of rows that a row of sums stands for, if a condition in SQL holds, named as given."""
    return [f.expr(f"if({condition}, number, 0) as `{name}`") for name, condition in conditions.items()]


def share(part: str, whole: str) -> Column:
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
            # The least few of the least few of each part are the least few of all.
            return f.slice(f.array_sort(f.array_distinct(f.flatten(f.collect_list(name)))), 1, column.few)
    raise ValueError(f"{name} does not add up")
