"""Compares tables of the lake as multisets of rows, without values that may differ."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from codeq.pipeline.lake.tables import Merge, Table

Made = TypeVar("Made")


def in_parallel(works: Mapping[str, Callable[[], Made]]) -> dict[str, Made]:
    """Returns the result of each function by name. Small queries mostly take planning, by one thread each."""
    with ThreadPoolExecutor(3) as pool:
        made = {name: pool.submit(work) for name, work in works.items()}
        return {name: one.result() for name, one in made.items()}


def counted(rows: DataFrame) -> "Counter[str]":
    return Counter(str(row) for row in rows.collect())


def comparable(rows: DataFrame, table: Table) -> DataFrame:
    """Drops the values that depend on how batches were cut: sketches of quantiles, and the quantiles read from them,
    agree only within their error. Their number of values, minimum and maximum are exact.
    """
    sketches = [column.name for column in table.columns if column.merge is Merge.KLL]
    quantiles = tuple(f"{name.removesuffix('sketch')}p" for name in sketches)
    kept = [name for name in table.names if name not in sketches and not name.startswith(quantiles or "\0")]
    exact = []
    for name in sketches:
        size = f.kll_sketch_get_n_double(name)
        ends = [f.when(size > 0, f.kll_sketch_get_quantile_double(name, f.lit(rank))) for rank in (0.0, 1.0)]
        exact += [size, *ends]
    return rows.select(*kept, *exact)
