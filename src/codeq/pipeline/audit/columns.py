"""The columns that rules compare, in Spark and in Arrow. So each rule is written once, and runs in both.

Columns of either have Python's operators and `isin`; what differs is here. Comparisons with null are null in both, and
a rule that is null is not broken. `isin` is false for null in Arrow, and null in Spark: rules negate it only where the
column has a value.
"""

from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f


class Columns(Protocol):
    """The columns of a view, by name as attributes."""

    def __getattr__(self, name: str) -> Any: ...

    def always(self) -> Any:
        """True in every row."""

    def if_else(self, condition: Any, yes: Any, no: Any) -> Any: ...

    def either(self, column: Any, default: Any) -> Any:
        """The column, or the default where it is null."""

    def is_null(self, column: Any) -> Any: ...

    def text(self, *parts: Any) -> Any:
        """The parts as one text, without those that are null."""


class SparkColumns:
    def __getattr__(self, name: str) -> Any:
        return f.col(name)

    def always(self) -> Any:
        return f.lit(True)

    def if_else(self, condition: Any, yes: Any, no: Any) -> Any:
        return f.when(condition, yes).otherwise(no)

    def either(self, column: Any, default: Any) -> Any:
        return f.coalesce(column, f.lit(default))

    def is_null(self, column: Any) -> Any:
        return column.isNull()

    def text(self, *parts: Any) -> Any:
        return f.concat_ws("", *(f.lit(part) if isinstance(part, str) else part.cast("string") for part in parts))


class ArrowColumns:
    def __getattr__(self, name: str) -> Any:
        return pc.field(name)

    def always(self) -> Any:
        return pc.scalar(True)

    def if_else(self, condition: Any, yes: Any, no: Any) -> Any:
        return pc.if_else(condition, yes, no)

    def either(self, column: Any, default: Any) -> Any:
        return pc.coalesce(column, default)

    def is_null(self, column: Any) -> Any:
        return column.is_null()

    def text(self, *parts: Any) -> Any:
        texts = (pc.scalar(part) if isinstance(part, str) else part.cast(pa.string()) for part in parts)
        return pc.binary_join_element_wise(*texts, pc.scalar(""), null_handling="replace")


SPARK, ARROW = SparkColumns(), ArrowColumns()
