"""Maintains a lake: compacts small files, deletes rows that are too old, and deletes files that no table uses.

A run every minute leaves a file every minute. Events are found by their shard and number, whatever file they are in,
so bronze is compacted shard by shard. Closed rows of silver are found by their batch, so only batches that gold has are
compacted.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from functools import partial
from itertools import groupby, takewhile

from msgspec import Struct
from pyspark.sql import SparkSession

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake.data_file import DAY
from codeq.pipeline.lake.partitions import ParquetFiles
from codeq.pipeline.lake.position import position_of
from codeq.pipeline.lake.table import CLOSED, DAYS, EVENTS, UNUSED_HOURS, DataFile, Lake, LakeTable
from codeq.pipeline.parallel import in_parallel
from codeq.pipeline.session import parallelism_of

SMALL_BYTES = 32 << 20
LARGE_BYTES = 256 << 20
FILES_MAX = 64
"""A run leaves up to this many small files of a table, and compacts more."""

Log = Callable[[str], None]


class EventsDeleted(CodeqError):
    """The operation needs events that were deleted because of their age."""

    code = "lake-forgotten"


class MaintenanceSummary(Struct):
    compacted_files: int = 0
    """Small files that were replaced by larger ones."""
    deleted_rows: int = 0
    vacuumed_files: int = 0


def maintain(
    spark: SparkSession,
    lake: Lake,
    *,
    delete_before: datetime | None = None,
    delete_gold_before: date | None = None,
    unused_hours: int = UNUSED_HOURS,
    log: Log = lambda _: None,
) -> MaintenanceSummary:
    """Deletes rows that are too old, compacts small files, and deletes files that no table has used for a while."""
    summary = MaintenanceSummary()
    if delete_before is not None:
        summary.deleted_rows += _delete_events(lake, delete_before)
        log(f"deleted: {summary.deleted_rows:,} rows")
    if delete_gold_before is not None:
        summary.deleted_rows += _delete_gold(lake, delete_gold_before)
    summary.compacted_files = compact(spark, lake, files_max=1, log=log)
    for table in (*lake.all, *lake.of_audit):
        summary.vacuumed_files += table.vacuum(unused_hours)
    log(f"removed: {summary.vacuumed_files:,} files")
    return summary


def compact(spark: SparkSession, lake: Lake, *, files_max: int = FILES_MAX, log: Log = lambda _: None) -> int:
    """Replaces small files by larger ones, in tables with more than `files_max` small files. Returns the number of
    files replaced.
    """
    works = [
        partial(_compact, spark, table, part, files, files_max=files_max, log=log)
        for table, part, files in _append_only(lake)
    ]
    works += [partial(_compact_days, spark, table, log=log) for _, table in lake.gold]
    replaced: list[int] = []
    in_parallel([partial(_append_result, replaced, work) for work in works])
    return sum(replaced)


def _append_result(results: list[int], work: Callable[[], int]) -> None:
    results.append(work())


def _compact(
    spark: SparkSession, table: LakeTable, part: str, files: Sequence[DataFile], *, files_max: int, log: Log
) -> int:
    small = [file for file in files if file.size_bytes < SMALL_BYTES]
    if len(small) <= files_max:
        return 0
    # Every core of a cluster gets a group, unless they would be small again.
    each = max(2 * SMALL_BYTES, sum(file.size_bytes for file in small) // parallelism_of(spark))
    groups = list(_groups(small, min(LARGE_BYTES, each)))
    pieces = [(table.parquet_files(group), max(file.batch for file in group)) for group in groups]
    added = table.write_files(spark, ParquetFiles.batches, pieces, part=part)
    removed = [file for group in groups for file in group]
    if removed:
        table.commit(added, batch=None, removed=removed)
    log(f"{table.folder.name}: {len(removed):,} small files compacted")
    return len(removed)


def _compact_days(spark: SparkSession, table: LakeTable, *, log: Log) -> int:
    """Puts the files of past hours together, a file for each day that is over."""
    files = sorted(table.files(part=DAYS), key=lambda file: file.day or "")
    by_day = {day: list(of_day) for day, of_day in groupby(files, key=lambda file: (file.day or "")[:10])}
    past = {day: of_day for day, of_day in list(by_day.items())[:-1] if day and len(of_day) > 1}
    for day, of_day in past.items():
        piece = (table.parquet_files(of_day), max(file.batch for file in of_day))
        added = table.write_files(spark, ParquetFiles.batches, [piece], part=f"{DAYS}/{DAY}={day}")
        table.commit(added, batch=None, removed=of_day)
    compacted = sum(len(of_day) for of_day in past.values())
    if compacted:
        log(f"{table.folder.name}: {compacted:,} files of hours compacted")
    return compacted


def check_complete(lake: Lake) -> None:
    """Raises EventsDeleted if events were deleted from bronze: tables rebuilt from it would lack them."""
    if lake.bronze.has_deleted_rows:
        raise EventsDeleted(
            f"the oldest events of {lake.folder} were deleted, so tables rebuilt from it would lose their rows"
        )


def _append_only(lake: Lake) -> list[tuple[LakeTable, str, list[DataFile]]]:
    """The parts of tables to which files are only added, with the files that every later table has taken in."""
    taken = [position_of(lake, table) for _, table in lake.gold]
    offsets = [dict(position.offsets) for position in taken] + [table.offsets for table in lake.silver]
    shards = lake.bronze.offsets
    common = {shard: min((one.get(shard, 0) for one in offsets), default=0) for shard in shards}
    attempts = min((position.attempts for position in taken), default=0)
    tasks = min((position.tasks for position in taken), default=0)
    events = [
        file
        for file in lake.bronze.files(part=EVENTS)
        if file.shard is not None and file.last_seq < common.get(file.shard, 0)
    ]
    return [
        (lake.violations, EVENTS, lake.violations.files()),
        (lake.bronze, EVENTS, events),
        (lake.attempts, CLOSED, lake.attempts.files(part=CLOSED, up_to_batch=attempts)),
        (lake.tasks, CLOSED, lake.tasks.files(part=CLOSED, up_to_batch=tasks)),
    ]


def _groups(files: Sequence[DataFile], bytes_max: int) -> Iterator[list[DataFile]]:
    """Groups the files in order, up to so many bytes each and of one shard, and skips groups of one."""
    group: list[DataFile] = []
    size_bytes = 0
    for file in files:
        if group and (size_bytes + file.size_bytes > bytes_max or file.shard != group[-1].shard):
            if len(group) > 1:
                yield group
            group, size_bytes = [], 0
        group.append(file)
        size_bytes += file.size_bytes
    if len(group) > 1:
        yield group


def _delete_events(lake: Lake, before: datetime) -> int:
    """Deletes whole files, of each shard from the oldest to the first with a newer row: so its log has no gaps. Deletes
    nothing while a rebuild has not emptied all of silver yet.
    """
    if any(table.epoch < lake.bronze.epoch for table in lake.silver):
        return 0
    deleted = 0
    for table, _, files in _append_only(lake):
        old = []
        for _, of_shard in groupby(files, key=lambda file: file.shard):
            old += list(takewhile(lambda file: file.last_at is not None and file.last_at < before, of_shard))
        deleted += _delete(table, old)
    return deleted


def _delete_gold(lake: Lake, before: date) -> int:
    day = before.isoformat()
    return sum(
        _delete(table, [file for file in table.files(part=DAYS) if (file.day or day) < day]) for _, table in lake.gold
    )


def _delete(table: LakeTable, files: Sequence[DataFile]) -> int:
    if files:
        table.commit([], batch=None, removed=files, deletes_rows=True)
    return sum(file.rows for file in files)
