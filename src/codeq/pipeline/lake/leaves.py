"""Plans a step of a silver table: which ranges of task ids its events touch, and what each Spark task reads.

The open rows of a table are in *leaves*: files that each have a range of task ids of their own, of a hundred
thousand rows at most. A step rewrites the leaves whose tasks have new events, and reads no other: with work that is
first in, first out these are the oldest and the newest, however many tasks wait in between.

Only footers are read for that, and the ids of row groups that span several leaves: here if they are few, and on
executors if they are many.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
from msgspec import Struct

from codeq.pipeline.lake.data_file import DataFile
from codeq.pipeline.lake.folder import file_at, storage_errors
from codeq.pipeline.lake.partitions import IdRange

LEAF_ROWS_MAX = 100_000
"""Open rows of one leaf. A step rewrites the oldest and the newest leaf whole, so that is what a few events cost."""
LEAF_ROWS_MIN = 25_000
"""A leaf with fewer is rewritten together with its neighbour, if both fit into one."""
SHARE_ROWS_MAX = 250_000
"""Open rows and events that a Spark task holds at once: see ADR 19 for its memory."""
SHARE_ROWS_MIN = 50_000
"""A Spark task with fewer rows takes longer to start than to run."""
_FILES_AT_ONCE = 8
_LAST_ID = "\U0010ffff"
"""After every id."""

Run = Callable[[Callable[[Any], list[str]], Sequence[Any]], list[str]]
"""Calls a function for each piece, somewhere, and returns all values."""


def run_here(work: Callable[[Any], list[str]], pieces: Sequence[Any]) -> list[str]:
    """Runs in threads of this process."""
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return [value for values in pool.map(work, pieces) for value in values]


class RowGroup(Struct, frozen=True):
    """A row group of a file of events."""

    path: str
    number: int
    rows: int
    first_id: str
    last_id: str


class Share(Struct, frozen=True):
    """What one Spark task of a step does: all tasks of a range."""

    ids: IdRange
    open_paths: tuple[str, ...]
    event_paths: tuple[str, ...]


class Plan(Struct, frozen=True):
    shares: list[Share]
    removed: list[DataFile]
    """The leaves that the shares replace."""


class _Leaf(Struct):
    """Open files whose ranges overlap; `low` is where the range of the leaf begins, after that of the one before."""

    low: str
    files: list[DataFile]
    events: int = 0

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def plan(
    open_files: Sequence[DataFile], groups: Sequence[RowGroup], *, parallelism: int, folder: str, run: Run = run_here
) -> Plan:
    """Plans the step that brings these events to these open rows. `folder` is that of the table."""
    leaves = _leaves(open_files)
    _count_events(leaves, groups, run)
    touched = _with_small_neighbours(leaves)
    rows_max = _share_rows(sum(leaf.rows + leaf.events for leaf in touched), parallelism)
    ranges = [
        piece
        for run in _adjacent(leaves, touched)
        for some in _packed(run, rows_max)
        for piece in _split(_range_of(leaves, some), some, groups, rows_max=rows_max)
    ]
    shares = [_share(ids, touched, groups, folder) for ids in ranges]
    return Plan(shares, [file for leaf in touched for file in leaf.files])


def row_groups(paths: Sequence[str], run: Run = run_here) -> list[RowGroup]:
    """Reads the ranges of task ids from the footers of files of events."""
    return [msgspec.json.decode(text, type=RowGroup) for text in run(_groups_of, paths)]


def _groups_of(path: str) -> list[str]:
    with storage_errors([path]):
        system, name = file_at(path)
        footer = pq.read_metadata(name, filesystem=system)
    column = footer.schema.to_arrow_schema().names.index("task_id")
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        bounds = group.column(column).statistics
        has_bounds = bounds is not None and bounds.has_min_max
        ids = (bounds.min, bounds.max) if has_bounds else ("", _LAST_ID)
        found.append(msgspec.json.encode(RowGroup(path, number, group.num_rows, *ids)).decode())
    return found


def _leaves(files: Sequence[DataFile]) -> list[_Leaf]:
    """Puts files with overlapping ranges into one leaf. The first is from the lowest id on, and after the last id is an
    empty one: so new tasks do not touch the newest leaf, unless both make one leaf.
    """
    leaves: list[_Leaf] = []
    last = ""
    for file in sorted(files, key=lambda file: file.first_id or ""):
        first, end = (file.first_id, file.last_id) if file.first_id and file.last_id else ("", _LAST_ID)
        if leaves and first <= last:
            leaves[-1].files.append(file)
        else:
            leaves.append(_Leaf(first if leaves else "", [file]))
        last = max(last, end)
    if last != _LAST_ID:
        leaves.append(_Leaf(f"{last} " if leaves else "", []))  # a space comes before every character of an id
    return leaves


def _count_events(leaves: Sequence[_Leaf], groups: Sequence[RowGroup], run: Run) -> None:
    """Counts the events of each leaf. A row group between two leaves may have events of neither, so its ids are read:
    otherwise events of the oldest and of the newest task side by side would touch all leaves in between.
    """
    lows = [leaf.low for leaf in leaves]
    spanning = []
    for group in groups:
        first, last = (bisect_right(lows, id_) - 1 for id_ in (group.first_id, group.last_id))
        if first == last:
            leaves[first].events += group.rows
        else:
            spanning.append(group)
    pieces = [(path, [group.number for group in of_file]) for path, of_file in groupby(spanning, lambda one: one.path)]
    for text in run(partial(_count_ids, lows), pieces):
        for place, count in msgspec.json.decode(text, type=dict[int, int]).items():
            leaves[place].events += count


def _count_ids(lows: Sequence[str], piece: tuple[str, list[int]]) -> list[str]:
    """Counts the ids in some row groups of a file, by the range that they belong to."""
    path, numbers = piece
    with storage_errors([path]):
        system, name = file_at(path)
        ids = pq.ParquetFile(name, filesystem=system).read_row_groups(numbers, columns=["task_id"])["task_id"]
    places = np.searchsorted(np.array(lows), np.array(ids.to_pylist()), side="right") - 1
    counts = zip(*(found.tolist() for found in np.unique(places, return_counts=True)), strict=True)
    return [msgspec.json.encode(dict(counts)).decode()]


def _with_small_neighbours(leaves: Sequence[_Leaf]) -> list[_Leaf]:
    """Returns the leaves with events, and beside each small one its neighbour, if both together make one leaf."""
    chosen = {number for number, leaf in enumerate(leaves) if leaf.events}
    for number in sorted(chosen):
        for neighbour in (number - 1, number + 1):
            if not 0 <= neighbour < len(leaves) or neighbour in chosen:
                continue
            smallest = min(leaves[number].rows, leaves[neighbour].rows)
            both = leaves[number].rows + leaves[number].events + leaves[neighbour].rows
            if smallest < LEAF_ROWS_MIN and both <= LEAF_ROWS_MAX:
                chosen.add(neighbour)
    return [leaves[number] for number in sorted(chosen)]


def _share_rows(rows: int, parallelism: int) -> int:
    return max(SHARE_ROWS_MIN, min(SHARE_ROWS_MAX, -(-rows // max(1, parallelism))))


def _adjacent(leaves: Sequence[_Leaf], touched: Sequence[_Leaf]) -> Iterator[list[_Leaf]]:
    """Groups touched leaves that have no other between them."""
    are_touched = {id(leaf) for leaf in touched}
    for is_touched, run in groupby(leaves, key=lambda leaf: id(leaf) in are_touched):
        if is_touched:
            yield list(run)


def _packed(leaves: Sequence[_Leaf], rows_max: int) -> Iterator[list[_Leaf]]:
    """Groups leaves up to so many rows and events; small ones with their neighbour, up to a whole leaf."""
    group: list[_Leaf] = []
    rows = 0
    for leaf in leaves:
        size = leaf.rows + leaf.events
        is_small = min(sum(one.rows for one in group), leaf.rows) < LEAF_ROWS_MIN
        limit = max(LEAF_ROWS_MAX, rows_max) if is_small else rows_max
        if group and rows + size > limit:
            yield group
            group, rows = [], 0
        group.append(leaf)
        rows += size
    if group:
        yield group


def _range_of(leaves: Sequence[_Leaf], some: Sequence[_Leaf]) -> IdRange:
    """The ids from the first of some leaves to the leaf after the last of them."""
    lows = [leaf.low for leaf in leaves]
    following = lows.index(some[-1].low) + 1
    return IdRange(some[0].low, lows[following] if following < len(lows) else None)


def _split(ids: IdRange, leaves: Sequence[_Leaf], groups: Sequence[RowGroup], *, rows_max: int) -> Iterator[IdRange]:
    """Splits a range with too many rows where row groups begin: these are about evenly distributed over the events."""
    rows = sum(leaf.rows + leaf.events for leaf in leaves)
    pieces = -(-rows // rows_max)
    inside = sorted((group for group in groups if _begins_in(group, ids)), key=lambda group: group.first_id)
    if pieces < 2 or len(inside) < 2:
        yield ids
        return
    begun = np.cumsum([group.rows for group in inside])
    places = np.searchsorted(begun, begun[-1] * np.arange(1, pieces) / pieces)
    cuts = sorted({inside[int(place)].first_id for place in places} - {ids.low})
    for low, high in pairwise([ids.low, *cuts, ids.high]):
        yield IdRange(low or "", high)


def _begins_in(group: RowGroup, ids: IdRange) -> bool:
    return group.first_id > ids.low and (ids.high is None or group.first_id < ids.high)


def _share(ids: IdRange, touched: Sequence[_Leaf], groups: Sequence[RowGroup], folder: str) -> Share:
    files = [file for leaf in touched for file in leaf.files if _overlaps(ids, file.first_id, file.last_id)]
    events = dict.fromkeys(group.path for group in groups if _overlaps(ids, group.first_id, group.last_id))
    return Share(ids, tuple(f"{folder}/{file.path}" for file in files), tuple(events))


def _overlaps(ids: IdRange, first: str | None, last: str | None) -> bool:
    if first is None or last is None:
        return True
    return last >= ids.low and (ids.high is None or first < ids.high)
