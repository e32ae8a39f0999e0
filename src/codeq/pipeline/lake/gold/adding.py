"""Adds up rows that have the same keys, column by column.

The order and grouping of rows do not matter, except for sketches of quantiles, which agree within their error.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from codeq.pipeline.lake.gold.sketches import hll_merged, kll_merged
from codeq.pipeline.lake.grouping import Groups, Rows, groups_by, take
from codeq.pipeline.lake.tables import Merge


def added_up(
    rows: Rows, keys: Sequence[str], ways: Mapping[str, Merge], few: Mapping[str, int] | None = None
) -> pa.Table:
    """Returns one row per combination of these keys, with the columns that are merged in these ways. `few` is how many
    values a column keeps that is merged by Merge.FEW.
    """
    groups = groups_by(rows, keys)
    first = groups.first(np.ones(len(rows), bool))
    found = {key: take(rows.column(key), first) for key in keys}
    for name, way in ways.items():
        found[name] = _merged(rows, name, way, groups, few=(few or {}).get(name, 0))
    return pa.table(found)


def _merged(rows: Rows, name: str, way: Merge, groups: Groups, *, few: int) -> pa.Array:
    match way:
        case Merge.SUM:
            return pa.array(groups.total(rows.numbers(name), rows.has(name)))
        case Merge.MIN:
            return _extreme(rows, name, groups.minimum, np.iinfo(np.int64).max)
        case Merge.MAX:
            return _extreme(rows, name, groups.maximum, np.iinfo(np.int64).min)
        case Merge.KLL:
            return pa.array([kll_merged(values) for values in _values(rows, name, groups)], pa.binary())
        case Merge.HLL:
            return pa.array([hll_merged(values) for values in _values(rows, name, groups)], pa.binary())
        case Merge.FEW:
            # The first few of all values are among the first few of each part.
            found = [sorted({one for some in values for one in some})[:few] for values in _values(rows, name, groups)]
            return pa.array(found, pa.list_(pa.string()))


def _extreme(rows: Rows, name: str, of_groups: Callable[[Any], Any], none: int) -> pa.Array:
    found = of_groups(np.where(rows.has(name), rows.numbers(name), none))
    return pa.array(found, mask=found == none).view(rows.column(name).type)


def _values(rows: Rows, name: str, groups: Groups) -> Iterator[list[Any]]:
    """The values of each group that are not null."""
    values = rows.column(name).to_pylist()
    for of_group in groups.split(rows.has(name)):
        yield [values[row] for row in of_group.tolist()]
