"""Checks that a lake has exactly the events of a server: every row of every table, and the audit."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, copy_files
from pyspark.sql import SparkSession
from tests.pipeline.silver_by_spark import silver_by_spark
from tests.pipeline.table_comparison import comparable, counted
from typer.testing import CliRunner

import codeq
from codeq.cli.main import app
from codeq.pipeline import make_session, register
from codeq.pipeline.client import ServerOptions
from codeq.pipeline.lake import silver
from codeq.pipeline.lake.folder import Folder, file_at
from codeq.pipeline.lake.run import rebuild, run_once
from codeq.pipeline.lake.table import Lake
from codeq.wire import events as wire

Row = tuple[Any, ...]
PAGE = 1000


@dataclass
class Verdict:
    faults: list[str] = field(default_factory=list)
    """The faults found, as sentences."""
    lines: list[str] = field(default_factory=list)
    """Figures, for people."""

    def compare(self, what: str, have: "Counter[Any]", wanted: "Counter[Any]") -> None:
        missing, extra = wanted - have, have - wanted
        if missing or extra:
            examples = [*missing.elements(), *extra.elements()][:2]
            self.faults.append(f"{what}: {missing.total()} rows missing, {extra.total()} too many, such as {examples}")
        self.lines.append(f"{what}: {have.total():,} rows")


def judge(folder: Folder, *, url: str, clients: Sequence[codeq.Client], token_file: Path) -> Verdict:
    """Ingests the last events, and compares all tables. The log must not change any more."""
    spark = make_session("local[2]", "codeq-verdict")
    register(spark)
    try:
        run_once(spark, Lake(folder), ServerOptions(endpoint=url, token_file=str(token_file)))
        found = Verdict()
        with codeq.Client(url, token_file.read_text()) as reader:
            _judge_bronze(found, folder, reader)
        _judge_silver(found, spark, Lake(folder))
        with tempfile.TemporaryDirectory() as rebuilt:
            _judge_gold(found, spark, Lake(folder), Path(rebuilt))
        for client in clients:
            _audit(found, folder, client)
        return found
    finally:
        spark.stop()


def _judge_bronze(found: Verdict, folder: Folder, reader: codeq.Client) -> None:
    """Reads the table without Spark, so that a fault of Spark's reader does not hide one of its writer."""
    log, ends = whole_log(reader)
    bronze = DeltaTable(str(folder / "bronze_events")).to_pyarrow_table()
    names = [name for name, _, _ in wire.COLUMNS]
    found.compare("bronze", Counter(zip(*(bronze[name].to_pylist() for name in names), strict=True)), Counter(log))
    lake = Lake(folder)
    offsets = lake.bronze.offsets
    if offsets != ends:
        found.faults.append(f"bronze records the offsets {offsets}, and the log ends at {ends}")
    moves = Counter(row[names.index("move")] for row in log)
    found.lines.append(f"{len(log):,} events in {lake.bronze.batch} batches: {dict(moves)}")


def whole_log(reader: codeq.Client) -> tuple[list[Row], dict[int, int]]:
    """Returns every event as a row of bronze, and by shard the end of its log."""
    rows: list[Row] = []
    ends: dict[int, int] = {}
    shards = reader.events(limit=1).shards
    for shard in range(shards):
        offset, end = 1, 2
        while offset < end:
            page = reader.events(shard=shard, offset=offset, limit=PAGE)
            rows += [_row(event) for event in page.events]
            offset, end = page.next_offset, page.end_offset
        ends[shard] = end
    return rows, ends


def _row(event: wire.Event) -> Row:
    values = [(getattr(event, name), kind) for name, kind, _ in wire.COLUMNS]
    return tuple(datetime.fromisoformat(value) if value and kind == "timestamp" else value for value, kind in values)


def _judge_silver(found: Verdict, spark: SparkSession, lake: Lake) -> None:
    """Compares with the same functions over the whole of bronze at once."""
    events = lake.bronze.read(spark)
    for table, make in ((lake.attempts, silver.attempts), (lake.tasks, silver.tasks)):
        at_once = silver_by_spark(make, spark.createDataFrame([], table.schema), events)
        found.compare(table.folder.name, counted(table.read(spark)), counted(at_once))


def _judge_gold(found: Verdict, spark: SparkSession, lake: Lake, rebuilt: Path) -> None:
    """Compares with a lake that is rebuilt from the same bronze."""
    system, path = file_at(str(lake.bronze.folder))
    copy = rebuilt / lake.bronze.folder.name
    copy_files(path, str(copy), source_filesystem=system, destination_filesystem=LocalFileSystem())
    rebuild(spark, Lake(rebuilt))
    for (definition, have), (_, wanted) in zip(lake.gold, Lake(rebuilt).gold, strict=True):
        rows = [counted(comparable(table.read(spark), definition.table)) for table in (have, wanted)]
        found.compare(have.folder.name, *rows)


def _audit(found: Verdict, folder: Folder, client: codeq.Client) -> None:
    """Runs the command itself, in the session of this process: Java has its environment already, so with a file."""
    with tempfile.NamedTemporaryFile("w") as token:
        token.write(str(client.options["token"]))
        token.flush()
        asked = ["--lake", str(folder), "--live", "--url", client.url, "--token-file", token.name]
        result = CliRunner().invoke(app, ["pipeline", "audit", *asked])
    if result.exit_code != 0:
        found.faults.append(f"the audit ended with {result.exit_code}: {result.output} {result.exception or ''}")
    rules = [line for line in result.output.splitlines() if " ok " in line]
    found.lines.append(f"audit: {len(rules)} rules hold")
