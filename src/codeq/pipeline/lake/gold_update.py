"""Brings gold up to silver: merges the figures of new rows into the files of the days and hours that they belong to.

A gold table records how far it has taken in the events of bronze, and the closed rows of either silver table. Silver
stands at one offset in both of its tables before gold follows, so that gold counts an end and the event of it in the
same commit, and no day is touched that the new events and the closed rows do not name.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from codeq.pipeline.lake import gold
from codeq.pipeline.lake.data_file import CLOSED, DAYS, EVENTS, DataFile
from codeq.pipeline.lake.maintenance import Log
from codeq.pipeline.lake.position import ATTEMPTS, TASKS, Position, position_of
from codeq.pipeline.lake.table import Lake, LakeTable
from codeq.pipeline.parallel import in_parallel

ROWS_PER_FILE = 500_000

GoldPair = tuple[gold.GoldTable, LakeTable]
FileKeys = frozenset[str] | None
"""Days such as 2026-03-12 and hours such as 2026-03-12T17, by which files are split. None for all."""


def update_gold(spark: SparkSession, lake: Lake, *, log: Log = lambda _: None) -> None:
    """Brings gold up to silver. Does nothing if a run died between the two tables of silver: the next one goes on."""
    goal = Position(lake.tasks.epoch, lake.attempts.batch, lake.tasks.batch, tuple(sorted(lake.tasks.offsets.items())))
    if lake.attempts.offsets != lake.tasks.offsets or lake.attempts.epoch != lake.tasks.epoch:
        return
    by_position: dict[Position, list[GoldPair]] = {}
    for definition, table in lake.gold:
        by_position.setdefault(position_of(lake, table), []).append((definition, table))
    for position, pairs in by_position.items():
        if position != goal:
            _update(spark, lake, pairs, position, goal=goal, log=log)


def _update(
    spark: SparkSession, lake: Lake, pairs: Sequence[GoldPair], position: Position, *, goal: Position, log: Log
) -> None:
    """Updates tables that stand at the same position together, so that they share the sums of the new rows."""
    starts, ends = dict(position.offsets), dict(goal.offsets)
    events = [file for file in lake.bronze.files(part=EVENTS) if file.overlaps(starts, ends)]
    attempts = lake.attempts.files(part=CLOSED, after_batch=position.attempts, up_to_batch=goal.attempts)
    tasks = lake.tasks.files(part=CLOSED, after_batch=position.tasks, up_to_batch=goal.tasks)
    new = gold.GoldBatch(
        events=_rows_between(lake.bronze.read(spark, events), events, starts, ends),
        attempts=lake.attempts.read(spark, attempts),
        tasks=lake.tasks.read(spark, tasks),
    )
    # A task is completed or failed by the end of an attempt, so the hours of closed tasks are among these.
    keys = file_keys([*events, *attempts])
    partials = [definition.partials(new) for definition, _ in pairs]
    with new.cached():
        in_parallel([
            partial(_merge, spark, pair, partials=rows, keys=keys, goal=goal, log=log)
            for pair, rows in zip(pairs, partials, strict=True)
        ])  # fmt: skip


def _merge(
    spark: SparkSession, pair: GoldPair, *, partials: DataFrame, keys: FileKeys, goal: Position, log: Log
) -> None:
    (definition, table), batch = pair, pair[1].batch + 1
    started_s = time.monotonic()
    files = table.files(part=DAYS)
    is_current = table.epoch == goal.epoch
    replaced = [file for file in files if not is_current or keys is None or file.day in keys]
    rows = definition.merged(table.read(spark, replaced if is_current else []), partials)
    newest_day = max([*(keys or ()), *(file.day or "" for file in files if is_current)], default="")[:10]
    # There are few rows, so one file for each day or hour is enough.
    file_count = 1 + sum(file.rows for file in replaced) // ROWS_PER_FILE
    added = table.write(rows.coalesce(file_count), part=DAYS, batch=batch, by=definition.file_key(newest_day))
    table.commit(
        added,
        batch=batch,
        removed=replaced,
        offsets=dict(goal.offsets),
        epoch=goal.epoch,
        marks={ATTEMPTS: goal.attempts, TASKS: goal.tasks},
        seconds=time.monotonic() - started_s,
    )
    log(f"{table.folder.name}: batch {batch}")


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


def _rows_between(
    rows: DataFrame, files: Sequence[DataFile], starts: dict[int, int], ends: dict[int, int]
) -> DataFrame:
    """Returns the events from `starts` to before `ends`, by shard."""
    if all(_is_inside(file, starts, ends) for file in files):
        return rows
    low, high = (f.create_map(*(f.lit(n) for pair in of.items() for n in pair)) for of in (starts or {-1: 0}, ends))
    is_new = f.col("seq") >= f.coalesce(f.try_element_at(low, "shard"), f.lit(0))
    return rows.where(is_new & (f.col("seq") < f.coalesce(f.try_element_at(high, "shard"), f.lit(0))))


def _is_inside(file: DataFile, starts: dict[int, int], ends: dict[int, int]) -> bool:
    shard = file.shard
    return shard is not None and file.first_seq >= starts.get(shard, 0) and file.last_seq < ends.get(shard, 0)
