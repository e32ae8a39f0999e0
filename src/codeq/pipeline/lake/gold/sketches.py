"""Sketches of Apache DataSketches, by which quantiles and distinct counts add up: made, merged and read.

Their bytes are those of Spark's functions `kll_sketch_agg_double` and `hll_sketch_agg`, and of every other library of
DataSketches.
"""

from collections.abc import Collection, Iterable, Sequence

import datasketches
import numpy as np
import numpy.typing as npt

_KLL_K = 200
"""Spark's default: 1.4 % of rank."""
_HLL_LOG2_K = 12
"""Spark's default: 1.6 % of the count."""
_HLL_TYPE = datasketches.tgt_hll_type.HLL_8


def kll_of(values: npt.NDArray[np.float64]) -> bytes:
    """Returns a sketch of the quantiles of these values."""
    sketch = datasketches.kll_doubles_sketch(_KLL_K)
    sketch.update(values)
    return bytes(sketch.serialize())


def kll_merged(sketches: Collection[bytes]) -> bytes:
    """Returns the sketch of all values."""
    if len(sketches) == 1:
        return next(iter(sketches))
    merged = datasketches.kll_doubles_sketch(_KLL_K)
    for sketch in sketches:
        merged.merge(datasketches.kll_doubles_sketch.deserialize(sketch))
    return bytes(merged.serialize())


def kll_quantiles(sketch: bytes, ranks: Sequence[float]) -> list[float] | None:
    """Returns the least values of which at least these shares are no greater; None if the sketch has no values."""
    read = datasketches.kll_doubles_sketch.deserialize(sketch)
    return None if read.is_empty() else [float(value) for value in read.get_quantiles(ranks, True)]  # inclusive


def hll_of(texts: Iterable[str]) -> bytes:
    """Returns a sketch of the number of distinct texts."""
    sketch = datasketches.hll_sketch(_HLL_LOG2_K, _HLL_TYPE)
    for text in texts:
        sketch.update(text)
    return bytes(sketch.serialize_compact())


def hll_merged(sketches: Collection[bytes]) -> bytes:
    """Returns the sketch of the texts of all of them."""
    if len(sketches) == 1:
        return next(iter(sketches))
    merged = datasketches.hll_union(_HLL_LOG2_K)
    for sketch in sketches:
        merged.update(datasketches.hll_sketch.deserialize(sketch))
    return bytes(merged.get_result(_HLL_TYPE).serialize_compact())


def hll_count(sketch: bytes) -> int:
    return int(datasketches.hll_sketch.deserialize(sketch).get_estimate() + 0.5)
