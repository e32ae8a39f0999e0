"""Groups rows of Arrow tables by key, in one pass over numbers.

Most questions ask for one row of each group: the first or the last for which something is true. So groups return row
numbers, and only then are texts and times looked up, once for each group instead of each row.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NO_ROW = -1
"""The row number of a group that has no such row."""

_VALUE_BITS = 40
"""Enough for lease tokens, and leaves room for the numbers of eight million groups."""
_IDS = frozenset({"task_id", "trace_id"})


def is_repetitive(field: pa.Field) -> bool:
    """Whether the column holds texts with few distinct values: all but ids."""
    return field.type == pa.string() and field.name not in _IDS


def dictionary_encoded(table: pa.Table) -> pa.Table:
    """Returns the table with its repetitive texts dictionary-encoded."""
    for index, field in enumerate(table.schema):
        if is_repetitive(field):
            table = table.set_column(index, field.name, table.column(index).dictionary_encode())
    return table


class Rows:
    """Columns of a table as numbers and masks. Texts are compared once per distinct value, not per row."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table.unify_dictionaries().combine_chunks()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> pa.Array:
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def has(self, name: str) -> Mask:
        """Where the column is not null."""
        return np.asarray(self.column(name).is_valid().to_numpy(zero_copy_only=False))

    def numbers(self, name: str) -> Numbers:
        """The column as numbers: times in microseconds, true as 1, null as 0."""
        column = self.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.view(pa.int64())
        return np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy())

    def is_in(self, name: str, *values: str) -> Mask:
        """Where the text is one of these values."""
        return self.by_text(name, lambda text: text in values)

    def by_text(self, name: str, value_of: Callable[[str | None], Any]) -> npt.NDArray[Any]:
        """What `value_of` answers for the text of each row. It is called once per distinct text, and for null."""
        column = self.column(name)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        found = [value_of(text) for text in (*column.dictionary.to_pylist(), None)]
        # NumPy's own texts all take as much room as the longest, and lose zeros at their end.
        values = np.array(found, object if isinstance(found[-1], str) else None)
        return np.asarray(values[column.indices.fill_null(len(values) - 1).to_numpy()])


class Groups:
    """The group of each row. Groups are numbered in the order of their first rows."""

    def __init__(self, keys: pa.Array) -> None:
        numbered = keys.dictionary_encode()
        self.of_rows: Numbers = numbered.indices.to_numpy().astype(np.int64)
        self.count = len(numbered.dictionary)

    def first(self, where: Mask) -> Numbers:
        """The first row of each group in the mask, or NO_ROW."""
        return self._last_of(np.flatnonzero(where)[::-1])

    def last(self, where: Mask) -> Numbers:
        """The last row of each group in the mask, or NO_ROW."""
        return self._last_of(np.flatnonzero(where))

    def has(self, where: Mask) -> Mask:
        """Whether any row of the group is in the mask."""
        return np.bincount(self.of_rows[where], minlength=self.count) > 0

    def total(self, values: Numbers, where: Mask) -> Numbers:
        sums = np.zeros(self.count, np.int64)
        np.add.at(sums, self.of_rows[where], values[where])
        return sums

    def split(self, where: Mask) -> list[Numbers]:
        """The rows of each group that are in the mask."""
        rows = np.flatnonzero(where)
        ends = np.cumsum(np.bincount(self.of_rows[rows], minlength=self.count))
        ordered = rows[np.argsort(self.of_rows[rows], kind="stable")]
        return np.split(ordered, ends[:-1]) if self.count else []

    def minimum(self, values: Numbers) -> Numbers:
        found = np.full(self.count, np.iinfo(np.int64).max)
        np.minimum.at(found, self.of_rows, values)
        return found

    def maximum(self, values: Numbers) -> Numbers:
        found = np.full(self.count, np.iinfo(np.int64).min)
        np.maximum.at(found, self.of_rows, values)
        return found

    def latest_before(self, where: Mask) -> Numbers:
        """For each row, the latest row before it of the same group that is in the mask, or NO_ROW."""
        places = np.where(where[self._order], np.arange(len(self._order)), NO_ROW)
        latest = _shifted(np.maximum.accumulate(places))
        found = np.full(len(latest), NO_ROW)
        found[self._order] = np.where(latest >= self._starts, self._order[latest], NO_ROW)
        return found

    def highest_before(self, values: Numbers) -> Numbers:
        """For each row, the highest value of the rows before it of the same group, or NO_ROW. Values are at least 0."""
        base = self.of_rows[self._order] << _VALUE_BITS
        highest = _shifted(np.maximum.accumulate(base + np.minimum(values[self._order], (1 << _VALUE_BITS) - 1)))
        found = np.full(len(highest), NO_ROW)
        found[self._order] = np.where(np.arange(len(highest)) > self._starts, highest - base, NO_ROW)
        return found

    @cached_property
    def _order(self) -> Numbers:
        """The rows, group by group."""
        return np.argsort(self.of_rows, kind="stable")

    @cached_property
    def _starts(self) -> Numbers:
        """For each place in that order, the place at which its group starts."""
        groups = self.of_rows[self._order]
        is_start = np.append(True, groups[1:] != groups[:-1])[: len(groups)]
        return np.maximum.accumulate(np.where(is_start, np.arange(len(groups)), 0))

    def _last_of(self, rows: Numbers) -> Numbers:
        found = np.full(self.count, NO_ROW)
        found[self.of_rows[rows]] = rows  # NumPy keeps the last of several values for the same group
        return found


def groups_by(rows: Rows, names: Sequence[str]) -> Groups:
    """Groups the rows that are equal in all these columns; null equals null."""
    numbers = np.zeros(len(rows), np.int64)
    for name in names:
        column = rows.column(name)
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        count = len(encoded.dictionary) + 1
        numbers = numbers * count + encoded.indices.fill_null(count - 1).to_numpy()
        numbers = pa.array(numbers).dictionary_encode().indices.to_numpy().astype(np.int64)  # small again
    return Groups(pa.array(numbers))


def _shifted(values: Numbers) -> Numbers:
    return np.append(NO_ROW, values)[: len(values)]


def take(column: pa.Array, rows: Numbers) -> pa.Array:
    """The values of these rows; null for NO_ROW."""
    return column.take(pa.array(rows, mask=rows == NO_ROW))


def take_numbers(values: Numbers, rows: Numbers) -> Numbers:
    """The values of these rows; 0 for NO_ROW."""
    return np.where(rows == NO_ROW, 0, values[rows]) if len(values) else np.zeros(len(rows), np.int64)


def texts_by_number(texts: Sequence[str], numbers: Numbers) -> pa.Array:
    """A column of texts, each given by its number in the list."""
    return pa.array(texts).take(pa.array(numbers))


def elapsed_ms(start: pa.Array, end: pa.Array) -> pa.Array:
    """Whole milliseconds between two times; null if one of them is null."""
    return pc.subtract(_milliseconds(end), _milliseconds(start))


def _milliseconds(at: pa.Array) -> pa.Array:
    return at.cast(pa.timestamp("ms", "UTC"), safe=False).view(pa.int64())


def null_unless(mask: Mask, column: pa.Array) -> pa.Array:
    """The column, with null where the mask is false."""
    return pc.if_else(pa.array(mask), column, pa.scalar(None, column.type))
