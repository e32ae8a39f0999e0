"""Reads Parquet files by ranges of task ids, and runs functions on executors; all rows of a task are in one range.

Files are sorted by task id, so a range is found in few row groups, and no shuffle is needed.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake.folder import files_at, storage_errors
from codeq.pipeline.lake.grouping import Mask, is_repetitive

_READ = {"use_threads": False, "batch_size": 1 << 14, "batch_readahead": 1}
"""By default pyarrow decodes 16 batches ahead, of each of four files: that is hundreds of megabytes, and slower."""
_TASK_RESULT = pa.schema([("values", pa.list_(pa.string())), ("error", pa.binary())])


class IdRange(NamedTuple):
    """Task ids from `low` to before `high`. None for `high` is no end."""

    low: str = ""
    high: str | None = None

    def expression(self) -> ds.Expression | None:
        """The range as a filter; None if it has all ids."""
        parts = [ds.field("task_id") >= self.low] if self.low else []
        parts += [ds.field("task_id") < self.high] if self.high is not None else []
        return None if not parts else parts[0] if len(parts) == 1 else parts[0] & parts[1]


ALL_IDS = IdRange()


class ParquetFiles(Struct, frozen=True):
    """Names Parquet files to be read on executors."""

    paths: tuple[str, ...]
    schema: pa.Schema
    starts: dict[int, int] = {}
    ends: dict[int, int] | None = None
    """Of events, by shard: the first to read, and the one after the last. With `ends`, shards that it does not name
    have no events to read.
    """
    columns: tuple[str, ...] | None = None
    """Those to be read; None for all."""

    def batches(self, ids: IdRange = ALL_IDS) -> Iterator[pa.RecordBatch]:
        """Reads the rows of these tasks, in the order of the files."""
        if not self.paths:
            return
        texts = [field.name for field in self._schema if pa.types.is_dictionary(field.type)]
        # A store is asked for a whole file at once, because requests are slow; what it answers is held meanwhile.
        file_format = ds.ParquetFileFormat(dictionary_columns=texts, pre_buffer="://" in self.paths[0])
        with storage_errors(self.paths):
            system, paths = files_at(self.paths)
            dataset = ds.dataset(paths, self._schema, format=file_format, filesystem=system)
            names = None if self.columns is None else list(self.columns)
            read = dataset.to_batches(names, ids.expression(), **_READ)
            for batch in read:
                yield batch if self.ends is None else batch.filter(pa.array(self._is_wanted(batch)))

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Reads all rows with the types of the schema, as Spark wants them."""
        with storage_errors(self.paths):
            system, paths = files_at(self.paths)
            dataset = ds.dataset(paths, self.schema, format="parquet", filesystem=system)
            yield from dataset.to_batches(**_READ)

    def read(self, ids: IdRange = ALL_IDS) -> pa.Table:
        """Reads the rows of these tasks, in the order of the files."""
        return pa.Table.from_batches(self.batches(ids), self._schema)

    @property
    def _schema(self) -> pa.Schema:
        """The schema with repetitive texts dictionary-encoded, as Parquet stores them."""
        return pa.schema([
            field.with_type(pa.dictionary(pa.int32(), pa.string())) if is_repetitive(field) else field
            for field in self.schema
        ])  # fmt: skip

    def _is_wanted(self, batch: pa.RecordBatch) -> Mask:
        shards, numbers = batch.column("shard").to_numpy(), batch.column("seq").to_numpy()
        ends = self.ends or {}
        count = max([int(shards.max(initial=0)), *self.starts, *ends]) + 1
        low, high = np.zeros(count, np.int64), np.zeros(count, np.int64)
        low[list(self.starts)] = list(self.starts.values())
        high[list(ends)] = list(ends.values())
        return np.asarray((numbers >= low[shards]) & (numbers < high[shards]))


def run_on_executors(spark: SparkSession, work: Callable[[Any], list[str]], pieces: Sequence[Any]) -> list[str]:
    """Calls `work` for each piece in a Spark task of its own. Returns the values of the tasks that succeeded; attempts
    that failed, or ran twice, may have left files that no value names.

    A CodeqError is raised here as it was there: a retry would not help, and Spark would turn it into text.
    """
    if not pieces:
        return []

    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
            values, error = [], b""
            try:
                values = work(pieces[number])
            except CodeqError as raised:
                error = pickle.dumps(raised)
            yield pa.record_batch([[values], [error]], schema=_TASK_RESULT)

    pieces_frame = spark.range(0, len(pieces), 1, len(pieces))
    results = pieces_frame.mapInArrow(task, from_arrow_schema(_TASK_RESULT)).collect()
    for result in results:
        if result.error:
            raise pickle.loads(result.error)  # noqa: S301 - from our own executors
    return [value for result in results for value in result["values"]]
