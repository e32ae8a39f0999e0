"""One step of gold on executors: adds up new rows, brings them to the rows that the tables have, and writes these.

One Spark job does it for all tables. Its tasks read pieces: some files of new events, of closed deliveries or tasks, or
of gold rows that are to be replaced. What they add up is shuffled by table and file, as Arrow in binary columns, so
that Spark plans and compiles next to nothing; then every file is merged and written by one task.

Neither side holds more than a bounded number of rows and bytes: pieces are read some rows at a time, and a file is
merged bucket by bucket, each of which has some of its keys.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pandas.util import hash_pandas_object  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from codeq.pipeline.lake import parquet
from codeq.pipeline.lake.data_file import DAY, NewFile, decode_new_file
from codeq.pipeline.lake.gold import GoldBatch, GoldTable
from codeq.pipeline.lake.grouping import Numbers
from codeq.pipeline.lake.partitions import ParquetFiles

ROWS_AT_ONCE, BYTES_AT_ONCE = 1 << 18, 64 << 20
"""What a task adds up at once, and what it collects of the partial rows of a table before it passes them on. Sketches
make rows of eight kilobytes.
"""
BUCKET_ROWS, BUCKET_BYTES = 1 << 18, 64 << 20
"""What is merged at once of a file: rows, and bytes of the files that have them, because sketches make long rows."""
_CHUNK_BYTES = 4 << 20
"""Partial rows in a row of Spark's, which makes batches of 64 MB of them."""

_CHUNKS = pa.schema([("place", pa.int32()), ("file", pa.string()), ("bucket", pa.int32()), ("rows", pa.binary())])
_NEW_FILES = pa.schema([("place", pa.int32()), ("file", pa.string())])

Batches = Iterator[pa.RecordBatch]


class Piece(NamedTuple):
    """Files with rows of one kind."""

    kind: str | int
    """Which rows of a GoldBatch they have; or the place of the gold table that they belong to."""
    files: ParquetFiles


class Chunk(NamedTuple):
    """Partial rows of a table that belong to one bucket of one file."""

    place: int
    file: str
    bucket: int
    rows: bytes


class GoldOutput(Struct, frozen=True):
    """A gold table that takes part in a step."""

    definition: GoldTable
    target: parquet.FileTarget
    newest_day: str
    buckets: int = 1
    """Into how many buckets the keys of a file are divided."""


class GoldStep(Struct, frozen=True):
    """Adds up pieces, and merges the results into files. Both functions run on executors."""

    outputs: tuple[GoldOutput, ...]

    def add_up(self, piece: Piece) -> Iterator[Chunk]:
        """Returns the partial rows of a piece."""
        collected: dict[int, list[pa.Table]] = {place: [] for place in range(len(self.outputs))}
        for place, partials in self._partials(piece):
            parts = collected[place]
            parts.append(partials)
            if sum(map(len, parts)) > ROWS_AT_ONCE or sum(part.nbytes for part in parts) > BYTES_AT_ONCE:
                yield from self._chunks(place, parts)
                parts.clear()
        for place, parts in collected.items():
            if parts:
                yield from self._chunks(place, parts)

    def merge(self, chunks: Iterator[Chunk]) -> Iterator[tuple[int, NewFile]]:
        """Merges chunks that come in the order of their tables, files and buckets, and writes the files."""
        for place, of_table in groupby(chunks, key=itemgetter(0)):
            output = self.outputs[place]
            for file in parquet.write_split(output.target, self._merged(output, of_table)):
                yield place, file

    def _partials(self, piece: Piece) -> Iterator[tuple[int, pa.Table]]:
        for rows in _some_at_once(piece.files):
            if isinstance(piece.kind, int):
                definition = self.outputs[piece.kind].definition
                yield piece.kind, definition.conformed(rows)
            else:
                batch = GoldBatch(**{piece.kind: rows})
                for place, output in enumerate(self.outputs):
                    partials = output.definition.partials(batch)
                    if len(partials):
                        yield place, partials

    def _chunks(self, place: int, parts: Sequence[pa.Table]) -> Iterator[Chunk]:
        output = self.outputs[place]
        definition, rows = output.definition, pa.concat_tables(parts)
        if len(parts) > 1:
            rows = definition.combined(rows, *definition.row_keys)
        files = definition.file_keys(rows, output.newest_day).dictionary_encode()
        names, numbers = files.dictionary.to_pylist(), files.indices.to_numpy()
        buckets = _buckets(rows, definition, output.buckets)
        order = np.lexsort((buckets, numbers))
        rows, numbers, buckets = rows.take(pa.array(order)), numbers[order], buckets[order]
        # Not by Arrow's group_by: its groups are not always in the order of their first rows.
        edges = 1 + np.flatnonzero((numbers[1:] != numbers[:-1]) | (buckets[1:] != buckets[:-1]))
        for start, end in pairwise([0, *edges.tolist(), len(rows)]):
            for encoded in _encoded(rows.slice(start, end - start)):
                yield Chunk(place, names[numbers[start]], int(buckets[start]), encoded)

    def _merged(self, output: GoldOutput, chunks: Iterator[Chunk]) -> Batches:
        for (file, _), of_bucket in groupby(chunks, key=itemgetter(1, 2)):
            parts = pa.concat_tables([_decoded(chunk.rows) for chunk in of_bucket])
            rows = output.definition.completed(parts)
            yield from rows.append_column(DAY, pa.repeat(pa.scalar(file), len(rows))).combine_chunks().to_batches()


def run_step(
    spark: SparkSession, step: GoldStep, pieces: Sequence[Piece], *, readers: int, writers: int
) -> list[list[NewFile]]:
    """Runs the step in one Spark job of so many tasks. Returns the new files of each table."""
    files: list[list[NewFile]] = [[] for _ in step.outputs]
    if not pieces:
        return files
    tasks = min(readers, len(pieces))

    def read(numbers: Batches) -> Batches:
        for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
            for piece in pieces[number::tasks]:
                for chunk in step.add_up(piece):
                    yield pa.record_batch([[value] for value in chunk], schema=_CHUNKS)

    def write(chunks: Batches) -> Batches:
        rows = (Chunk(**row) for batch in chunks for row in batch.to_pylist())
        for place, file in step.merge(rows):
            yield pa.record_batch([[place], [file.encoded()]], schema=_NEW_FILES)

    added_up = spark.range(0, tasks, 1, tasks).mapInArrow(read, from_arrow_schema(_CHUNKS))
    by_file = added_up.repartition(writers, "place", "file").sortWithinPartitions("place", "file", "bucket")
    found = by_file.mapInArrow(write, from_arrow_schema(_NEW_FILES)).collect()
    for row in found:
        files[row.place].append(decode_new_file(row.file))
    return files


def _some_at_once(files: ParquetFiles) -> Iterator[pa.Table]:
    some: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in files.batches():
        some.append(batch)
        rows, size_bytes = rows + len(batch), size_bytes + batch.nbytes
        if rows >= ROWS_AT_ONCE or size_bytes >= BYTES_AT_ONCE:
            yield pa.Table.from_batches(some)
            some, rows, size_bytes = [], 0, 0
    if rows:
        yield pa.Table.from_batches(some)


def _buckets(rows: pa.Table, definition: GoldTable, count: int) -> Numbers:
    if count == 1:
        return np.zeros(len(rows), np.int64)
    keys = rows.select(list(definition.row_keys)).to_pandas()
    hashes = hash_pandas_object(keys, index=False).to_numpy()  # the same in every process
    return np.asarray(hashes % np.uint64(count)).astype(np.int64)


def _encoded(rows: pa.Table) -> Iterator[bytes]:
    """The rows as Arrow streams of about as many bytes as a chunk has."""
    rows_each = max(1, len(rows) * _CHUNK_BYTES // max(1, rows.nbytes))
    for start in range(0, len(rows), rows_each):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows.slice(start, rows_each))
        yield sink.getvalue().to_pybytes()


def _decoded(encoded: bytes) -> pa.Table:
    return pa.ipc.open_stream(encoded).read_all()
