"""The Delta tables of the lake. Spark writes their files, delta-rs commits them, and each commit names its batch.

The name of a file contains its batch and its part of the table: `b00000012-3f9c/part=closed/..`. So the files of a
batch are found without reading any, and a part of a table is replaced by naming its files.
"""

import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake import gold, parquet, partitions, tables
from codeq.pipeline.lake.partitions import ParquetFiles, run_on_executors

APP = "codeq"
_ROWS_DELETED = f"{APP}/forgotten"
UNUSED_HOURS = 24
"""When a file outside the table may be deleted. Before that it may belong to a run in progress, or a query may still
read it.
"""

_NAME = re.compile(r"b(?P<batch>\d{8})-[^/]+/part=(?P<part>[^/]+)/(?:on=(?P<day>[^/]+)/)?[^/]+\.parquet")
_PART, _DAY = "part", "on"
"""Folders by which files are split. The files contain all columns of the table nevertheless, for every reader."""

OPEN, CLOSED, EVENTS, DAYS = "open", "closed", "events", "days"
"""The parts of a table."""

ReadPiece = Callable[[Any], Iterator[pa.RecordBatch]]
"""Reads the rows of one piece, on an executor."""


class LakeConflict(CodeqError):
    """Another run has committed to the table in the meantime; the files of this run are not in it."""

    code = "lake-conflict"


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


class LakeTable:
    """One Delta table. `batch` is the last batch in it; `offsets` are the first events that are not in it."""

    def __init__(self, folder: Path, schema: StructType, time_column: str | None = None) -> None:
        self.folder = folder
        self.schema = schema
        self._time_column = time_column
        self._delta = DeltaTable(str(folder)) if DeltaTable.is_deltatable(str(folder)) else None

    @property
    def exists(self) -> bool:
        return self._delta is not None

    @property
    def batch(self) -> int:
        return self._delta.transaction_version(APP) or 0 if self._delta is not None else 0

    def offset(self, shard: int) -> int | None:
        """Returns the next event of the shard to ingest; None before the first."""
        return self._delta.transaction_version(f"{APP}/shard/{shard}") if self._delta is not None else None

    @property
    def offsets(self) -> dict[int, int]:
        """The next event to ingest, by shard."""
        found: dict[int, int] = {}
        while (offset := self.offset(len(found))) is not None:
            found[len(found)] = offset
        return found

    def files(
        self, *, part: str | None = None, after_batch: int = -1, up_to_batch: int | None = None
    ) -> list[DataFile]:
        """Returns the files of the table, ordered by batch and path."""
        if self._delta is None:
            return []
        found = []
        actions = self._delta.get_add_actions(flatten=True)
        columns: list[Any] = [_values(actions, name) for name in ("path", "num_records", "size_bytes")]
        columns += [_values(actions, f"{bound}.{self._time_column}") for bound in ("min", "max")]
        for path, rows, size_bytes, first_at, last_at in zip(*columns, strict=True):
            name = _NAME.fullmatch(path)
            if name is None:
                continue  # not written by this pipeline
            batch = int(name["batch"])
            if part in (None, name["part"]) and after_batch < batch and (up_to_batch is None or batch <= up_to_batch):
                sizes = int(rows or 0), int(size_bytes or 0)
                found.append(DataFile(path, name["part"], batch, *sizes, name["day"], first_at, last_at))
        return sorted(found, key=lambda file: (file.batch, file.path))

    def read(self, spark: SparkSession, files: Sequence[DataFile] | None = None) -> DataFrame:
        """Reads the rows of the files; of the whole table if none are given."""
        chosen = self.files() if files is None else files
        if not chosen:
            return spark.createDataFrame([], self.schema)
        return spark.read.schema(self.schema).parquet(*[str(self.folder / file.path) for file in chosen])

    def parquet_files(
        self, files: Sequence[DataFile], *, start_offsets: Mapping[int, int] | None = None
    ) -> ParquetFiles:
        """Names files to be read by Python on executors; of events, only those from an offset of each shard on."""
        paths = tuple(str(self.folder / file.path) for file in files)
        return ParquetFiles(paths, self._arrow_schema, sum(file.rows for file in files), dict(start_offsets or {}))

    def write(self, rows: DataFrame, *, part: str, batch: int, by_day: bool = False) -> "list[NewFile]":
        """Writes the rows with Spark. The files are not in the table before a commit adds them."""
        folder = self._new_folder(batch)
        chosen = rows.select(*self.schema.fieldNames())
        writer = chosen.withColumn(_DAY, chosen["day"]).write.partitionBy(_DAY) if by_day else chosen.write
        writer.mode("error").options(**parquet.SPARK_OPTIONS).parquet(str(folder / f"{_PART}={part}"))
        return self._new_files(map(str, folder.rglob("*.parquet")))

    def write_pieces(
        self, spark: SparkSession, read: ReadPiece, pieces: Sequence[Any], *, part: str, batch: int
    ) -> "list[NewFile]":
        """Reads each piece and writes its rows, on executors."""
        folder, schema = str(self._new_folder(batch) / f"{_PART}={part}"), self._arrow_schema
        paths = run_on_executors(spark, lambda piece: parquet.write_stream(folder, schema, read(piece)), pieces)
        return self._new_files(paths)

    def write_update(
        self,
        spark: SparkSession,
        update: partitions.Update,
        *,
        open_files: Sequence[DataFile],
        events: ParquetFiles,
        batch: int,
    ) -> "list[NewFile]":
        """Updates open rows with new events on executors, and writes the open and the closed rows there."""
        folder = self._new_folder(batch)
        parts = {str(folder / f"{_PART}={part}"): is_open for part, is_open in ((OPEN, True), (CLOSED, False))}
        write = partial(parquet.write_by_state, parts, self._arrow_schema)
        return self._new_files(partitions.update_files(spark, update, (self.parquet_files(open_files), events), write))

    def _new_folder(self, batch: int) -> Path:
        return self.folder / f"b{batch:08d}-{uuid.uuid4().hex}"

    def _new_files(self, paths: Iterable[str]) -> "list[NewFile]":
        return [_new_file(self.folder, Path(path), self._time_column) for path in sorted(paths)]

    def commit(
        self,
        added: "Sequence[NewFile]",
        *,
        batch: int | None,
        removed: Sequence[DataFile] = (),
        offsets: Mapping[int, int] | None = None,
        deletes_rows: bool = False,
    ) -> None:
        """Adds and removes files in one transaction. `batch` is None if the rows stay the same or are deleted; then the
        table stays at its batch. `deletes_rows` records that rows were deleted because of their age.

        Raises LakeConflict if another run has committed the batch: then nothing has changed.
        """
        now_ms, is_new_data = int(time.time() * 1000), batch is not None
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, {}, now_ms, is_new_data, file.stats) for file in added if file.rows
        ]
        actions += [RemoveAction(file.path, is_new_data, now_ms, size=file.size_bytes) for file in removed]
        marks = [Transaction(APP, batch)] if batch is not None else []
        marks += [Transaction(_ROWS_DELETED, 1)] if deletes_rows else []
        marks += [Transaction(f"{APP}/shard/{shard}", offset) for shard, offset in (offsets or {}).items()]
        delta = self._delta or self._create()
        if batch is not None and self._delta is None and (delta.transaction_version(APP) or 0) >= batch:
            raise LakeConflict(f"{self.folder.name}: another run has created the table in the meantime")
        try:
            delta.create_write_transaction(
                actions,
                "append",
                self._delta_schema(),
                commit_properties=CommitProperties(app_transactions=marks, max_commit_retries=0),
            )
        except CommitFailedError as fault:
            raise LakeConflict(f"{self.folder.name}: another run has committed in the meantime: {fault}") from None
        finally:
            self._delta = DeltaTable(str(self.folder))

    def drop(self) -> None:
        """Deletes the table. Its folder is renamed first, because half a table would look like a whole one."""
        if self.folder.exists():
            deleted = self.folder.with_name(f".{self.folder.name}-{uuid.uuid4().hex}")
            self.folder.rename(deleted)
            shutil.rmtree(deleted, ignore_errors=True)
        self._delta = None

    @property
    def has_deleted_rows(self) -> bool:
        """Whether rows were deleted because of their age."""
        return self._delta is not None and self._delta.transaction_version(_ROWS_DELETED) is not None

    def vacuum(self, unused_hours: int = UNUSED_HOURS) -> int:
        """Deletes files that have not been in the table for so long, or never. Returns their number."""
        if self._delta is None:
            return 0
        removed = self._delta.vacuum(
            unused_hours, dry_run=False, enforce_retention_duration=False, full=True,
            commit_properties=CommitProperties(max_commit_retries=0),
        )  # fmt: skip
        self._delta = DeltaTable(str(self.folder))
        oldest_s = time.time() - unused_hours * 3600
        for folder in self.folder.glob("b*"):  # Spark leaves folders with an underscore when a write dies
            has_files = any("_temporary" not in file.parts for file in folder.rglob("*.parquet"))
            if not has_files and folder.stat().st_mtime < oldest_s:
                shutil.rmtree(folder, ignore_errors=True)
        return len(removed)

    def _create(self) -> DeltaTable:
        self.folder.mkdir(parents=True, exist_ok=True)
        return DeltaTable.create(str(self.folder), self._delta_schema(), mode="ignore", name=self.folder.name)

    def _delta_schema(self) -> Schema:
        return Schema.from_arrow(self._arrow_schema)

    @property
    def _arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone="UTC")


class Lake:
    """The tables in one folder. `gold` pairs the definition of each gold table with the table itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()  # a Spark Connect server has another working directory
        self.bronze = self.table(tables.BRONZE_EVENTS, "at")
        self.attempts = self.table(tables.SILVER_ATTEMPTS, "ended_at")
        self.tasks = self.table(tables.SILVER_TASKS, "ended_at")
        self.gold = [(definition, self.table(definition.table)) for definition in gold.ALL]

    def table(self, table: tables.Table, time_column: str | None = None) -> LakeTable:
        return LakeTable(self.folder / table.name, table.schema, time_column)

    @property
    def all(self) -> list[LakeTable]:
        return [self.bronze, self.attempts, self.tasks, *[table for _, table in self.gold]]


class NewFile(Struct, frozen=True):
    """A file that was written and is not in the table yet, with the statistics for its commit."""

    path: str
    rows: int
    size_bytes: int
    stats: str


def _values(actions: Any, name: str) -> list[Any]:
    values: list[Any] = actions.column(name).to_pylist() if name in actions.schema.names else [None] * actions.num_rows
    return values


def _new_file(table: Path, file: Path, time_column: str | None) -> NewFile:
    footer = pq.read_metadata(file)
    stats: dict[str, Any] = {"numRecords": footer.num_rows}
    if time_column is not None and footer.num_rows:
        stats |= _bounds(footer, time_column)
    return NewFile(str(file.relative_to(table)), footer.num_rows, file.stat().st_size, json.dumps(stats))


def _bounds(footer: pq.FileMetaData, column: str) -> dict[str, Any]:
    index = footer.schema.to_arrow_schema().names.index(column)
    groups = [footer.row_group(number).column(index).statistics for number in range(footer.num_row_groups)]
    known = [group for group in groups if group is not None and group.has_min_max]
    if not known or len(known) < len(groups):
        return {}
    return {
        "minValues": {column: min(group.min for group in known).isoformat()},
        "maxValues": {column: max(group.max for group in known).isoformat()},
    }
