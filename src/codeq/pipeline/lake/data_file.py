"""Describes the files of a table: what their names and their statistics in the Delta log say about them.

The name of a file contains its batch and its part of the table: `b00000012-3f9c/part=closed/..`. Its statistics contain
the range of some columns, of events also the shard and the range of their numbers. So the files that hold some events,
times or tasks are found without reading any.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from msgspec import Struct

PART, DAY = "part", "on"
"""Folders by which files are split. The files contain all columns of the table nevertheless, for every reader."""

OPEN, CLOSED, EVENTS, DAYS = "open", "closed", "events", "days"
"""The parts of a table."""

_BYTES_PER_READ_MIN, _BYTES_PER_READ_MAX = 1 << 20, 128 << 20
"""Files that a Spark task reads from an object store: smaller ones together, larger ones alone."""

_NAME = re.compile(r"b(?P<batch>\d{8})-[^/]+/part=(?P<part>[^/]+)/(?:on=(?P<day>[^/]+)/)?[^/]+\.parquet")

Ranges = dict[str, tuple[Any, Any]]
"""The least and the greatest value of columns."""


class DataFile(Struct, frozen=True):
    """A file of a table."""

    path: str
    part: str
    batch: int
    rows: int
    size_bytes: int
    day: str | None = None
    """The day of all its rows, in tables that are split by day."""
    first_at: datetime | None = None
    last_at: datetime | None = None
    """The range of the time column, in tables that have one."""
    shard: int | None = None
    """Of events: the shard of all of them. None if it is not known; so is `first_seq` then."""
    first_seq: int = 0
    last_seq: int = -1
    first_id: str | None = None
    last_id: str | None = None
    """The range of task ids; None if it is not known."""

    def overlaps(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
        """Whether it may hold events from `starts` to before `ends`, by shard."""
        if self.shard is None:
            return True
        return self.first_seq < ends.get(self.shard, 0) and self.last_seq >= starts.get(self.shard, 0)


class NewFile(Struct, frozen=True):
    """A file that was written and is not in the table yet, with the statistics for its commit."""

    path: str
    """Relative to the folder of the table."""
    rows: int
    size_bytes: int
    stats: str

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()


def decode_new_file(text: str) -> NewFile:
    return msgspec.json.decode(text, type=NewFile)


def data_files(delta: DeltaTable, time_column: str | None) -> list[DataFile]:
    """Returns the files of the table: events by shard and number, others by batch and path."""
    actions = delta.get_add_actions(flatten=True)
    names = ["path", "num_records", "size_bytes"]
    names += [f"{bound}.{column}" for column in (time_column, "seq", "task_id") for bound in ("min", "max")]
    columns = [_values(actions, name) for name in (*names, "min.shard", "max.shard")]
    found = []
    for path, rows, size, first_at, last_at, first_seq, last_seq, first_id, last_id, low, high in zip(
        *columns, strict=True
    ):
        name = _NAME.fullmatch(path)
        if name is None:
            continue  # not written by this pipeline
        has_range = first_seq is not None and last_seq is not None and low is not None and low == high
        found.append(
            DataFile(
                path,
                name["part"],
                int(name["batch"]),
                int(rows or 0),
                int(size or 0),
                name["day"],
                first_at,
                last_at,
                shard=low if has_range else None,
                first_seq=first_seq if has_range else 0,
                last_seq=last_seq if has_range else -1,
                first_id=first_id,
                last_id=last_id,
            )
        )
    return sorted(found, key=_order)


def _order(file: DataFile) -> tuple[int, int, int, str]:
    if file.part == EVENTS and file.shard is not None:
        return file.shard, file.first_seq, file.batch, file.path
    return -1, 0, file.batch, file.path


def _values(actions: Any, name: str) -> list[Any]:
    values: list[Any] = actions.column(name).to_pylist() if name in actions.schema.names else [None] * actions.num_rows
    return values


def ranges_of(rows: pa.Table, columns: Iterable[str]) -> Ranges:
    """Returns the range of each column that has a value."""
    found: Ranges = {}
    for name in columns:
        both = pc.min_max(rows[name])
        low, high = both["min"].as_py(), both["max"].as_py()
        if low is not None:
            found[name] = low, high
    return found


def joined(ranges: Iterable[Ranges]) -> Ranges:
    """Returns the ranges that contain all of these."""
    found: Ranges = {}
    for one in ranges:
        for name, (low, high) in one.items():
            known = found.get(name, (low, high))
            found[name] = min(known[0], low), max(known[1], high)
    return found


def stats_json(rows: int, ranges: Ranges) -> str:
    """Returns the statistics of a file as Delta has them."""
    bounds = {
        name: {column: _plain(values[side]) for column, values in ranges.items()}
        for side, name in enumerate(("minValues", "maxValues"))
    }
    return json.dumps({"numRecords": rows, **(bounds if ranges else {})})


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def packed(files: Sequence[DataFile], pieces: int) -> Iterator[list[DataFile]]:
    """Groups the files in their order into about so many groups of the same size."""
    limit = sum(file.size_bytes for file in files) // pieces
    limit = min(max(limit, _BYTES_PER_READ_MIN), _BYTES_PER_READ_MAX)
    group: list[DataFile] = []
    size_bytes = 0
    for file in files:
        if group and size_bytes + file.size_bytes > limit:
            yield group
            group, size_bytes = [], 0
        group.append(file)
        size_bytes += file.size_bytes
    if group:
        yield group
