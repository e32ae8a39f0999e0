"""Tables of the lake as rows to compare: each as often as it is there, without what may differ."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from codeq.pipeline.lake.tables import Merge, Table

Made = TypeVar("Made")


def at_once(works: Mapping[str, Callable[[], Made]]) -> dict[str, Made]:
    """What each work gives. Small queries are mostly planned, by one thread each: while one is, another runs."""
    with ThreadPoolExecutor(3) as pool:
        made = {name: pool.submit(work) for name, work in works.items()}
        return {name: one.result() for name, one in made.items()}


def counted(rows: DataFrame) -> "Counter[str]":
    return Counter(str(row) for row in rows.collect())


def comparable(rows: DataFrame, table: Table) -> DataFrame:
    """Gold rows without what depends on how batches were cut: sketches of quantiles agree within their error, and so
    do the quantiles read off them. How many values they hold, and the least and the greatest of them, are exact."""
    sketches = [column.name for column in table.columns if column.merge is Merge.KLL]
    quantiles = tuple(f"{name.removesuffix('sketch')}p" for name in sketches)
    kept = [name for name in table.names if name not in sketches and not name.startswith(quantiles or "\0")]
    exact = []
    for name in sketches:
        size = f.kll_sketch_get_n_double(name)
        ends = [f.when(size > 0, f.kll_sketch_get_quantile_double(name, f.lit(rank))) for rank in (0.0, 1.0)]
        exact += [size, *ends]
    return rows.select(*kept, *exact)
