"""Arithmetic on offsets: where to start, how far to go, and how to share the way among Spark's tasks.

An offset is the number of the next event to read. Offsets of all shards are a dictionary with text for keys, because
Spark keeps them as JSON.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from codeq.pipeline.client import Span

EARLIEST, LATEST = "earliest", "latest"
EVENTS_PER_PARTITION_MAX = 500_000
"""A task that reads more than this is better split: it could be lost late, and others would wait for it."""

Place = str | dict[int, int]
"""`earliest`, `latest`, or an offset by shard; there -2 is the earliest and -1 the latest."""
Offsets = dict[str, int]


class Stretch(NamedTuple):
    """Events `start` to `end - 1` of a shard."""

    shard: int
    start: int
    end: int


def resolve(place: Place, spans: Mapping[int, Span]) -> Offsets:
    """Offsets of all shards. A shard that is not named starts at its first event."""
    offsets = {}
    for shard, span in spans.items():
        wanted = place.get(shard, -2) if isinstance(place, dict) else -1 if place == LATEST else -2
        offsets[str(shard)] = {-1: span.end, -2: span.first}.get(wanted, wanted)
    return offsets


def capped(start: Offsets, end: Offsets, events_max: int) -> Offsets:
    """An end that is at most `events_max` events away, shared among the shards by what each has."""
    lags = {shard: max(0, offset - start.get(shard, 1)) for shard, offset in end.items()}
    total = sum(lags.values())
    if total <= events_max:
        return end
    shares = {shard: lag * events_max // total for shard, lag in lags.items()}
    left = events_max - sum(shares.values())
    for shard in sorted(lags, key=lambda shard: shares[shard] - lags[shard]):  # what rounding left, to the longest
        more = min(left, lags[shard] - shares[shard], 1)
        shares[shard] += more
        left -= more
    return {shard: start.get(shard, 1) + shares[shard] for shard in end}


def split(start: Offsets, end: Offsets, *, partitions_min: int) -> list[Stretch]:
    """The way from `start` to `end` in pieces of much the same length."""
    whole = [Stretch(int(shard), start.get(shard, 1), offset) for shard, offset in end.items()]
    whole = [stretch for stretch in whole if stretch.start < stretch.end]
    total = sum(stretch.end - stretch.start for stretch in whole)
    length = max(1, min(EVENTS_PER_PARTITION_MAX, -(-total // partitions_min)))
    pieces: list[Stretch] = []
    for shard, first, last in whole:
        count = -(-(last - first) // length)
        edges = [first + (last - first) * number // count for number in range(count + 1)]
        pieces += [Stretch(shard, *edge) for edge in pairwise(edges)]
    return pieces
