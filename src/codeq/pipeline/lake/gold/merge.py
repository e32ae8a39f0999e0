"""Merges partial rows of a batch into the rows of a gold table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from codeq.pipeline.lake.gold.adding import added_up
from codeq.pipeline.lake.gold.batch import Goals, GoldBatch
from codeq.pipeline.lake.grouping import Mask, Rows, texts_by_number
from codeq.pipeline.lake.tables import Merge, Table

Floats = npt.NDArray[np.float64]
Columns = Mapping[str, pa.Array]


def _none(rows: Rows, goals: Goals) -> Columns:  # noqa: ARG001
    return {}


@dataclass(frozen=True)
class GoldTable:
    """How a gold table is computed."""

    table: Table
    sums: Callable[[GoldBatch], Iterable[pa.Table]]
    """Computes the partial rows of a batch: keys, day, and some of the columns that add up. A key may occur more than
    once.
    """
    derive: Callable[[Rows, Goals], Columns] = _none
    """Computes columns from merged ones."""

    def partials(self, batch: GoldBatch) -> pa.Table:
        """Returns what the rows of the batch add to the table, one row per key, without derived columns."""
        parts = [self.conformed(part) for part in self.sums(batch)]
        return self.combined(pa.concat_tables(parts), *self.row_keys)

    def conformed(self, rows: pa.Table) -> pa.Table:
        """Returns the rows with the columns of partial rows; those that they lack are null."""
        return _conformed(rows, self.partial_schema)

    def combined(self, partials: pa.Table, *keys: str) -> pa.Table:
        """Adds up partial rows to partial rows with these keys."""
        return self._added_up(partials, keys).cast(pa.schema([
            partials.schema.field(name) for name in (*keys, *self.ways)
        ]))  # fmt: skip

    def merged(self, existing: pa.Table, partials: pa.Table, goals: Goals | None = None) -> pa.Table:
        """Merges partial rows into existing rows, to one row per key."""
        return self.completed(pa.concat_tables([self.conformed(existing), self.conformed(partials)]), goals)

    def completed(self, partials: pa.Table, goals: Goals | None = None) -> pa.Table:
        """Merges partial rows to rows of the table, one per key and in the order of the keys."""
        rows = self.roll_up(partials, *self.row_keys, goals=goals)
        return _conformed(rows, self.schema).sort_by([(key, "ascending") for key in self.table.keys])

    def roll_up(self, rows: pa.Table, *keys: str, goals: Goals | None = None) -> pa.Table:
        """Adds up the rows to one row per combination of these keys, and computes the derived columns."""
        summed = self._added_up(rows, keys)
        for name, column in self.derive(Rows(summed), goals or Goals()).items():
            summed = summed.append_column(name, column)
        return summed

    def file_keys(self, rows: pa.Table, newest_day: str) -> pa.Array:
        """Returns the file that each row belongs to: its day; or, in tables that are split by the hour, its hour if
        that is of the newest day. A run every minute then rewrites an hour instead of a day.
        """
        days = rows["day"].combine_chunks().cast(pa.string())
        if self.table.partition != "hour":
            return days
        known = Rows(rows)
        hours = known.numbers("minute" if "minute" in self.table.keys else "start") // 3_600_000_000 % 24
        is_hourly = pc.greater_equal(days, newest_day)
        if "grain" in self.table.keys:
            is_hourly = pc.and_(is_hourly, pa.array(known.is_in("grain", "hour")))
        of_hours = pc.binary_join_element_wise(days, texts_by_number([f"T{hour:02d}" for hour in range(24)], hours), "")
        return pc.if_else(is_hourly, of_hours, days)

    @property
    def row_keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.table.keys, "day"]))

    @property
    def ways(self) -> dict[str, Merge]:
        """The columns that add up, and how."""
        return {column.name: column.merge for column in self.table.columns if column.merge}

    @cached_property
    def schema(self) -> pa.Schema:
        return to_arrow_schema(self.table.schema, timezone="UTC")

    @cached_property
    def partial_schema(self) -> pa.Schema:
        """The columns of partial rows: keys, day, and those that add up."""
        return pa.schema([self.schema.field(name) for name in (*self.row_keys, *self.ways)])

    def _added_up(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        few = {column.name: column.few for column in self.table.columns}
        return added_up(Rows(rows), keys, self.ways, few)


def _conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    known = set(rows.column_names)
    return pa.table(
        [
            rows[field.name].cast(field.type) if field.name in known else pa.nulls(len(rows), field.type)
            for field in schema
        ],
        schema=schema,
    )


def number_when(sums: Rows, **conditions: Mask) -> dict[str, pa.Array]:
    """Returns a column for each condition: `number` where it holds, else 0."""
    return {name: of_rows(sums, "number", where) for name, where in conditions.items()}


def of_rows(sums: Rows, name: str, where: Mask) -> pa.Array:
    """The numbers of a column where the condition holds, else 0."""
    return pa.array(np.where(where, sums.numbers(name), 0))


def divided(part: Floats, whole: Floats) -> Floats:
    """The quotients; not a number where the divisor is 0, or either is not a number."""
    return np.asarray(np.divide(part, whole, out=np.full(len(part), np.nan), where=whole != 0))


def ratio(rows: Rows, part: str, whole: str) -> Floats:
    return divided(rows.numbers(part).astype(np.float64), rows.numbers(whole).astype(np.float64))


def null_for_nan(values: Floats) -> pa.Array:
    return pa.array(values, mask=np.isnan(values))
