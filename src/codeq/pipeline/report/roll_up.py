"""Adds up gold tables on executors, by the functions that make gold, and collects the few rows that result."""

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


def roll_up(table: GoldTable, rows: DataFrame, *keys: str, goals: Goals | None = None) -> list[Row]:
    """Adds up the rows to one row per combination of these keys, and computes the derived columns. Sketches are left
    out: their percentiles are in columns of their own.
    """
    chosen = rows.select(*keys, *table.ways)
    schema = _arrow(chosen.schema)
    found = chosen.mapInArrow(partial(_combined, table, keys, schema=schema), chosen.schema).toArrow().cast(schema)
    rolled_up = table.roll_up(found, *keys, goals=goals)
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
    """Combines batches as they come, so that no more rows are held than result."""
    so_far = schema.empty_table()
    for batch in batches:
        so_far = table.combined(pa.concat_tables([so_far, pa.Table.from_batches([batch]).cast(schema)]), *keys)
    yield from so_far.to_batches()


def _partials(table: GoldTable, schema: pa.Schema, batches: Batches, *, kind: str, steps: Mapping[str, Any]) -> Batches:
    for batch in batches:
        new = pa.Table.from_batches([batch]).cast(schema)
        yield from table.partials(GoldBatch(**{kind: new}, **steps)).to_batches()


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")
