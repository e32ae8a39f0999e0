"""Adds up gold tables on executors, by the functions that make gold, and collects the rows that result."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from codeq.pipeline.lake.gold import Goals, GoldBatch, GoldTable

Row = dict[str, Any]
Batches = Iterator[pa.RecordBatch]


class NewRows(NamedTuple):
    """Events, and rows of silver that they closed, as Spark reads them."""

    events: DataFrame
    attempts: DataFrame
    tasks: DataFrame


class Most(NamedTuple):
    """The rows that are shown where there may be very many: those with the highest values of a column."""

    by: str
    rows: int


def roll_up(
    table: GoldTable, rows: DataFrame, *keys: str, goals: Goals | None = None, most: Most | None = None
) -> list[Row]:
    """Adds up the rows to one row per combination of these keys, and computes the derived columns. Sketches are left
    out: their percentiles are in columns of their own.
    """
    chosen = rows.select(*keys, *table.ways)
    schema = _arrow(chosen.schema)
    found = chosen.mapInArrow(partial(_combined, table, keys, schema=schema), chosen.schema).toArrow().cast(schema)
    rolled_up = table.roll_up(found, *keys, goals=goals)
    if most is not None:
        order = [(most.by, "descending"), *((key, "ascending") for key in keys)]
        rolled_up = rolled_up.sort_by(order).slice(0, most.rows)
    return rolled_up.drop_columns([name for name in rolled_up.column_names if name.endswith("_sketch")]).to_pylist()  # type: ignore[no-any-return]


def partials(table: GoldTable, new: NewRows, *, minute_s: int, hour_s: int) -> DataFrame:
    """Computes rows of the table from new rows, with steps of so many seconds. A key may occur more than once."""
    schema = from_arrow_schema(table.partial_schema)
    steps = {"minute_s": minute_s, "hour_s": hour_s}
    return reduce(DataFrame.union, [
        rows.mapInArrow(partial(_partials, table, _arrow(rows.schema), kind=kind, steps=steps), schema)
        for kind, rows in zip(NewRows._fields, new, strict=True)
    ])  # fmt: skip


def _combined(table: GoldTable, keys: Sequence[str], batches: Batches, *, schema: pa.Schema) -> Batches:
    """Combines batches once they have as many rows as have resulted so far: so that no more than twice the rows that
    result are held, and none is added up again and again.
    """
    so_far, waiting, rows = schema.empty_table(), list[pa.Table](), 0
    for batch in batches:
        waiting.append(pa.Table.from_batches([batch]).cast(schema))
        rows += len(batch)
        if rows >= len(so_far):
            so_far, rows = table.combined(pa.concat_tables([so_far, *waiting]), *keys), 0
            waiting.clear()
    if waiting:
        so_far = table.combined(pa.concat_tables([so_far, *waiting]), *keys)
    yield from so_far.to_batches()


def _partials(table: GoldTable, schema: pa.Schema, batches: Batches, *, kind: str, steps: Mapping[str, Any]) -> Batches:
    for batch in batches:
        new = pa.Table.from_batches([batch]).cast(schema)
        yield from table.partials(GoldBatch(**{kind: new}, **steps)).to_batches()


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")
