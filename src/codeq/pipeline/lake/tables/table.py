"""Types that describe a table of the lake: its name, its keys, and the meaning of each column."""

from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import types as t


class Merge(StrEnum):
    """How two partial values of a gold column are merged. Each way is associative: the grouping does not matter."""

    SUM = "sum"
    MIN = "earliest"
    MAX = "latest"
    KLL = "sketch of quantiles"
    HLL = "sketch of a count"
    FEW = "the first few by name"


@dataclass(frozen=True)
class Column:
    name: str
    kind: t.DataType
    text: str
    merge: Merge | None = None
    """In gold, None means a key, or a value computed from merged columns."""
    few: int = 0
    """How many values `Merge.FEW` keeps."""


@dataclass(frozen=True)
class Table:
    name: str
    text: str
    keys: tuple[str, ...]
    """The columns that identify a row."""
    partition: str | None
    """The column by which files are split, which they contain too; or `hour`: those of the newest day are split by
    hour, others by day.
    """
    columns: tuple[Column, ...]

    @property
    def schema(self) -> t.StructType:
        """Every column is nullable: Spark writes Parquet files without that constraint."""
        return t.StructType([t.StructField(column.name, column.kind) for column in self.columns])

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


STRING, INT, LONG, DOUBLE, BOOL = t.StringType(), t.IntegerType(), t.LongType(), t.DoubleType(), t.BooleanType()
TIME, DATE, BINARY, STRINGS = t.TimestampType(), t.DateType(), t.BinaryType(), t.ArrayType(t.StringType())
