"""Writes rejected rows as Parquet: each Spark task stages a file, and the commit of the whole write publishes them."""

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from codeq.pipeline.connector.task_rows import Rejected

SCHEMA = pa.schema(
    [("partition", pa.int32()), ("row", pa.int64()), ("code", pa.string()), ("reason", pa.string()),
     ("content", pa.string())]
)  # fmt: skip
"""`content` is the row as JSON."""

ROWS_AT_ONCE = 10_000
_STAGED = "_staged"


class Rejects:
    """The file of rejected rows of one Spark task. Without rejected rows there is no file."""

    def __init__(self, path: str, name: str, partition: int, attempt: int) -> None:
        self._system, self._folder = _file_system(path)
        self._name = f"{name}-{partition:05d}.parquet"
        self._staged = f"{self._folder}/{_STAGED}/{attempt}-{self._name}"
        self._partition = partition
        self._rows: list[tuple[int, int, str, str, str]] = []
        self._writer: Any = None

    def add(self, rejected: Rejected, content: Any) -> None:
        text = msgspec.json.encode(content, enc_hook=str).decode()
        self._rows.append((self._partition, rejected.row, rejected.code, rejected.reason, text))
        if len(self._rows) >= ROWS_AT_ONCE:
            self._flush()

    def close(self) -> tuple[str, str] | None:
        """Finishes the file, and returns its staged and its final path; None if there is no file."""
        self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        return self._staged, f"{self._folder}/{self._name}"

    def drop(self) -> None:
        """Deletes the staged file, because the task failed."""
        if self._writer is not None:
            self._writer.close()
            self._system.delete_file(self._staged)

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            self._system.create_dir(f"{self._folder}/{_STAGED}", recursive=True)
            self._writer = pq.ParquetWriter(self._staged, SCHEMA, filesystem=self._system)
        columns = [
            pa.array(values, field.type) for values, field in zip(zip(*self._rows, strict=True), SCHEMA, strict=True)
        ]
        self._writer.write_table(pa.table(columns, schema=SCHEMA))
        self._rows = []


def publish(path: str, files: list[tuple[str, str]]) -> None:
    """Moves staged files to their final paths."""
    system, _ = _file_system(path)
    for staged, final in files:
        system.move(staged, final)


def discard(path: str, files: list[tuple[str, str]]) -> None:
    """Deletes staged files, because the write failed."""
    system, _ = _file_system(path)
    for staged, _ in files:
        if system.get_file_info(staged).type is not fs.FileType.NotFound:
            system.delete_file(staged)


def _file_system(path: str) -> tuple[Any, str]:
    """Returns the file system and the folder of a local path, or of the URL of an object store that pyarrow knows."""
    if "://" in path:
        system, folder = fs.FileSystem.from_uri(path)
        return system, folder.rstrip("/")
    return fs.LocalFileSystem(), path.rstrip("/")
