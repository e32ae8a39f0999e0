"""How a table of the lake is described: its name, its keys, and what each column means."""

from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import types as t


class Merge(StrEnum):
    """How two partial values of a gold column become one. Each way is associative, so any grouping gives the same."""

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
    """For gold: None means a key, or a value computed from the merged ones."""
    few: int = 0
    """How many values `Merge.FEW` keeps."""


@dataclass(frozen=True)
class Table:
    name: str
    text: str
    keys: tuple[str, ...]
    """What tells two rows apart."""
    partition: str | None
    """The column by which its files are split. It is kept in the files too."""
    columns: tuple[Column, ...]

    @property
    def schema(self) -> t.StructType:
        """Every column may be null here: Parquet files written by Spark promise no more."""
        return t.StructType([t.StructField(column.name, column.kind) for column in self.columns])

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


STRING, INT, LONG, DOUBLE, BOOL = t.StringType(), t.IntegerType(), t.LongType(), t.DoubleType(), t.BooleanType()
TIME, DATE, BINARY, STRINGS = t.TimestampType(), t.DateType(), t.BinaryType(), t.ArrayType(t.StringType())
