"""Functions of Arrow tables that Spark runs on shares of the tasks, each with all that belongs to its tasks.

Spark would have to read the rows, sort them by task and hand them to Python, which takes far longer than to make new
rows of them. So where they lie in files, every share reads all of these and keeps what is its own: Parquet is read
faster than any server can write events, and much faster than it is sorted.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from codeq.domain.errors import CodeqError
from codeq.pipeline.lake.grouping import Mask, Numbers, repeats
from codeq.pipeline.session import tasks_at_once

Carry = Callable[[pa.Table, pa.Table], pa.Table]
"""Rows that are open and new events: the rows that come of them."""
Write = Callable[[pa.Table], list[str]]
"""Writes rows into files of their own, and answers where."""

ROWS_PER_SHARE = 1_000_000
"""What one process of Python holds at once, so some hundred megabytes."""
ROWS_WORTH_SHARING = 100_000
_ROWS_PER_READ = 1 << 16
_ANSWER = pa.schema([("said", pa.list_(pa.string())), ("fault", pa.binary())])
_WORD = 8
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Files(Struct, frozen=True):
    """Rows in Parquet files, in a form that travels to where they are read."""

    paths: tuple[str, ...]
    schema: pa.Schema
    rows: int
    since: dict[int, int] = {}
    """By shard the first event that is wanted."""

    def batches(self, *names: str) -> Iterator[pa.RecordBatch]:
        """All rows in their order; of these columns, if any are named."""
        if not self.paths:
            return iter(())
        texts = [field.name for field in self._schema if pa.types.is_dictionary(field.type)]
        kind = ds.ParquetFileFormat(dictionary_columns=texts)
        dataset = ds.dataset(list(self.paths), self._schema, format=kind)
        batches: Iterator[pa.RecordBatch] = dataset.to_batches(
            columns=list(names) or None, use_threads=False, batch_size=_ROWS_PER_READ
        )
        return batches

    def share(self, number: int, shares: int) -> pa.Table:
        """The rows whose tasks belong to this share, in the order of the files."""
        found = [batch.filter(pa.array(self._is_wanted(batch, number, shares))) for batch in self.batches()]
        return pa.Table.from_batches(found, self._schema)

    def ends(self) -> dict[int, int]:
        """Of events: by shard, one past the last."""
        ends: dict[int, int] = {}
        for batch in self.batches("shard", "seq"):
            shards, numbers = batch.column("shard").to_numpy(), batch.column("seq").to_numpy()
            for shard in np.unique(shards).tolist():
                ends[shard] = max(ends.get(shard, 0), int(numbers[shards == shard].max()) + 1)
        return ends

    @property
    def _schema(self) -> pa.Schema:
        """Texts that repeat come as numbers and a list of texts, which is how Parquet has them."""
        return pa.schema([
            field.with_type(pa.dictionary(pa.int32(), pa.string())) if repeats(field) else field
            for field in self.schema
        ])  # fmt: skip

    def _is_wanted(self, batch: pa.RecordBatch, number: int, shares: int) -> Mask:
        is_mine: Mask = np.ones(len(batch), bool)
        if shares > 1:
            is_mine = share_of(batch.column("task_id"), shares) == number
        if not self.since:
            return is_mine
        shards, numbers = batch.column("shard").to_numpy(), batch.column("seq").to_numpy()
        since = np.zeros(max(*self.since, shards.max(initial=0)) + 1, np.int64)
        since[list(self.since)] = list(self.since.values())
        return np.asarray(is_mine & (numbers >= since[shards]))


def of_files(spark: SparkSession, carry: Carry, rows: tuple[Files, Files], write: Write) -> list[str]:
    """Have executors make rows of open ones and of new events, and write them. Answers where they are."""
    open_rows, events = rows
    shares = _shares(spark, open_rows.rows + events.rows)

    def work(number: int) -> list[str]:
        return write(carry(open_rows.share(number, shares), events.share(number, shares)))

    return on_executors(spark, work, range(shares))


def of_frames(carry: Carry, open_rows: DataFrame, events: DataFrame) -> DataFrame:
    """The same of tables of Spark, wherever they come from."""
    schema = to_arrow_schema(open_rows.schema, timezone="UTC")
    share = f.pmod(f.xxhash64("task_id"), f.lit(tasks_at_once(open_rows.sparkSession)))

    def work(open_rows: pa.Table, events: pa.Table) -> pa.Table:
        return carry(open_rows, events).cast(schema)

    both = open_rows.groupBy(share).cogroup(events.groupBy(share))
    return both.applyInArrow(work, open_rows.schema)


def on_executors(spark: SparkSession, work: Callable[[Any], list[str]], pieces: Sequence[Any]) -> list[str]:
    """Have executors do the work on every piece, a task for each. Answers what those tasks said that came to their end;
    one that failed, or was run twice, may have left things behind that nobody names.

    An error of ours is raised here as it was there: to try again would not help, and Spark would bury it in text.
    """

    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
            said, fault = [], b""
            try:
                said = work(pieces[number])
            except CodeqError as raised:
                fault = pickle.dumps(raised)
            yield pa.record_batch([[said], [fault]], schema=_ANSWER)

    answers = spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(task, from_arrow_schema(_ANSWER)).collect()
    for answer in answers:
        if answer.fault:
            raise pickle.loads(answer.fault)  # noqa: S301 - from our own executors
    return [one for answer in answers for one in answer.said]


def share_of(ids: pa.Array, shares: int) -> Numbers:
    """To which share each id belongs: the same on every machine, and about as many to each.

    Ids of one length are read together, eight letters at a time.
    """
    begins = np.frombuffer(ids.buffers()[1], np.int32)[ids.offset : ids.offset + len(ids) + 1].astype(np.int64)
    letters = np.frombuffer(ids.buffers()[2] or b"", np.uint8)
    lengths = np.diff(begins)
    found = np.zeros(len(ids), np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        found[rows] = _mixed(letters, begins[rows], length)
    return np.asarray((found % np.uint64(shares)).astype(np.int64))


def _mixed(letters: npt.NDArray[np.uint8], begins: Numbers, length: int) -> npt.NDArray[np.uint64]:
    size = _WORD if length >= _WORD else 1
    words = np.ndarray((max(0, len(letters) - size + 1),), f"<u{size}", letters.data, strides=(1,))
    mixed = np.full(len(begins), length, np.uint64)
    for place in sorted({*range(0, length - size + 1, size), length - size}) if length else ():
        mixed = (mixed ^ words[begins + place]) * _ODD
        mixed ^= mixed >> np.uint64(32)
    return mixed


def _shares(spark: SparkSession, rows: int) -> int:
    """One for each task that Spark runs at once, unless there are very few rows or very many."""
    return max(min(tasks_at_once(spark), -(-rows // ROWS_WORTH_SHARING)), -(-rows // ROWS_PER_SHARE), 1)
