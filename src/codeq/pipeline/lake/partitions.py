"""Runs functions on executors over hash partitions of task ids; all rows of a task are in the same partition.

Every partition reads all files and filters its own rows. That is faster than a shuffle: Spark would have to read the
rows, sort them by task and pass them to Python, which takes far longer than the function itself, while Parquet is read
faster than any server writes events.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake.grouping import Mask, Numbers, is_repetitive
from codeq.pipeline.session import parallelism_of

Update = Callable[[pa.Table, pa.Table], pa.Table]
"""Takes open rows and new events, and returns the open and closed rows that result."""
Write = Callable[[pa.Table], list[str]]
"""Writes rows into new files, and returns their paths."""

ROWS_PER_PARTITION_MAX = 1_000_000
"""Rows that one Python process holds at once, some hundred megabytes."""
ROWS_PER_PARTITION_MIN = 100_000
_ROWS_PER_READ = 1 << 16
_TASK_RESULT = pa.schema([("values", pa.list_(pa.string())), ("error", pa.binary())])
_WORD_BYTES = 8
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class ParquetFiles(Struct, frozen=True):
    """Names Parquet files to be read on executors."""

    paths: tuple[str, ...]
    schema: pa.Schema
    rows: int
    start_offsets: dict[int, int] = {}
    """By shard, the first event to read; earlier events in the files are skipped."""

    def batches(self, *names: str) -> Iterator[pa.RecordBatch]:
        """Reads all rows in the order of the files; only these columns, if any are named."""
        if not self.paths:
            return iter(())
        texts = [field.name for field in self._schema if pa.types.is_dictionary(field.type)]
        file_format = ds.ParquetFileFormat(dictionary_columns=texts)
        dataset = ds.dataset(list(self.paths), self._schema, format=file_format)
        batches: Iterator[pa.RecordBatch] = dataset.to_batches(
            columns=list(names) or None, use_threads=False, batch_size=_ROWS_PER_READ
        )
        return batches

    def partition(self, number: int, partitions: int) -> pa.Table:
        """Reads the rows of the tasks in this partition, in the order of the files."""
        found = [batch.filter(pa.array(self._is_in(batch, number, partitions))) for batch in self.batches()]
        return pa.Table.from_batches(found, self._schema)

    def end_offsets(self) -> dict[int, int]:
        """Returns by shard the number after its last event. Only for files of events."""
        ends: dict[int, int] = {}
        for batch in self.batches("shard", "seq"):
            shards, numbers = batch.column("shard").to_numpy(), batch.column("seq").to_numpy()
            for shard in np.unique(shards).tolist():
                ends[shard] = max(ends.get(shard, 0), int(numbers[shards == shard].max()) + 1)
        return ends

    @property
    def _schema(self) -> pa.Schema:
        """The schema with repetitive texts dictionary-encoded, as Parquet stores them."""
        return pa.schema([
            field.with_type(pa.dictionary(pa.int32(), pa.string())) if is_repetitive(field) else field
            for field in self.schema
        ])  # fmt: skip

    def _is_in(self, batch: pa.RecordBatch, number: int, partitions: int) -> Mask:
        mask: Mask = np.ones(len(batch), bool)
        if partitions > 1:
            mask = partition_of(batch.column("task_id"), partitions) == number
        if not self.start_offsets:
            return mask
        shards, numbers = batch.column("shard").to_numpy(), batch.column("seq").to_numpy()
        starts = np.zeros(max(*self.start_offsets, shards.max(initial=0)) + 1, np.int64)
        starts[list(self.start_offsets)] = list(self.start_offsets.values())
        return np.asarray(mask & (numbers >= starts[shards]))


def update_files(
    spark: SparkSession, update: Update, rows: tuple[ParquetFiles, ParquetFiles], write: Write
) -> list[str]:
    """Updates open rows with new events on executors, and writes the result there. Returns the paths."""
    open_rows, events = rows
    partitions = _partition_count(spark, open_rows.rows + events.rows)

    def work(number: int) -> list[str]:
        return write(update(open_rows.partition(number, partitions), events.partition(number, partitions)))

    return run_on_executors(spark, work, range(partitions))


def run_on_executors(spark: SparkSession, work: Callable[[Any], list[str]], pieces: Sequence[Any]) -> list[str]:
    """Calls `work` for each piece in a Spark task of its own. Returns the values of the tasks that succeeded; attempts
    that failed, or ran twice, may have left files that no value names.

    A CodeqError is raised here as it was there: a retry would not help, and Spark would turn it into text.
    """

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


def partition_of(ids: pa.Array, partitions: int) -> Numbers:
    """Returns the partition of each id: the same on every machine, and evenly distributed.

    Ids of the same length are hashed together, eight bytes at a time.
    """
    begins = np.frombuffer(ids.buffers()[1], np.int32)[ids.offset : ids.offset + len(ids) + 1].astype(np.int64)
    characters = np.frombuffer(ids.buffers()[2] or b"", np.uint8)
    lengths = np.diff(begins)
    hashes = np.zeros(len(ids), np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _hashes(characters, begins[rows], length)
    return np.asarray((hashes % np.uint64(partitions)).astype(np.int64))


def _hashes(characters: npt.NDArray[np.uint8], begins: Numbers, length: int) -> npt.NDArray[np.uint64]:
    size = _WORD_BYTES if length >= _WORD_BYTES else 1
    words = np.ndarray((max(0, len(characters) - size + 1),), f"<u{size}", characters.data, strides=(1,))
    hashes = np.full(len(begins), length, np.uint64)
    for position in sorted({*range(0, length - size + 1, size), length - size}) if length else ():
        hashes = (hashes ^ words[begins + position]) * _HASH_FACTOR
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _partition_count(spark: SparkSession, rows: int) -> int:
    """One partition per parallel task of Spark; fewer for few rows, more for very many."""
    few = min(parallelism_of(spark), -(-rows // ROWS_PER_PARTITION_MIN))
    return max(few, -(-rows // ROWS_PER_PARTITION_MAX), 1)
