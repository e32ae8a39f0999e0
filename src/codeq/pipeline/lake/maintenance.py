"""Keep a lake in good order: few large files instead of many small ones, nothing that no table names, nothing too old.

A run that comes every minute leaves a file per minute. Only what every later table has taken in is put together, so
that no table ever has to read a batch again.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime

from msgspec import Struct
from pyspark.sql import SparkSession

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake.partitions import Files
from codeq.pipeline.lake.table import CLOSED, DAYS, EVENTS, UNUSED_HOURS, DataFile, Lake, LakeTable

SMALL_BYTES = 32 << 20
LARGE_BYTES = 256 << 20
FILES_MAX = 64
"""So many small files of a table are left alone by a run; past this it puts them together."""

Say = Callable[[str], None]


class Forgotten(CodeqError):
    """What is asked for needs events that were removed for their age."""

    code = "lake-forgotten"


class Tidied(Struct):
    """What was done."""

    put_together: int = 0
    """Small files that are now part of larger ones."""
    forgotten_rows: int = 0
    removed_files: int = 0


def tidy(
    spark: SparkSession,
    lake: Lake,
    *,
    forget_before: datetime | None = None,
    forget_figures_before: date | None = None,
    unused_hours: int = UNUSED_HOURS,
    say: Say = lambda _: None,
) -> Tidied:
    """Put small files together, forget what is too old, and remove files that no table has named for a while."""
    done = Tidied()
    if forget_before is not None:
        done.forgotten_rows += _forget(lake, forget_before)
        say(f"forgotten: {done.forgotten_rows:,} rows")
    if forget_figures_before is not None:
        done.forgotten_rows += _forget_figures(lake, forget_figures_before)
    done.put_together = put_together(spark, lake, files_max=1, say=say)
    for table in lake.all:
        done.removed_files += table.vacuum(unused_hours)
    say(f"removed: {done.removed_files:,} files")
    return done


def put_together(spark: SparkSession, lake: Lake, *, files_max: int = FILES_MAX, say: Say = lambda _: None) -> int:
    """Make few files of many, in tables with more small ones than that. Answers how many files were taken out."""
    taken = 0
    for table, part, up_to in _grown(lake):
        small = [file for file in table.files(part=part, up_to_batch=up_to) if file.size_bytes < SMALL_BYTES]
        if len(small) <= files_max:
            continue
        for group in _groups(small):
            written = table.write_read(spark, Files.batches, [table.holding(group)], part=part, batch=group[-1].batch)
            table.commit(written, batch=None, removed=group)
            taken += len(group)
        say(f"{table.folder.name}: {len(small):,} small files put together")
    return taken


def check_complete(lake: Lake) -> None:
    """Raise if bronze has forgotten events: tables made anew from it would forget them too."""
    if lake.bronze.has_forgotten:
        raise Forgotten(
            f"the oldest events of {lake.folder} were forgotten: tables made anew would lose what was made of them"
        )


def _grown(lake: Lake) -> list[tuple[LakeTable, str, int]]:
    """The tables to which files are only added, and the last batch that nobody will ask them for again."""
    figures = min((table.batch for _, table in lake.gold), default=0)
    return [
        (lake.bronze, EVENTS, min(figures, lake.attempts.batch, lake.tasks.batch)),
        (lake.attempts, CLOSED, figures),
        (lake.tasks, CLOSED, figures),
    ]


def _groups(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """In order, each as large as a file should be at most; no group of one."""
    group: list[DataFile] = []
    size_bytes = 0
    for file in files:
        if group and size_bytes + file.size_bytes > LARGE_BYTES:
            if len(group) > 1:
                yield group
            group, size_bytes = [], 0
        group.append(file)
        size_bytes += file.size_bytes
    if len(group) > 1:
        yield group


def _forget(lake: Lake, before: datetime) -> int:
    """Whole files only, from the oldest on up to the first that holds something newer: the log has no gaps then."""
    forgotten = 0
    for table, part, up_to in _grown(lake):
        old = []
        for file in table.files(part=part, up_to_batch=up_to):
            if file.until is None or file.until >= before:
                break
            old.append(file)
        if old:
            table.commit([], batch=None, removed=old, forgotten=True)
            forgotten += sum(file.rows for file in old)
    return forgotten


def _forget_figures(lake: Lake, before: date) -> int:
    forgotten = 0
    for _, table in lake.gold:
        old = [file for file in table.files(part=DAYS) if file.day is not None and file.day < before.isoformat()]
        if old:
            table.commit([], batch=None, removed=old, forgotten=True)
            forgotten += sum(file.rows for file in old)
    return forgotten
