"""The Delta tables of the lake: executors write their files, and delta-rs commits them.

Each commit says how far the table has come: the events that it has taken in, by shard, the number of the commit, and
its epoch.

A table is never deleted and created anew: a rebuild empties it, in a commit that begins another epoch. So the versions
of its log never repeat, and the commit of a run that began before is refused.
"""

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from codeq.domain.limits import SHARDS_MAX
from codeq.pipeline.lake import gold, parquet, tables
from codeq.pipeline.lake.commit_check import check_commits
from codeq.pipeline.lake.commits import ONE_TRY, LakeConflict, commit_errors, force_commit, no_other_commit
from codeq.pipeline.lake.data_file import (
    CLOSED,
    DAYS,
    EVENTS,
    OPEN,
    PART,
    DataFile,
    NewFile,
    data_files,
    decode_new_file,
    packed,
)
from codeq.pipeline.lake.folder import Folder, LakeDamaged, LakeUnavailable, folder_of, one_line
from codeq.pipeline.lake.partitions import ParquetFiles, run_on_executors
from codeq.pipeline.session import parallelism_of

__all__ = ["CLOSED", "DAYS", "EVENTS", "OPEN", "UNUSED_HOURS", "DataFile", "Lake", "LakeConflict", "LakeDamaged",
           "LakeTable", "LakeUnavailable", "NewFile"]  # fmt: skip

APP = "codeq"
_ROWS_DELETED, _EPOCH, _SHARDS = f"{APP}/forgotten", f"{APP}/epoch", f"{APP}/shards"
UNUSED_HOURS = 24
"""When a file outside the table may be deleted. Before that it may belong to a run in progress, or a query may still
read it.
"""
_ROWS, _BYTES, _SECONDS = "codeq.rows", "codeq.bytes", "codeq.seconds"
"""Metadata of a commit: what it wrote, and how long that took."""
_NEW_FILES = pa.schema([("file", pa.string())])

ReadPiece = Callable[[Any], Iterator[pa.RecordBatch]]
"""Reads the rows of one piece, on an executor."""


class WrittenCommit(NamedTuple):
    """What a commit of rows tells about itself."""

    at_ms: int
    rows: int
    size_bytes: int
    seconds: float


class LakeTable:
    """One Delta table. `batch` is the number of its last commit of rows; `offsets` are the first events not in it."""

    def __init__(self, folder: Folder, schema: StructType, bounded: tuple[str, ...] = ()) -> None:
        """`bounded` are the columns whose range is recorded for each file; the first of them is a time."""
        self.folder = folder
        self.schema = schema
        self._bounded = bounded
        self._delta: DeltaTable | None = None
        self._reload()

    @property
    def exists(self) -> bool:
        return self._delta is not None

    @property
    def batch(self) -> int:
        return self.mark(APP) or 0

    @property
    def epoch(self) -> int:
        """How often the table was emptied to be rebuilt. Gold has the epoch of the silver that it was made from."""
        return self.mark(_EPOCH) or 0

    def mark(self, name: str) -> int | None:
        """Returns the number that the last commit with this mark recorded."""
        return self._delta.transaction_version(name) if self._delta is not None else None

    @property
    def offsets(self) -> dict[int, int]:
        """The next event to take in, by shard; none before the first commit."""
        if not self.batch:
            return {}
        shards = self.mark(_SHARDS)  # a lake of the version before does not tell
        marks = {shard: self.mark(_shard_mark(shard)) for shard in range(SHARDS_MAX if shards is None else shards)}
        return {shard: offset for shard, offset in marks.items() if offset is not None}

    @property
    def properties(self) -> dict[str, str]:
        """What was recorded about the table as a whole."""
        return dict(self._delta.metadata().configuration) if self._delta is not None else {}

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Records these, and creates the table if there is none. Raises LakeConflict if another run does the same."""
        try:
            if self._delta is None:
                self._create(properties)
                return
            with commit_errors(self.folder), no_other_commit(self.folder, self._delta):
                self._delta.alter.set_table_properties(
                    dict(properties), raise_if_not_exists=False, commit_properties=ONE_TRY
                )
        finally:
            self._reload()

    def files(
        self, *, part: str | None = None, after_batch: int = -1, up_to_batch: int | None = None
    ) -> list[DataFile]:
        """Returns the files of the table: events by shard and number, others by batch and path."""
        if self._delta is None:
            return []
        time_column = self._bounded[0] if self._bounded else None
        return [
            file
            for file in data_files(self._delta, time_column)
            if part in (None, file.part)
            and after_batch < file.batch
            and (up_to_batch is None or file.batch <= up_to_batch)
        ]

    def path(self, file: DataFile) -> str:
        return f"{self.folder}/{file.path}"

    def read(self, spark: SparkSession, files: Sequence[DataFile] | None = None) -> DataFrame:
        """Reads the rows of the files; of the whole table if none are given."""
        chosen = self.files() if files is None else files
        if not chosen:
            return spark.createDataFrame([], self.schema)
        if self.folder.is_for_spark:
            return spark.read.schema(self.schema).parquet(*map(self.path, chosen))
        return self._read_by_arrow(spark, chosen)

    def _read_by_arrow(self, spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        """Reads with pyarrow, which needs no connector of Spark's for an object store."""
        pieces = [self.parquet_files(some) for some in packed(files, 2 * parallelism_of(spark))]

        def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
                yield from pieces[number].rows()

        return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(work, self.schema)

    def parquet_files(self, files: Sequence[DataFile]) -> ParquetFiles:
        """Names files to be read by Python on executors."""
        return ParquetFiles(tuple(map(self.path, files)), self.arrow_schema)

    def write(self, rows: DataFrame, *, part: str, batch: int) -> list[NewFile]:
        """Writes a file for each of Spark's partitions. The files are not in the table before a commit adds them."""
        target = self.target(self.new_folder(batch), part)

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            files = parquet.write_stream(target, batches)
            yield pa.record_batch([[file.encoded() for file in files]], schema=_NEW_FILES)

        written = rows.select(*self.schema.fieldNames()).mapInArrow(work, from_arrow_schema(_NEW_FILES)).collect()
        return [decode_new_file(row.file) for row in written]

    def write_pieces(
        self, spark: SparkSession, read: ReadPiece, pieces: Sequence[Any], *, part: str, batch: int
    ) -> list[NewFile]:
        """Reads each piece and writes its rows into a file of its own, on executors."""
        return self.write_files(spark, read, [(piece, batch) for piece in pieces], part=part)

    def write_files(
        self, spark: SparkSession, read: ReadPiece, pieces: Sequence[tuple[Any, int]], *, part: str
    ) -> list[NewFile]:
        """As `write_pieces`, with a batch for each piece."""
        targets = {batch: self.target(self.new_folder(batch), part) for batch in {batch for _, batch in pieces}}

        def work(piece: tuple[Any, int]) -> list[str]:
            return [file.encoded() for file in parquet.write_stream(targets[piece[1]], read(piece[0]))]

        return [decode_new_file(text) for text in run_on_executors(spark, work, pieces)]

    def target(self, folder: str, part: str) -> parquet.FileTarget:
        """Where files of this part are written, on executors."""
        return parquet.FileTarget(self.folder, f"{folder}/{PART}={part}", self.arrow_schema, self._bounded)

    def new_folder(self, batch: int) -> str:
        """Returns the name of a folder for new files of a batch."""
        return f"b{batch:08d}-{uuid.uuid4().hex}"

    def commit(
        self,
        added: Sequence[NewFile],
        *,
        batch: int | None,
        removed: Sequence[DataFile] = (),
        offsets: Mapping[int, int] | None = None,
        epoch: int | None = None,
        marks: Mapping[str, int] | None = None,
        seconds: float | None = None,
        deletes_rows: bool = False,
    ) -> None:
        """Adds and removes files in one transaction. `batch` is None if the rows stay the same or are deleted; then the
        table stays at its batch. `seconds` is how long it took to write the files, for those who look at the history.
        `deletes_rows` records that rows were deleted because of their age.

        Raises LakeConflict if another run has committed to the table: then nothing has changed.
        """
        now_ms, is_new_data = int(time.time() * 1000), batch is not None
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, {}, now_ms, is_new_data, file.stats) for file in added if file.rows
        ]
        replaced = {file.path for file in added}
        actions += [
            RemoveAction(file.path, is_new_data, now_ms, size=file.size_bytes)
            for file in removed
            if file.path not in replaced
        ]
        recorded = {_EPOCH: self.epoch if epoch is None else epoch, **(marks or {})}
        recorded |= {APP: batch} if batch is not None else {}
        recorded |= {_ROWS_DELETED: 1} if deletes_rows else {}
        recorded |= {_shard_mark(shard): offset for shard, offset in (offsets or {}).items()}
        if offsets is not None:
            recorded[_SHARDS] = max([-1, *offsets, *self.offsets]) + 1
        try:
            delta = self._delta or self._create()
            with commit_errors(self.folder):
                self._add_columns(delta)
                delta.create_write_transaction(
                    actions,
                    "append",
                    self._delta_schema(),
                    commit_properties=CommitProperties(
                        app_transactions=[Transaction(name, number) for name, number in recorded.items()],
                        custom_metadata=_metadata(added, seconds) if seconds is not None else None,
                        max_commit_retries=0,
                    ),
                )
                force_commit(self.folder, delta.version() + 1)
        finally:
            self._reload()

    def _add_columns(self, delta: DeltaTable) -> None:
        """Adds columns of this version to a table of one before. Rows that it has already are null in them."""
        known = {field.name for field in delta.schema().fields}
        missing = [field for field in self._delta_schema().fields if field.name not in known]
        if missing:
            with no_other_commit(self.folder, delta):
                delta.alter.add_columns(missing, commit_properties=ONE_TRY)

    def history(self, limit: int) -> list[WrittenCommit]:
        """Returns the last commits that wrote rows, the newest first, out of the last `limit` of any kind."""
        found = self._delta.history(limit) if self._delta is not None else []
        return [
            WrittenCommit(info["timestamp"], int(info[_ROWS]), int(info[_BYTES]), float(info[_SECONDS]))
            for info in found
            if _SECONDS in info
        ]

    def begin_epoch(self, epoch: int, marks: Mapping[str, int] | None = None) -> None:
        """Empties the table, so that it takes in every event again."""
        offsets = dict.fromkeys(self.offsets, 0)
        self.commit([], batch=self.batch + 1, removed=self.files(), offsets=offsets, epoch=epoch, marks=marks)

    @property
    def has_deleted_rows(self) -> bool:
        """Whether rows were deleted because of their age."""
        return self.mark(_ROWS_DELETED) is not None

    def vacuum(self, unused_hours: int = UNUSED_HOURS) -> int:
        """Deletes files that have not been in the table for so long, or never. Returns their number.

        Raises LakeConflict if another run does the same: then either has deleted some.
        """
        if self._delta is None:
            return 0
        try:
            with commit_errors(self.folder):
                removed = self._delta.vacuum(
                    unused_hours, dry_run=False, enforce_retention_duration=False, full=True, commit_properties=ONE_TRY
                )
        finally:
            self._reload()
        if self.folder.is_local:
            self._remove_empty_folders(unused_hours)
        return len(removed)

    def _remove_empty_folders(self, unused_hours: int) -> None:
        oldest_s = time.time() - unused_hours * 3600
        for folder in Path(self.folder).glob("b*"):  # older versions left folders with an underscore when a write died
            with suppress(FileNotFoundError):  # another run removes it
                has_files = any("_temporary" not in file.parts for file in folder.rglob("*.parquet"))
                if not has_files and folder.stat().st_mtime < oldest_s:
                    shutil.rmtree(folder, ignore_errors=True)

    def _reload(self) -> None:
        try:
            self._delta = DeltaTable(str(self.folder)) if self.folder.holds_table() else None
        except OSError as fault:
            raise LakeUnavailable(f"{self.folder} cannot be read: {one_line(fault)}") from None
        except DeltaError as fault:
            raise LakeDamaged(f"the log of {self.folder} cannot be read: {one_line(fault)}") from None

    def _create(self, properties: Mapping[str, str] | None = None) -> DeltaTable:
        if self.folder.is_local:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
        try:
            if not self.folder.is_local:
                check_commits(self.folder.parent)
            made = DeltaTable.create(
                str(self.folder),
                self._delta_schema(),
                mode="error",
                name=self.folder.name,
                configuration=dict(properties or {}),
                raise_if_key_not_exists=False,
            )
            force_commit(self.folder, 0)
            return made
        except (DeltaError, OSError) as fault:
            self._reload()
            if self._delta is None:
                raise LakeUnavailable(f"{self.folder.name}: cannot be created: {one_line(fault)}") from None
            raise LakeConflict(f"{self.folder.name}: another run has created the table: {one_line(fault)}") from None

    def _delta_schema(self) -> Schema:
        return Schema.from_arrow(self.arrow_schema)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone="UTC")


class Lake:
    """The tables in one folder, of this machine or of an object store. `gold` pairs the definition of each gold table
    with the table itself.
    """

    def __init__(self, folder: str | PathLike[str] | Folder) -> None:
        """`folder` is a path, or the URL of an object store such as `s3://bucket/path`."""
        self.folder = folder_of(folder)
        self.bronze = self.table(tables.BRONZE_EVENTS, "at", "shard", "seq", "task_id")
        self.attempts = self.table(tables.SILVER_ATTEMPTS, "ended_at", "task_id")
        self.tasks = self.table(tables.SILVER_TASKS, "ended_at", "task_id")
        self.violations = self.table(tables.AUDIT_VIOLATIONS)
        self.queues = self.table(tables.AUDIT_QUEUES)
        self.gold = [(definition, self.table(definition.table)) for definition in gold.ALL]

    def table(self, table: tables.Table, *bounded: str) -> LakeTable:
        return LakeTable(self.folder / table.name, table.schema, bounded)

    @property
    def silver(self) -> tuple[LakeTable, LakeTable]:
        return self.attempts, self.tasks

    @property
    def of_audit(self) -> tuple[LakeTable, LakeTable]:
        """What silver_tasks records for the audit. Both follow its batches."""
        return self.violations, self.queues

    @property
    def all(self) -> list[LakeTable]:
        return [self.bronze, *self.silver, *[table for _, table in self.gold]]


def _metadata(added: Sequence[NewFile], seconds: float) -> dict[str, str]:
    rows, size_bytes = sum(file.rows for file in added), sum(file.size_bytes for file in added)
    return {_ROWS: str(rows), _BYTES: str(size_bytes), _SECONDS: f"{seconds:.3f}"}


def _shard_mark(shard: int) -> str:
    return f"{APP}/shard/{shard}"
