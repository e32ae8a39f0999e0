"""Brings gold up to silver: merges the figures of new rows into the files of the days and hours that they belong to.

A gold table records how far it has taken in the events of bronze, and the closed rows of either silver table. Silver
stands at one offset in both of its tables before gold follows, so that gold counts an end and the event of it in the
same commit, and no day is touched that the new events and the closed rows do not name.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import msgspec
from pyspark.sql import SparkSession

from codeq.pipeline.lake import gold
from codeq.pipeline.lake.data_file import CLOSED, DAYS, EVENTS, DataFile, NewFile, packed
from codeq.pipeline.lake.folder import LakeDamaged
from codeq.pipeline.lake.gold_step import BUCKET_BYTES, BUCKET_ROWS, GoldOutput, GoldStep, Piece, run_step
from codeq.pipeline.lake.maintenance import Log
from codeq.pipeline.lake.partitions import ParquetFiles
from codeq.pipeline.lake.position import ATTEMPTS, TASKS, Position, position_of
from codeq.pipeline.lake.table import Lake, LakeTable
from codeq.pipeline.parallel import in_parallel
from codeq.pipeline.session import parallelism_of

EVENTS_PER_ROW = 10
"""How many events a gold row is taken to stand for at least, when a step is divided into pieces that fit in memory."""

PIECES_PER_TASK = 8
"""Pieces that a Spark task reads one after another, if there are more than cores."""

GoldPair = tuple[gold.GoldTable, LakeTable]
FileKeys = frozenset[str] | None
"""Days such as 2026-03-12 and hours such as 2026-03-12T17, by which files are split. None for all."""

_EVENT_COLUMNS = (
    "shard", "seq", "at", "move", "tenant", "command", "priority", "status_before", "status_after", "payload_bytes",
    "artifacts", "artifact_bytes",
)  # fmt: skip
_ATTEMPT_COLUMNS = (
    "tenant", "command", "task_id", "priority", "worker_id", "claimed_at", "ended_at", "ended_by", "is_dead", "error",
    "wait_ms", "run_ms", "is_open",
)  # fmt: skip
_TASK_COLUMNS = (
    "tenant", "command", "priority", "ended_at", "outcome", "deliveries", "end_to_end_ms", "is_open",
)  # fmt: skip
"""What is read of new rows."""


def update_gold(spark: SparkSession, lake: Lake, *, log: Log = lambda _: None) -> None:
    """Brings gold up to silver. Does nothing if a run died between the two tables of silver: the next one goes on."""
    goal = Position(lake.tasks.epoch, lake.attempts.batch, lake.tasks.batch, tuple(sorted(lake.tasks.offsets.items())))
    if lake.attempts.offsets != lake.tasks.offsets or lake.attempts.epoch != lake.tasks.epoch:
        return
    by_position: dict[Position, list[GoldPair]] = {}
    for definition, table in lake.gold:
        by_position.setdefault(position_of(lake, table), []).append((definition, table))
    for position, pairs in by_position.items():
        if _is_ahead(position, goal):
            raise LakeDamaged(
                f"{pairs[0][1].folder} has taken in rows that silver does not have: a table of silver was deleted, or "
                "is older than the others. `codeq pipeline rebuild` makes both anew"
            )
        if position != goal:
            _update(spark, lake, pairs, position, goal=goal, log=log)


def _is_ahead(position: Position, goal: Position) -> bool:
    """Whether it has closed rows or events that silver is yet to come to. By number they would be taken for known."""
    ends = dict(goal.offsets)
    has_more = any(offset > ends.get(shard, 0) for shard, offset in position.offsets)
    return has_more or position.attempts > goal.attempts or position.tasks > goal.tasks


def _update(
    spark: SparkSession, lake: Lake, pairs: Sequence[GoldPair], position: Position, *, goal: Position, log: Log
) -> None:
    """Updates tables that stand at the same position together: new rows are read once for all of them."""
    started_s, parallelism = time.monotonic(), parallelism_of(spark)
    new = _new_rows(lake, position, goal)
    # A task is completed or failed by the end of an attempt, so the hours of closed tasks are among these.
    keys = file_keys([*new["events"].files, *new["attempts"].files])
    days = len({key[:10] for key in keys}) if keys else 1
    changes = [_Change(definition, table, keys, goal) for definition, table in pairs]
    read: list[tuple[str | int, _Rows]] = [*new.items(), *enumerate(change.existing for change in changes)]
    pieces = [Piece(kind, some) for kind, rows in read for some in rows.pieces(2 * parallelism)]
    rows_per_day = sum(file.rows for file in new["events"].files) // (days * EVENTS_PER_ROW)
    step = GoldStep(tuple(change.output(rows_per_day) for change in changes))
    readers, writers = max(parallelism, len(pieces) // PIECES_PER_TASK), min(parallelism, days * len(changes))
    added = run_step(spark, step, pieces, readers=readers, writers=writers)
    seconds = time.monotonic() - started_s
    in_parallel([
        partial(change.commit, files, seconds=seconds, log=log) for change, files in zip(changes, added, strict=True)
    ])  # fmt: skip


class _Rows(NamedTuple):
    """Rows of a table that take part in a step."""

    table: LakeTable
    files: Sequence[DataFile]
    columns: tuple[str, ...] | None = None
    starts: Mapping[int, int] = {}
    ends: Mapping[int, int] | None = None
    """Of events, which of them, by shard."""

    def pieces(self, count: int) -> Iterator[ParquetFiles]:
        """The files in about so many groups; fewer if they are small."""
        for some in packed(self.files, count):
            files = msgspec.structs.replace(self.table.parquet_files(some), columns=self.columns)
            if self.ends is None or all(_is_inside(file, self.starts, self.ends) for file in some):
                yield files
            else:
                yield msgspec.structs.replace(files, starts=dict(self.starts), ends=dict(self.ends))


def _new_rows(lake: Lake, position: Position, goal: Position) -> dict[str, _Rows]:
    """The events between both positions, and the rows that silver has closed meanwhile."""
    starts, ends = dict(position.offsets), dict(goal.offsets)
    events = [file for file in lake.bronze.files(part=EVENTS) if file.overlaps(starts, ends)]
    attempts = lake.attempts.files(part=CLOSED, after_batch=position.attempts, up_to_batch=goal.attempts)
    tasks = lake.tasks.files(part=CLOSED, after_batch=position.tasks, up_to_batch=goal.tasks)
    return {
        "events": _Rows(lake.bronze, events, _EVENT_COLUMNS, starts, ends),
        "attempts": _Rows(lake.attempts, attempts, _ATTEMPT_COLUMNS),
        "tasks": _Rows(lake.tasks, tasks, _TASK_COLUMNS),
    }


class _Change:
    """What a step does to one table."""

    def __init__(self, definition: gold.GoldTable, table: LakeTable, keys: FileKeys, goal: Position) -> None:
        self._definition, self._table, self._goal = definition, table, goal
        self._batch = table.batch + 1
        files = table.files(part=DAYS)
        is_current = table.epoch == goal.epoch
        self._replaced = [file for file in files if not is_current or keys is None or file.day in keys]
        self.existing = _Rows(table, self._replaced if is_current else [])
        days = [*(keys or ()), *(file.day or "" for file in files if is_current)]
        self._newest_day = max(days, default="")[:10]

    def output(self, new_rows: int) -> GoldOutput:
        """`new_rows` is how many rows a file may get. If it gets more, buckets are larger, and take more memory."""
        rows = new_rows + sum(file.rows for file in self.existing.files)
        size_bytes = sum(file.size_bytes for file in self.existing.files)
        buckets = 1 + rows // BUCKET_ROWS + size_bytes // BUCKET_BYTES
        target = self._table.target(self._table.new_folder(self._batch), DAYS)
        return GoldOutput(self._definition, target, self._newest_day, buckets)

    def commit(self, added: Sequence[NewFile], *, seconds: float, log: Log) -> None:
        self._table.commit(
            added,
            batch=self._batch,
            removed=self._replaced,
            offsets=dict(self._goal.offsets),
            epoch=self._goal.epoch,
            marks={ATTEMPTS: self._goal.attempts, TASKS: self._goal.tasks},
            seconds=seconds,
        )
        log(f"{self._table.folder.name}: batch {self._batch}")


def file_keys(files: Iterable[DataFile]) -> FileKeys:
    """Returns the days and hours of the rows of these files; None if one of them does not tell."""
    keys: set[str] = set()
    for file in files:
        if file.first_at is None or file.last_at is None:
            return None
        keys.update(_keys_between(file.first_at, file.last_at))
    return frozenset(keys)


def _keys_between(first: datetime, last: datetime) -> Iterator[str]:
    hour = first.replace(minute=0, second=0, microsecond=0)
    while hour <= last:
        yield hour.strftime("%Y-%m-%d")
        yield hour.strftime("%Y-%m-%dT%H")
        hour += timedelta(hours=1)


def _is_inside(file: DataFile, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    shard = file.shard
    return shard is not None and file.first_seq >= starts.get(shard, 0) and file.last_seq < ends.get(shard, 0)
