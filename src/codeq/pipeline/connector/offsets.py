"""Arithmetic on offsets: where a read starts, where it ends, and how it is split among Spark's tasks.

An offset is the number of the next event to read. Offsets of all shards are a dictionary with text as keys, because
Spark stores them as JSON; what a stream stores also names the log that they belong to.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from codeq.pipeline.client import LogBounds

EARLIEST, LATEST = "earliest", "latest"
EVENTS_PER_PARTITION_MAX = 500_000
"""A larger range is split: if its task fails late, all of it has to be read again."""

Position = str | dict[int, int]
"""`earliest`, `latest`, or an offset by shard, where -2 is the earliest and -1 the latest."""
Offsets = dict[str, int]
StoredOffsets = dict[str, Any]
"""Offsets by shard, and under LOG the id of the log. Checkpoints of older versions do not have the id."""
LOG, LAG = "log", "lag"
"""LAG is only in what a stream reports about the end of the log: how many events it has not read yet."""


def stored(offsets: Offsets, log_id: str) -> StoredOffsets:
    return {**offsets, LOG: log_id} if log_id else {**offsets}


def shards_of(offsets: StoredOffsets) -> Offsets:
    """Returns the offsets without the id of their log."""
    return {shard: offset for shard, offset in offsets.items() if shard not in (LOG, LAG)}


class OffsetRange(NamedTuple):
    """Events `start` to `end - 1` of a shard."""

    shard: int
    start: int
    end: int


def resolve(position: Position, log: Mapping[int, LogBounds]) -> Offsets:
    """Returns the offset of each shard. A shard that is not named starts at its first event."""
    offsets = {}
    for shard, bounds in log.items():
        offset = position.get(shard, -2) if isinstance(position, dict) else -1 if position == LATEST else -2
        offsets[str(shard)] = {-1: bounds.end, -2: bounds.first}.get(offset, offset)
    return offsets


def capped(start: Offsets, end: Offsets, events_max: int) -> Offsets:
    """Returns an end at most `events_max` events after `start`, divided among the shards in proportion to their lag."""
    lags = {shard: max(0, offset - start.get(shard, 1)) for shard, offset in end.items()}
    total = sum(lags.values())
    if total <= events_max:
        return end
    counts = {shard: lag * events_max // total for shard, lag in lags.items()}
    remainder = events_max - sum(counts.values())
    for shard in sorted(lags, key=lambda shard: counts[shard] - lags[shard]):  # the remainder goes to the longest lags
        more = min(remainder, lags[shard] - counts[shard], 1)
        counts[shard] += more
        remainder -= more
    return {shard: start.get(shard, 1) + counts[shard] for shard in end}


def split(start: Offsets, end: Offsets, *, partitions_min: int, events_min: int = 1) -> list[OffsetRange]:
    """Splits the events from `start` to `end` into ranges of about the same length, of `events_min` at least unless a
    shard has fewer.
    """
    whole = [OffsetRange(int(shard), start.get(shard, 1), offset) for shard, offset in end.items()]
    whole = [one for one in whole if one.start < one.end]
    total = sum(one.end - one.start for one in whole)
    length = max(events_min, min(EVENTS_PER_PARTITION_MAX, -(-total // partitions_min)))
    ranges: list[OffsetRange] = []
    for shard, first, last in whole:
        count = min(-(-(last - first) // length), max(1, (last - first) // events_min))
        edges = [first + (last - first) * number // count for number in range(count + 1)]
        ranges += [OffsetRange(shard, *edge) for edge in pairwise(edges)]
    return ranges
