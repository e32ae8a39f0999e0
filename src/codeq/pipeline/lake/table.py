"""The lake: Delta tables whose files Spark writes and delta-rs commits, each commit with the batch that it brings in.

A file's name says which batch brought it and to which part of the table it belongs: `b00000012-3f9c/part=closed/..`. So
the files behind a batch are found without reading any, and a part of a table is replaced by naming its files.
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
from codeq.pipeline.lake.partitions import Files, on_executors

APP = "codeq"
_FORGOTTEN = f"{APP}/forgotten"
UNUSED_HOURS = 24
"""A file that no commit names may belong to a run under way, and one taken out may still be read by somebody. After a
day it may go."""

_NAME = re.compile(r"b(?P<batch>\d{8})-[^/]+/part=(?P<part>[^/]+)/(?:on=(?P<day>[^/]+)/)?[^/]+\.parquet")
_PART, _DAY = "part", "on"
"""By these files are kept apart. All columns of the table stay inside them, for every reader."""

OPEN, CLOSED, EVENTS, DAYS = "open", "closed", "events", "days"
"""The parts of tables."""

Read = Callable[[Any], Iterator[pa.RecordBatch]]
"""Reads a piece of something, where it is called."""


class LakeConflict(CodeqError):
    """Another run has committed to the table meanwhile; what this one wrote is not in it."""

    code = "lake-conflict"


class DataFile(Struct, frozen=True):
    path: str
    part: str
    batch: int
    rows: int
    size_bytes: int
    day: str | None = None
    """The one day whose rows it holds, where files are kept apart by day."""
    since: datetime | None = None
    until: datetime | None = None
    """The times of its rows, where the table has such a column."""


class LakeTable:
    """One Delta table. `batch` is the last batch it has taken in; `offsets` the first events it has not seen."""

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
        """The next event of the shard to take in; None before the first."""
        return self._delta.transaction_version(f"{APP}/shard/{shard}") if self._delta is not None else None

    @property
    def offsets(self) -> dict[int, int]:
        """The same for every shard."""
        found: dict[int, int] = {}
        while (offset := self.offset(len(found))) is not None:
            found[len(found)] = offset
        return found

    def files(
        self, *, part: str | None = None, after_batch: int = -1, up_to_batch: int | None = None
    ) -> list[DataFile]:
        """The files of the table, by name."""
        if self._delta is None:
            return []
        found = []
        actions = self._delta.get_add_actions(flatten=True)
        columns: list[Any] = [_values(actions, name) for name in ("path", "num_records", "size_bytes")]
        columns += [_values(actions, f"{bound}.{self._time_column}") for bound in ("min", "max")]
        for path, rows, size_bytes, since, until in zip(*columns, strict=True):
            name = _NAME.fullmatch(path)
            if name is None:
                continue  # not ours: somebody wrote to the table by other means
            batch = int(name["batch"])
            if part in (None, name["part"]) and after_batch < batch and (up_to_batch is None or batch <= up_to_batch):
                sizes = int(rows or 0), int(size_bytes or 0)
                found.append(DataFile(path, name["part"], batch, *sizes, name["day"], since, until))
        return sorted(found, key=lambda file: (file.batch, file.path))

    def read(self, spark: SparkSession, files: Sequence[DataFile] | None = None) -> DataFrame:
        """The rows of the files; of the whole table if none are named."""
        chosen = self.files() if files is None else files
        if not chosen:
            return spark.createDataFrame([], self.schema)
        return spark.read.schema(self.schema).parquet(*[str(self.folder / file.path) for file in chosen])

    def holding(self, files: Sequence[DataFile], *, since: Mapping[int, int] | None = None) -> Files:
        """The same to be read by Python on executors; of events, those from an offset of each shard on."""
        paths = tuple(str(self.folder / file.path) for file in files)
        return Files(paths, self._arrow_schema, sum(file.rows for file in files), dict(since or {}))

    def write(self, rows: DataFrame, *, part: str, batch: int, by_day: bool = False) -> "list[Written]":
        """Have Spark write the rows as files. They are not in the table before a commit names them."""
        folder = self._new_folder(batch)
        chosen = rows.select(*self.schema.fieldNames())
        writer = chosen.withColumn(_DAY, chosen["day"]).write.partitionBy(_DAY) if by_day else chosen.write
        writer.mode("error").options(**parquet.OPTIONS).parquet(str(folder / f"{_PART}={part}"))
        return self._written(map(str, folder.rglob("*.parquet")))

    def write_read(
        self, spark: SparkSession, read: Read, pieces: Sequence[Any], *, part: str, batch: int
    ) -> "list[Written]":
        """Have executors read each piece and write its rows."""
        folder, schema = str(self._new_folder(batch) / f"{_PART}={part}"), self._arrow_schema
        paths = on_executors(spark, lambda piece: parquet.write_stream(folder, schema, read(piece)), pieces)
        return self._written(paths)

    def write_carried(
        self, spark: SparkSession, carry: partitions.Carry, *, open_files: Sequence[DataFile], events: Files, batch: int
    ) -> "list[Written]":
        """Have executors write the rows that come of open ones and of new events, apart by whether they are open."""
        folder = self._new_folder(batch)
        parts = {str(folder / f"{_PART}={part}"): is_open for part, is_open in ((OPEN, True), (CLOSED, False))}
        write = partial(parquet.write_apart, parts, self._arrow_schema)
        return self._written(partitions.of_files(spark, carry, (self.holding(open_files), events), write))

    def _new_folder(self, batch: int) -> Path:
        return self.folder / f"b{batch:08d}-{uuid.uuid4().hex}"

    def _written(self, paths: Iterable[str]) -> "list[Written]":
        return [_written(self.folder, Path(path), self._time_column) for path in sorted(paths)]

    def commit(
        self,
        added: "Sequence[Written]",
        *,
        batch: int | None,
        removed: Sequence[DataFile] = (),
        offsets: Mapping[int, int] | None = None,
        forgotten: bool = False,
    ) -> None:
        """Put files into the table and take others out, in one step that happens once per batch. Without a batch the
        table says nothing new.

        Raises LakeConflict if another run was faster: nothing has changed then.
        """
        now_ms, is_new_data = int(time.time() * 1000), batch is not None
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, {}, now_ms, is_new_data, file.stats) for file in added if file.rows
        ]
        actions += [RemoveAction(file.path, is_new_data, now_ms, size=file.size_bytes) for file in removed]
        marks = [Transaction(APP, batch)] if batch is not None else []
        marks += [Transaction(_FORGOTTEN, 1)] if forgotten else []
        marks += [Transaction(f"{APP}/shard/{shard}", offset) for shard, offset in (offsets or {}).items()]
        delta = self._delta or self._create()
        if batch is not None and self._delta is None and (delta.transaction_version(APP) or 0) >= batch:
            raise LakeConflict(f"{self.folder.name}: another run has made the table meanwhile")
        try:
            delta.create_write_transaction(
                actions,
                "append",
                self._delta_schema(),
                commit_properties=CommitProperties(app_transactions=marks, max_commit_retries=0),
            )
        except CommitFailedError as fault:
            raise LakeConflict(f"{self.folder.name}: another run has committed meanwhile: {fault}") from None
        finally:
            self._delta = DeltaTable(str(self.folder))

    def drop(self) -> None:
        """Forget the table, to build it anew. It goes in one step: half a table could be taken for a whole one."""
        if self.folder.exists():
            gone = self.folder.with_name(f".{self.folder.name}-{uuid.uuid4().hex}")
            self.folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        self._delta = None

    @property
    def has_forgotten(self) -> bool:
        """Whether rows were removed for their age."""
        return self._delta is not None and self._delta.transaction_version(_FORGOTTEN) is not None

    def vacuum(self, unused_hours: int = UNUSED_HOURS) -> int:
        """Remove files that no commit has named for so long, or ever. Answers how many."""
        if self._delta is None:
            return 0
        removed = self._delta.vacuum(
            unused_hours, dry_run=False, enforce_retention_duration=False, full=True,
            commit_properties=CommitProperties(max_commit_retries=0),
        )  # fmt: skip
        self._delta = DeltaTable(str(self.folder))
        oldest_s = time.time() - unused_hours * 3600
        for folder in self.folder.glob("b*"):  # what Spark left of a write that died begins with an underscore
            kept = any("_temporary" not in file.parts for file in folder.rglob("*.parquet"))
            if not kept and folder.stat().st_mtime < oldest_s:
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
    """The tables in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()  # a server of Spark Connect has another working directory
        self.bronze = self.table(tables.BRONZE_EVENTS, "at")
        self.attempts = self.table(tables.SILVER_ATTEMPTS, "ended_at")
        self.tasks = self.table(tables.SILVER_TASKS, "ended_at")
        self.gold = [(figures, self.table(figures.table)) for figures in gold.ALL]

    def table(self, table: tables.Table, time_column: str | None = None) -> LakeTable:
        return LakeTable(self.folder / table.name, table.schema, time_column)

    @property
    def all(self) -> list[LakeTable]:
        return [self.bronze, self.attempts, self.tasks, *[table for _, table in self.gold]]


class Written(Struct, frozen=True):
    """A file that Spark wrote, with what its commit says of it."""

    path: str
    rows: int
    size_bytes: int
    stats: str


def _values(actions: Any, name: str) -> list[Any]:
    values: list[Any] = actions.column(name).to_pylist() if name in actions.schema.names else [None] * actions.num_rows
    return values


def _written(table: Path, file: Path, time_column: str | None) -> Written:
    footer = pq.read_metadata(file)
    stats: dict[str, Any] = {"numRecords": footer.num_rows}
    if time_column is not None and footer.num_rows:
        stats |= _bounds(footer, time_column)
    return Written(str(file.relative_to(table)), footer.num_rows, file.stat().st_size, json.dumps(stats))


def _bounds(footer: pq.FileMetaData, column: str) -> dict[str, Any]:
    place = footer.schema.to_arrow_schema().names.index(column)
    groups = [footer.row_group(number).column(place).statistics for number in range(footer.num_row_groups)]
    known = [group for group in groups if group is not None and group.has_min_max]
    if not known or len(known) < len(groups):
        return {}
    return {
        "minValues": {column: min(group.min for group in known).isoformat()},
        "maxValues": {column: max(group.max for group in known).isoformat()},
    }
