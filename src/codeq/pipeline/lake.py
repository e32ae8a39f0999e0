"""The lake: Delta tables whose files Spark writes and delta-rs commits, each commit with the batch that it brings in.

A file's name says which part of the table it belongs to and which batch brought it: `closed/b00000012-3f9c...`. So the
files behind a batch are found without reading any, and a part of a table is replaced by naming its files.
"""

import json
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from codeq.domain.errors import CodeqError

APP = "codeq"
VACUUM_AFTER_S = 3600
"""Files that no commit names may belong to a run under way; after an hour they belong to one that died."""

_NAME = re.compile(r"(?P<part>[^/]+)/b(?P<batch>\d{8})-[^/]+/(?:_day=(?P<day>[^/]+)/)?[^/]+\.parquet")
_DAY = "_day"
"""Copy of the column `day` by which files are kept apart; `day` itself stays inside them, for every reader."""


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


class LakeTable:
    """One Delta table. `batch` is the last batch it has taken in; `offsets` the first events it has not seen."""

    def __init__(self, folder: Path, schema: StructType) -> None:
        self.folder = folder
        self.schema = schema
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

    def files(
        self, *, part: str | None = None, after_batch: int = -1, up_to_batch: int | None = None
    ) -> list[DataFile]:
        """The files of the table, by name."""
        if self._delta is None:
            return []
        found = []
        actions = self._delta.get_add_actions(flatten=True)
        columns = [actions.column(name).to_pylist() for name in ("path", "num_records", "size_bytes")]
        for path, rows, size_bytes in zip(*columns, strict=True):
            name = _NAME.fullmatch(path)
            if name is None:
                continue  # not ours: somebody wrote to the table by other means
            batch = int(name["batch"])
            if part in (None, name["part"]) and after_batch < batch and (up_to_batch is None or batch <= up_to_batch):
                found.append(DataFile(path, name["part"], batch, int(rows or 0), int(size_bytes or 0), name["day"]))
        return sorted(found, key=lambda file: (file.batch, file.path))

    def read(self, spark: SparkSession, files: Sequence[DataFile] | None = None) -> DataFrame:
        """The rows of the files; of the whole table if none are named."""
        chosen = self.files() if files is None else files
        if not chosen:
            return spark.createDataFrame([], self.schema)
        return spark.read.schema(self.schema).parquet(*[str(self.folder / file.path) for file in chosen])

    def write(self, rows: DataFrame, *, part: str, batch: int, by_day: bool = False) -> "list[Written]":
        """Have Spark write the rows as files. They are not in the table before a commit names them."""
        target = self.folder / part / f"b{batch:08d}-{uuid.uuid4().hex}"
        chosen = rows.select(*self.schema.fieldNames())
        writer = chosen.withColumn(_DAY, chosen["day"]).write.partitionBy(_DAY) if by_day else chosen.write
        writer.mode("error").option("compression", "zstd").parquet(str(target))
        return [_written(self.folder, file) for file in sorted(target.rglob("*.parquet"))]

    def commit(
        self,
        added: "Sequence[Written]",
        *,
        batch: int,
        removed: Sequence[DataFile] = (),
        offsets: Mapping[int, int] | None = None,
        is_new_data: bool = True,
    ) -> None:
        """Put files into the table and take others out, in one step that happens once per batch.

        Raises LakeConflict if another run was faster: nothing has changed then.
        """
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, {}, now_ms, is_new_data, file.stats) for file in added if file.rows
        ]
        actions += [RemoveAction(file.path, is_new_data, now_ms, size=file.size_bytes) for file in removed]
        marks = [Transaction(APP, batch)]
        marks += [Transaction(f"{APP}/shard/{shard}", offset) for shard, offset in (offsets or {}).items()]
        delta = self._delta or self._create()
        if self._delta is None and (delta.transaction_version(APP) or 0) >= batch:
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

    def vacuum(self) -> int:
        """Remove files that no commit names any more. Answers how many."""
        if self._delta is None:
            return 0
        live = {file.path for file in self.files()}
        oldest_s = time.time() - VACUUM_AFTER_S
        removed = 0
        for file in self.folder.glob("*/b*/**/*"):
            if file.is_file() and str(file.relative_to(self.folder)) not in live and file.stat().st_mtime < oldest_s:
                file.unlink()
                removed += 1
        for folder in sorted(self.folder.glob("*/b*/**/"), reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()
        return removed

    def _create(self) -> DeltaTable:
        self.folder.mkdir(parents=True, exist_ok=True)
        return DeltaTable.create(str(self.folder), self._delta_schema(), mode="ignore", name=self.folder.name)

    def _delta_schema(self) -> Schema:
        return Schema.from_arrow(to_arrow_schema(self.schema, timezone="UTC"))


class Written(Struct, frozen=True):
    """A file that Spark wrote, with what its commit says of it."""

    path: str
    rows: int
    size_bytes: int
    stats: str


def _written(table: Path, file: Path) -> Written:
    footer = pq.read_metadata(file)
    stats: dict[str, Any] = {"numRecords": footer.num_rows}
    return Written(str(file.relative_to(table)), footer.num_rows, file.stat().st_size, json.dumps(stats))
