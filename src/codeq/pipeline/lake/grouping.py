"""Rows of Arrow tables taken together by what they belong to, in one pass over numbers.

What is looked for is mostly one row of each group: the first or the last that something is true of. So groups answer
with the places of rows, and only then are texts and times taken from there, once for each group instead of each row.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NOWHERE = -1
"""In place of a row, where a group has none."""

_IDS = frozenset({"task_id", "trace_id"})


def repeats(field: pa.Field) -> bool:
    """Whether it holds texts of which there are few: all but ids."""
    return field.type == pa.string() and field.name not in _IDS


def encoded(table: pa.Table) -> pa.Table:
    """The table with every text that repeats as a number and a list of texts."""
    for place, field in enumerate(table.schema):
        if repeats(field):
            table = table.set_column(place, field.name, table.column(place).dictionary_encode())
    return table


class Rows:
    """Columns of a table, as numbers and masks. Texts are compared once for each that there is, not for each row."""

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
        """Times are microseconds, truth is 1, and null is 0."""
        column = self.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.view(pa.int64())
        return np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy())

    def is_in(self, name: str, *values: str) -> Mask:
        """Where a text is one of these."""
        column = self.column(name)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        wanted = np.array([*(text in values for text in column.dictionary.to_pylist()), False])
        return np.asarray(wanted[column.indices.fill_null(len(wanted) - 1).to_numpy()])


class Groups:
    """Rows by the group that each belongs to. Groups are numbered in the order of their first rows."""

    def __init__(self, keys: pa.Array) -> None:
        numbered = keys.dictionary_encode()
        self.of_rows: Numbers = numbered.indices.to_numpy().astype(np.int64)
        self.count = len(numbered.dictionary)

    def first(self, where: Mask) -> Numbers:
        """For each group its first row that the mask has, or NOWHERE."""
        return self._placed(np.flatnonzero(where)[::-1])

    def last(self, where: Mask) -> Numbers:
        return self._placed(np.flatnonzero(where))

    def has(self, where: Mask) -> Mask:
        """Whether the mask has any row of the group."""
        return np.bincount(self.of_rows[where], minlength=self.count) > 0

    def total(self, values: Numbers, where: Mask) -> Numbers:
        sums = np.zeros(self.count, np.int64)
        np.add.at(sums, self.of_rows[where], values[where])
        return sums

    def least(self, values: Numbers) -> Numbers:
        found = np.full(self.count, np.iinfo(np.int64).max)
        np.minimum.at(found, self.of_rows, values)
        return found

    def greatest(self, values: Numbers) -> Numbers:
        found = np.full(self.count, np.iinfo(np.int64).min)
        np.maximum.at(found, self.of_rows, values)
        return found

    def _placed(self, rows: Numbers) -> Numbers:
        places = np.full(self.count, NOWHERE)
        places[self.of_rows[rows]] = rows  # of several rows of a group the one that comes last is kept
        return places


def taken(column: pa.Array, places: Numbers) -> pa.Array:
    """The values at these places; null for NOWHERE."""
    return column.take(pa.array(places, mask=places == NOWHERE))


def value_at(values: Numbers, places: Numbers) -> Numbers:
    """The same for numbers; 0 for NOWHERE."""
    return np.where(places == NOWHERE, 0, values[places]) if len(values) else np.zeros(len(places), np.int64)


def one_of(texts: Sequence[str], which: Numbers) -> pa.Array:
    """A column of a few texts, by their numbers."""
    return pa.array(texts).take(pa.array(which))


def elapsed_ms(start: pa.Array, end: pa.Array) -> pa.Array:
    """Whole milliseconds from one time to another; null where one of them is."""
    return pc.subtract(_milliseconds(end), _milliseconds(start))


def _milliseconds(at: pa.Array) -> pa.Array:
    return at.cast(pa.timestamp("ms", "UTC"), safe=False).view(pa.int64())


def kept(mask: Mask, column: pa.Array) -> pa.Array:
    """The column, null where the mask is not."""
    return pc.if_else(pa.array(mask), column, pa.scalar(None, column.type))
