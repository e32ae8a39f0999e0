"""How gold tables grow: partial rows of one batch, and partial rows merged with those that are there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as f

from codeq.pipeline.tables import Column as TableColumn
from codeq.pipeline.tables import Merge, Table


@dataclass(frozen=True)
class Target:
    """What a command promises: this share of its tasks completed within this time."""

    within_ms: int
    objective: float


@dataclass(frozen=True)
class Goals:
    targets: Mapping[str, Target] = field(default_factory=dict)
    """By command."""
    default: Target = Target(within_ms=60_000, objective=0.99)
    """For commands that are not named."""
    wait_ms: int = 1000
    """Mean wait for which capacity is planned."""


@dataclass(frozen=True)
class Batch:
    """What one run has learned: new events, each once, and the rows that silver made of them.

    Open rows may be among them; only closed ones count, so that each counts once, in the run that closed it.
    """

    events: DataFrame
    attempts: DataFrame
    tasks: DataFrame
    goals: Goals = field(default_factory=Goals)

    @property
    def closed_attempts(self) -> DataFrame:
        return self.attempts.where("not is_open")

    @property
    def finished_tasks(self) -> DataFrame:
        """Those that a worker completed or failed. Dead ones count where they die, which may be more than once."""
        return self.tasks.where("not is_open and outcome in ('completed', 'failed')")


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


def count_when(**conditions: str) -> list[Column]:
    """Columns that count the rows for which a condition in SQL holds, named as given."""
    return [f.count_if(f.expr(condition)).alias(name) for name, condition in conditions.items()]


def per_hour(rows: DataFrame, at: str, *keys: str, name: str = "hour") -> GroupedData:
    """The rows by these keys and the hour of a time, with its day beside it."""
    return rows.groupBy(*keys, _start(at, 3600).alias(name), day_of(at).alias("day"))


def minute_of(column: str) -> Column:
    return _start(column, 60)


def day_of(column: str) -> Column:
    """The day in UTC, whatever the session's time zone."""
    return f.expr(f"date_from_unix_date(cast(unix_micros({column}) div 86400000000 as int))")


def share(part: str, whole: str) -> Column:
    return f.try_divide(f.col(part).cast("double"), f.col(whole).cast("double"))


def _start(column: str, seconds: int) -> Column:
    micros = seconds * 1_000_000
    return f.expr(f"timestamp_micros((unix_micros({column}) div {micros}) * {micros})")


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
