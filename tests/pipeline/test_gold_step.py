"""A step of gold gives the same files however its rows are cut into pieces, chunks and buckets."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from tests.pipeline.gold_sample import GOALS, GoldSample
from tests.pipeline.test_gold import rows_of, whole_of

from codeq.pipeline.lake import gold, gold_step, gold_update
from codeq.pipeline.lake.data_file import DAYS
from codeq.pipeline.lake.folder import file_at
from codeq.pipeline.lake.gold import GoldTable
from codeq.pipeline.lake.gold_step import GoldOutput, GoldStep, Piece
from codeq.pipeline.lake.partitions import ParquetFiles
from codeq.pipeline.lake.position import Position
from codeq.pipeline.lake.table import Lake

PROJECT = Path(__file__).parents[2]
NEWEST_DAY = "2026-01-01"
NOWHERE = Position(0, 0, 0, ())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def step(lake: Lake) -> GoldStep:
    return GoldStep(
        tuple(
            GoldOutput(definition, table.target(table.new_folder(1), DAYS), NEWEST_DAY)
            for definition, table in lake.gold
        )
    )


def files_of(folder: Path, rows: pa.Table, count: int) -> Iterator[ParquetFiles]:
    """Writes the rows into so many files."""
    folder.mkdir(parents=True)
    edges = [len(rows) * number // count for number in range(count + 1)]
    for start, end in pairwise(edges):
        path = folder / f"{start}.parquet"
        pq.write_table(rows.slice(start, end - start), path)
        yield ParquetFiles((str(path),), rows.schema)


def pieces_of(folder: Path, sample: GoldSample, count: int) -> list[Piece]:
    """The new rows, with the columns that a step reads."""
    new = gold_update._new_rows(Lake(folder), NOWHERE, NOWHERE)
    return [
        Piece(kind, replace(files, columns=rows.columns))
        for kind, rows in new.items()
        for files in files_of(folder / kind, getattr(sample.whole, kind), count)
    ]


def run(step: GoldStep, pieces: list[Piece]) -> list[dict[str, pa.Table]]:
    """Runs the step as Spark does. Returns the rows of each table by the day or hour of their file."""
    chunks = [chunk for piece in pieces for chunk in step.add_up(piece)]
    random.Random(5).shuffle(chunks)
    chunks.sort(key=lambda chunk: chunk[:3])
    found: list[dict[str, pa.Table]] = [{} for _ in step.outputs]
    for place, file in step.merge(iter(chunks)):
        key = file.path.split("on=")[1].split("/")[0]
        assert key not in found[place], "one file of each day or hour"
        system, path = file_at(str(step.outputs[place].target.table / file.path))
        found[place][key] = pq.read_table(path, filesystem=system, partitioning=None)
    return found


def assert_whole(found: list[dict[str, pa.Table]], sample: GoldSample) -> None:
    for definition, files in zip(gold.ALL, found, strict=True):
        rows = pa.concat_tables(files.values())
        assert rows.schema.remove_metadata() == definition.schema
        with_goals = definition.completed(definition.conformed(rows), GOALS)  # a step has the goals of the default
        whole = whole_of(definition, sample)
        if "target_ms" not in definition.table.keys:
            assert rows_of(definition, with_goals.to_pylist()) == whole
        assert len(rows) == len(with_goals), "a key is there twice"
        for key, of_file in files.items():
            assert Counter(definition.file_keys(of_file, NEWEST_DAY).to_pylist()) == {key: len(of_file)}


def test_small_pieces_give_the_same_rows_as_one_batch(
    step: GoldStep, gold_sample: GoldSample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold_step, "ROWS_AT_ONCE", 50)
    monkeypatch.setattr(gold_step, "_CHUNK_BYTES", 2000)
    found = run(step, pieces_of(tmp_path / "new", gold_sample, 3))
    assert_whole(found, gold_sample)
    by_hour = dict(zip(gold.ALL, found, strict=True))[gold.THROUGHPUT]
    assert set(by_hour) == {"2025-12-31", "2026-01-01T00"}, "hours of the newest day alone"


def test_buckets_divide_the_keys_and_not_their_rows(
    step: GoldStep, gold_sample: GoldSample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold_step, "ROWS_AT_ONCE", 50)
    step = GoldStep(tuple(replace(output, buckets=7) for output in step.outputs))
    pieces = pieces_of(tmp_path / "new", gold_sample, 2)
    buckets = {chunk.bucket for piece in pieces for chunk in step.add_up(piece)}
    assert buckets == set(range(7))
    assert_whole(run(step, pieces), gold_sample)


def test_rows_that_a_table_has_are_merged_wherever_they_were(
    step: GoldStep, gold_sample: GoldSample, tmp_path: Path
) -> None:
    """Half of the log was taken in when the newest day was the one before: its hours had files of their own then."""
    pieces = pieces_of(tmp_path / "new", gold_sample, 2)
    before = GoldStep(tuple(replace(output, newest_day="2025-12-31") for output in step.outputs))
    early = run(before, pieces[::2])
    assert "2025-12-31T23" in early[0]
    known = [
        Piece(place, files)
        for place, (definition, of_table) in enumerate(zip(gold.ALL, early, strict=True))
        for files in files_of(tmp_path / definition.table.name, pa.concat_tables(of_table.values()), 2)
    ]
    assert_whole(run(step, [*pieces[1::2], *known]), gold_sample)


def test_every_row_is_in_a_chunk_of_its_file_and_bucket(step: GoldStep) -> None:
    """Many days at once, as when a lake is rebuilt: Arrow does not group so many keys in the order of their rows."""
    place, buckets = gold.ALL.index(gold.USAGE), 16
    days = [date(2026, 1, 1) + timedelta(days=number % 60) for number in range(5000)]
    tenants = [f"tenant-{number}" for number in range(len(days))]
    sums = {name: [1] * len(days) for name in gold.USAGE.ways}
    rows = gold.USAGE.conformed(pa.table({"tenant": tenants, "day": days, **sums}))
    step = GoldStep(tuple(replace(output, buckets=buckets) for output in step.outputs))
    chunks = list(step._chunks(place, [rows]))
    assert 900 < len(chunks) == len({chunk[:3] for chunk in chunks})
    for chunk in chunks:
        of_chunk = gold_step._decoded(chunk.rows)
        assert set(of_chunk["day"].cast(pa.string()).to_pylist()) == {chunk.file}
        assert set(gold_step._buckets(of_chunk, gold.USAGE, buckets).tolist()) == {chunk.bucket}
    assert sum(len(gold_step._decoded(chunk.rows)) for chunk in chunks) == len(rows)


def test_a_piece_is_not_held_as_a_whole(
    step: GoldStep, gold_sample: GoldSample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partial rows are passed on while the piece is read, so those of one file come in several chunks."""
    monkeypatch.setattr(gold_step, "ROWS_AT_ONCE", 20)
    files = list(files_of(tmp_path / "new", gold_sample.whole.events, 4))
    all_of_them = replace(files[0], paths=tuple(path for one in files for path in one.paths))
    chunks = Counter(chunk[:3] for chunk in step.add_up(Piece("events", all_of_them)))
    assert chunks.most_common(1)[0][1] > 1


def test_rows_with_sketches_are_held_by_their_bytes(
    step: GoldStep, gold_sample: GoldSample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight kilobytes each, 262,144 of them are more than an executor has."""
    place = gold.ALL.index(gold.LATENCY)
    rows = gold.LATENCY.completed(gold.LATENCY.partials(gold_sample.whole))
    pieces = [Piece(place, files) for files in files_of(tmp_path / "rows", pa.concat_tables([rows] * 30), 30)]
    whole = replace(pieces[0].files, paths=tuple(piece.files.paths[0] for piece in pieces))
    held: list[int] = []
    conformed = GoldTable.conformed

    def seen(self: GoldTable, some: pa.Table) -> pa.Table:
        held.append(some.nbytes)
        return conformed(self, some)

    monkeypatch.setattr(GoldTable, "conformed", seen)
    monkeypatch.setattr(gold_step, "BYTES_AT_ONCE", 3 * rows.nbytes)
    chunks = Counter(chunk[:3] for chunk in step.add_up(Piece(place, whole)))
    assert max(held) < 5 * rows.nbytes < sum(held) / 5
    assert min(chunks.values()) > 5, "they are passed on while the piece is read"


def test_a_chunk_is_a_few_megabytes(step: GoldStep, monkeypatch: pytest.MonkeyPatch, gold_sample: GoldSample) -> None:
    """Spark holds many of them in memory at once."""
    monkeypatch.setattr(gold_step, "_CHUNK_BYTES", 50_000)
    rows = pa.concat_tables([gold.LATENCY.partials(gold_sample.whole)] * 20)
    chunks = list(step._chunks(gold.ALL.index(gold.LATENCY), [rows]))
    assert max(len(chunk.rows) for chunk in chunks) < 100_000 < rows.nbytes / 4


@pytest.mark.slow
def test_a_spark_task_needs_no_more_memory_for_more_sketches(tmp_path: Path) -> None:
    def peak_mib(rows: int) -> int:
        command = [sys.executable, "-m", "tests.pipeline.gold_memory", str(tmp_path / str(rows)), str(rows)]
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout)

    small, large = peak_mib(1 << 17), peak_mib(1 << 18)
    assert large - small < 400, f"{small} MiB for half of the rows, {large} MiB for all"
