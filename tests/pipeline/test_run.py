"""The whole lake: it has exactly the events of the server, however often it is run and killed."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.pipeline.silver_by_spark import silver_by_spark
from tests.pipeline.table_comparison import comparable, counted, in_parallel
from tests.server.server_process import Server, start_server

import codeq
from codeq.pipeline.client import PipelineClient, ServerOptions
from codeq.pipeline.connector.source import DataLost
from codeq.pipeline.lake import gold, silver, tables
from codeq.pipeline.lake.partitions import ParquetFiles
from codeq.pipeline.lake.position import position_of
from codeq.pipeline.lake.run import LogMismatch, ScopeMismatch, ingest, rebuild, run_once, update_gold, update_silver
from codeq.pipeline.lake.table import DAYS, EVENTS, Lake, LakeConflict, LakeTable
from codeq.server.dev import ALL_SCOPES

SHARDS = 2
A_DAY_S = 86_400
"""Longer than any test takes: no delayed task becomes ready while the log is compared."""
DEATHS = (
    (tables.BRONZE_EVENTS, "before"),
    (tables.BRONZE_EVENTS, "after"),
    (tables.SILVER_ATTEMPTS, "after"),
    (tables.SILVER_TASKS, "after"),
    (tables.GOLD_THROUGHPUT, "after"),
    (tables.GOLD_LATENCY, "before"),
)
"""Where a run dies: the table, and whether before or after its commit."""
FEW = (gold.THROUGHPUT, gold.LATENCY, gold.USAGE, gold.RETRIES)
"""Only these gold tables in most tests, because gold takes most of the time of a run: some with shared sums, one with
sketches."""
BATCHES = 3

Rows = dict[str, Counter[str]]
"""By name of the table."""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Server]:
    """A server for one test."""
    with start_server(tmp_path / "busy", settings={"store": {"shards": SHARDS}}) as server:
        yield server


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose log does not change any more."""
    with start_server(tmp_path_factory.mktemp("quiet"), settings={"store": {"shards": SHARDS}}) as server:
        for seed in range(3):
            work(server, seed, tasks=6)
        yield server


@pytest.fixture(scope="module")
def log_server(quiet: Server, tmp_path_factory: pytest.TempPathFactory) -> ServerOptions:
    return options_of(quiet, tmp_path_factory.mktemp("token"))


def options_of(server: Server, folder: Path) -> ServerOptions:
    file = folder / "token"
    file.write_text(server.token("platform", "admin", scopes=ALL_SCOPES))
    return ServerOptions(endpoint=server.base, token_file=str(file))


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture(scope="module")
def grown(spark: SparkSession, log_server: ServerOptions, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of a lake after each of its batches, the first with all of gold; do not write to them."""
    folder = tmp_path_factory.mktemp("grown")
    stages: list[Path] = []
    for definitions in (gold.ALL, FEW, FEW):
        with few_gold_tables(*definitions):
            run_with(spark, Lake(folder / "lake"), log_server, batch_size(log_server, BATCHES))
        stages.append(Path(shutil.copytree(folder / "lake", folder / f"{len(stages)}")))
    return stages


def batch_size(log_server: ServerOptions, number: int) -> int:
    """Returns the size of a batch that ingests the whole log in so many batches."""
    longest = max(bounds.end - bounds.first for bounds in PipelineClient(log_server).log_bounds().values())
    return -(-longest // number) * SHARDS


@pytest.fixture(scope="module")
def expected(spark: SparkSession, log_server: ServerOptions, grown: list[Path]) -> Rows:
    """The rows of bronze as the server has them, and of silver and gold as rebuilt in one batch."""
    folder = Path(shutil.copytree(grown[-1], grown[-1].with_name("rebuilt")))
    with few_gold_tables():
        before = files_of(Lake(folder))
        rebuild(spark, Lake(folder))
        lake = Lake(folder)
    assert not before & files_of(lake)
    return rows_of(spark, lake) | {lake.bronze.folder.name: counted(whole_log(spark, log_server))}


def files_of(lake: Lake) -> set[str]:
    """Returns the files of silver and gold."""
    return {file.path for table in lake.all[1:] for file in table.files()}


@contextmanager
def few_gold_tables(*tables: gold.GoldTable) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gold, "ALL", tables or FEW)
        yield


@pytest.fixture
def _few_gold_tables() -> Iterator[None]:
    with few_gold_tables():
        yield


def work(server: Server, seed: int, *, tasks: int) -> None:
    """Makes completed, failed, retried, dead, replayed, cancelled, delayed and waiting tasks."""
    dice = random.Random(seed)
    for tenant in ("acme", "globex"):
        scopes = [scope for scope in ALL_SCOPES if scope != "codeq:platform"]
        with codeq.Client(server.base, server.token(tenant, "worker", scopes=scopes)) as client:
            orders = codeq.new_tasks("mail", range(tasks // 2), max_attempts=2)
            orders += codeq.new_tasks("resize", range(tasks // 2), priority=dice.randrange(10))
            made = client.enqueue_many(orders)
            client.enqueue("mail", "later", delay=A_DAY_S)
            client.cancel(made[0].id)
            while jobs := client.claim(limit=dice.randint(1, 9), lease=3600):
                for job in jobs:
                    _end(client, job, dice.random())
            client.replay_dead(limit=3)


def _end(client: codeq.Client, job: codeq.Job, fate: float) -> None:
    if fate < 0.6:
        client.complete(job, {"ok": True})
    elif fate < 0.7:
        client.fail(job, f"no such file /srv/{job.id}")
    elif fate < 0.9:
        client.nack(job, f"timeout after {round(fate * 100)} s", delay=0)
    elif fate < 0.95:
        client.abandon(job)
    else:
        client.cancel(job.id)


def whole_log(spark: SparkSession, log_server: ServerOptions) -> DataFrame:
    options = {"endpoint": log_server.endpoint, "tokenFile": log_server.token_file}
    return spark.read.format("codeq-events").options(**options).load()


def test_the_lake_is_what_the_server_wrote_and_nothing_else(
    spark: SparkSession, lake: Lake, log_server: ServerOptions, grown: list[Path]
) -> None:
    lake = Lake(Path(shutil.copytree(grown[0], lake.folder)))
    assert {table.batch for table in lake.all} == {1}
    assert run_once(spark, lake, log_server).events > 0
    assert {table.batch for table in lake.all} == {2}
    assert run_once(spark, lake, log_server).events == 0
    events = lake.bronze.read(spark).cache()
    rows = events.collect()
    assert Counter(map(str, rows)) == counted(whole_log(spark, log_server))
    server_log = PipelineClient(log_server).log_bounds()
    assert len(server_log) == SHARDS
    assert lake.bronze.offsets == {shard: bounds.end for shard, bounds in server_log.items()}
    nothing = spark.createDataFrame([], tables.SILVER_TASKS.schema)
    assert counted(lake.tasks.read(spark)) == counted(silver_by_spark(silver.tasks, nothing, events))
    for _, table in lake.gold:
        days = [file.day for file in table.files(part=DAYS)]
        assert len(days) == len(set(days)), "one file of each day"
    read = {table.folder.name: deltalake.DeltaTable(str(table.folder)).to_pyarrow_table() for table in lake.all}
    moves = Counter(row.move for row in rows)
    throughput = read[gold.THROUGHPUT.table.name]
    assert sum(throughput["enqueues"].to_pylist()) == moves["enqueue"]
    assert sum(throughput["completes"].to_pylist()) == moves["complete"]
    # Other programs read the same number of rows as Spark.
    assert Counter({name: found.num_rows for name, found in read.items()}) == sizes(spark, lake.all)


def sizes(spark: SparkSession, of: Sequence[LakeTable]) -> "Counter[str]":
    named = [table.read(spark).select(f.lit(table.folder.name).alias("name")) for table in of]
    return Counter(row.name for row in reduce(DataFrame.union, named).collect())


def test_the_slower_of_two_runs_is_refused_and_changes_nothing(
    spark: SparkSession, lake: Lake, log_server: ServerOptions
) -> None:
    slower = Lake(lake.folder)
    ingest(spark, lake, log_server)
    with pytest.raises(LakeConflict):
        ingest(spark, slower, log_server)
    assert counted(Lake(lake.folder).bronze.read(spark)) == counted(whole_log(spark, log_server))


@pytest.mark.usefixtures("_few_gold_tables")
def test_small_batches_give_the_same_rows_as_a_rebuild_in_one(
    spark: SparkSession, grown: list[Path], expected: Rows
) -> None:
    lake = Lake(grown[-1])
    assert {table.batch for table in lake.all} == {BATCHES}
    assert_whole(spark, lake, expected)


@pytest.mark.usefixtures("_few_gold_tables")
def test_a_run_that_died_between_any_two_commits_is_finished_by_the_next(
    spark: SparkSession, lake: Lake, log_server: ServerOptions, expected: Rows
) -> None:
    size = batch_size(log_server, len(DEATHS) + 1)
    with few_gold_tables(gold.THROUGHPUT, gold.LATENCY):
        for table, side in DEATHS:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(LakeTable, "commit", dying(table.name, side))
                with pytest.raises(Killed):
                    run_with(spark, Lake(lake.folder), log_server, size)
        assert run_once(spark, Lake(lake.folder), log_server).events > 0
        assert_whole(spark, Lake(lake.folder), expected)


def run_with(spark: SparkSession, lake: Lake, log_server: ServerOptions, events_max: int) -> None:
    """Runs the pipeline with at most so many events."""
    ingest(spark, lake, log_server, events_max=events_max)
    update_silver(spark, lake)
    update_gold(spark, lake)


def test_tables_that_share_sums_catch_up_each_from_its_own_batch(
    spark: SparkSession, lake: Lake, grown: list[Path], expected: Rows
) -> None:
    with few_gold_tables(gold.USAGE, gold.THROUGHPUT, gold.RETRIES):
        for standing, stage in enumerate(grown, 1):
            shutil.copytree(stage, lake.folder, ignore=shutil.ignore_patterns("gold_*"), dirs_exist_ok=True)
            fresh = Lake(lake.folder)
            fresh.gold = fresh.gold[:standing]
            update_gold(spark, fresh)
        whole = Lake(lake.folder)
        assert len({position_of(whole, table) for _, table in whole.gold}) == 1
        assert_whole(spark, whole, expected)


def test_events_that_bronze_has_twice_change_nothing_in_silver(
    spark: SparkSession, lake: Lake, log_server: ServerOptions, grown: list[Path]
) -> None:
    lake = Lake(Path(shutil.copytree(grown[0], lake.folder)))
    files = [lake.bronze.parquet_files([file]) for file in lake.bronze.files()]
    again = lake.bronze.write_pieces(spark, ParquetFiles.batches, files, part=EVENTS, batch=2)
    lake.bronze.commit(again, batch=2)
    ingest(spark, lake, log_server, events_max=batch_size(log_server, BATCHES))
    update_silver(spark, lake)
    assert lake.tasks.batch == 2
    expected = Lake(grown[1])
    for one, other in zip(lake.silver, expected.silver, strict=True):
        assert counted(one.read(spark)) == counted(other.read(spark))


def test_a_rebuild_that_died_is_finished_by_the_next_run(
    spark: SparkSession, lake: Lake, log_server: ServerOptions, grown: list[Path], expected: Rows
) -> None:
    shutil.copytree(grown[0], lake.folder)
    begin_epoch = LakeTable.begin_epoch
    emptied: list[LakeTable] = []

    def once(table: LakeTable, epoch: int, marks: Mapping[str, int] | None = None) -> None:
        if emptied:
            raise Killed
        begin_epoch(table, epoch, marks)
        emptied.append(table)

    with few_gold_tables(gold.THROUGHPUT, gold.LATENCY):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(LakeTable, "begin_epoch", once)
            with pytest.raises(Killed):
                rebuild(spark, Lake(lake.folder))
        assert run_once(spark, Lake(lake.folder), log_server).events > 0
        assert_whole(spark, Lake(lake.folder), expected)


def test_a_run_ends_although_there_are_always_new_events(
    spark: SparkSession, busy: Server, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold, "ALL", ())
    commit = LakeTable.commit

    def while_others_produce(table: LakeTable, *args: Any, **given: Any) -> None:
        commit(table, *args, **given)
        assert table.batch < 4, "the run ingests forever, and never reaches silver"
        produce(busy)

    produce(busy)
    monkeypatch.setattr(LakeTable, "commit", while_others_produce)
    run_once(spark, Lake(lake.folder), options_of(busy, tmp_path))
    assert Lake(lake.folder).tasks.batch == 1


def produce(server: Server) -> None:
    with codeq.Client(server.base, server.token()) as client:
        client.enqueue("mail", "one more")


class Killed(BaseException):
    """A BaseException, which no handler catches, as with kill -9."""


def dying(name: str, side: str) -> Callable[..., None]:
    """Returns a commit that raises Killed for this table, before or after it has committed."""
    commit = LakeTable.commit

    def instead(table: LakeTable, *args: Any, **given: Any) -> None:
        if table.folder.name != name or side == "after":
            commit(table, *args, **given)
        if table.folder.name == name:
            raise Killed

    return instead


def assert_whole(spark: SparkSession, lake: Lake, expected: Rows) -> None:
    """Checks that all tables have the expected rows."""
    for name, rows in rows_of(spark, lake).items():
        assert rows == expected[name], name


def rows_of(spark: SparkSession, lake: Lake) -> Rows:
    rows = {table.folder.name: table.read(spark) for table in (lake.bronze, lake.attempts, lake.tasks)}
    rows |= {table.folder.name: comparable(table.read(spark), definition.table) for definition, table in lake.gold}
    return in_parallel({name: partial(counted, frame) for name, frame in rows.items()})


def test_the_log_of_another_server_is_refused(
    spark: SparkSession, busy: Server, lake: Lake, log_server: ServerOptions, tmp_path: Path
) -> None:
    ingest(spark, lake, log_server)
    with pytest.raises(LogMismatch, match="another server"):
        ingest(spark, lake, options_of(busy, tmp_path))


def test_the_longer_log_of_another_server_is_refused_too(
    spark: SparkSession, busy: Server, lake: Lake, log_server: ServerOptions, tmp_path: Path
) -> None:
    produce(busy)
    ingest(spark, lake, options_of(busy, tmp_path))
    before = counted(lake.bronze.read(spark))
    with pytest.raises(LogMismatch, match="another server, or one restored"):
        ingest(spark, lake, log_server)
    assert counted(Lake(lake.folder).bronze.read(spark)) == before


def test_a_lake_refuses_the_events_of_another_tenant(
    spark: SparkSession, busy: Server, lake: Lake, tmp_path: Path
) -> None:
    produce(busy)
    every = options_of(busy, tmp_path)
    assert ingest(spark, lake, every, tenant="acme") > 0
    produce(busy)
    (tmp_path / "globex").write_text(busy.token("globex", "admin"))
    other = ServerOptions(endpoint=busy.base, token_file=str(tmp_path / "globex"))
    for wrong in ({"server": every}, {"server": every, "tenant": "globex"}, {"server": other}):
        with pytest.raises(ScopeMismatch, match="the lake has the events of tenant=acme"):
            ingest(spark, Lake(lake.folder), **wrong)
    (tmp_path / "acme").write_text(busy.token("acme", "admin"))
    own = ServerOptions(endpoint=busy.base, token_file=str(tmp_path / "acme"))
    assert ingest(spark, Lake(lake.folder), own) > 0, "its own token gets the same events"
    assert Lake(lake.folder).bronze.read(spark).count() == 2


def test_events_that_were_trimmed_before_they_were_ingested_are_an_error(
    spark: SparkSession, trimmed: Server, lake: Lake, tmp_path: Path
) -> None:
    lake.bronze.commit([], batch=1, offsets={0: 3})
    with pytest.raises(DataLost, match=r"events 3 to \d+ of shard 0 were trimmed.*begin a new lake"):
        ingest(spark, lake, options_of(trimmed, tmp_path))
    assert (lake.bronze.batch, lake.bronze.files()) == (1, [])
    fresh = Lake(tmp_path / "fresh")
    assert ingest(spark, fresh, options_of(trimmed, tmp_path)) == fresh.bronze.read(spark).count() > 0
