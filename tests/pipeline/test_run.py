"""The lake as a whole: what a run takes in is exactly what the server wrote, however often it is run and cut off."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.pipeline.comparing import at_once, comparable, counted
from tests.server.server_process import Server, start_server

import codeq
from codeq.pipeline.client import Calls, Connection
from codeq.pipeline.connector.source import DataLost
from codeq.pipeline.lake import gold, partitions, silver, tables
from codeq.pipeline.lake.run import OtherLog, add_up, carry_forward, rebuild, run_once, take_in
from codeq.pipeline.lake.table import DAYS, EVENTS, Lake, LakeConflict, LakeTable
from codeq.server.dev import ALL_SCOPES

SHARDS = 2
A_DAY_S = 86_400
"""Nothing comes due while a test runs, on however slow a machine: the log is compared as it is at two moments."""
DEATHS = (
    (tables.BRONZE_EVENTS, "before"),
    (tables.BRONZE_EVENTS, "after"),
    (tables.SILVER_ATTEMPTS, "after"),
    (tables.SILVER_TASKS, "after"),
    (tables.GOLD_THROUGHPUT, "after"),
    (tables.GOLD_LATENCY, "before"),
)
"""Where a run dies: at the commit of which table, and on which side of it."""
FEW = (gold.THROUGHPUT, gold.LATENCY, gold.USAGE, gold.RETRIES)
"""Tables of gold that stand for all, which take most of a run's time: some of sums that they share, one of sketches."""
BATCHES = 3

Rows = dict[str, Counter[str]]
"""Of each table, by its name."""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Server]:
    """A server of this test alone."""
    with start_server(tmp_path / "busy", settings={"store": {"shards": SHARDS}}) as server:
        yield server


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has written all that it will: what is made of its log is made once."""
    with start_server(tmp_path_factory.mktemp("quiet"), settings={"store": {"shards": SHARDS}}) as server:
        for seed in range(3):
            work(server, seed, tasks=6)
        yield server


@pytest.fixture(scope="module")
def connection(quiet: Server, tmp_path_factory: pytest.TempPathFactory) -> Connection:
    return connected(quiet, tmp_path_factory.mktemp("token"))


def connected(server: Server, folder: Path) -> Connection:
    file = folder / "token"
    file.write_text(server.token("platform", "admin", scopes=ALL_SCOPES))
    return Connection(endpoint=server.base, token_file=str(file))


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture(scope="module")
def grown(spark: SparkSession, connection: Connection, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A lake as it was after each of its batches, the first with all of gold; do not write to them."""
    folder = tmp_path_factory.mktemp("grown")
    stages: list[Path] = []
    for figures in (gold.ALL, FEW, FEW):
        with few_figures(*figures):
            bring_forward(spark, Lake(folder / "lake"), connection, piece(connection, BATCHES))
        stages.append(Path(shutil.copytree(folder / "lake", folder / f"{len(stages)}")))
    return stages


def piece(connection: Connection, number: int) -> int:
    """As many events for a batch as bring in the whole log with so many batches."""
    longest = max(span.end - span.first for span in Calls(connection).spans().values())
    return -(-longest // number) * SHARDS


@pytest.fixture(scope="module")
def anew(spark: SparkSession, connection: Connection, grown: list[Path]) -> Rows:
    """The log of the server, and what is made of it in one go."""
    folder = Path(shutil.copytree(grown[-1], grown[-1].with_name("anew")))
    with few_figures():
        before = files_of(Lake(folder))
        rebuild(spark, Lake(folder))
        lake = Lake(folder)
    assert not before & files_of(lake)
    return rows_of(spark, lake) | {lake.bronze.folder.name: counted(whole_log(spark, connection))}


def files_of(lake: Lake) -> set[str]:
    """Of silver and gold."""
    return {file.path for table in lake.all[1:] for file in table.files()}


@contextmanager
def few_figures(*tables: gold.Gold) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gold, "ALL", tables or FEW)
        yield


@pytest.fixture
def _few_figures() -> Iterator[None]:
    with few_figures():
        yield


def work(server: Server, seed: int, *, tasks: int) -> None:
    """Some of everything: completed, failed, retried, dead, replayed, cancelled, delayed and waiting tasks."""
    dice = random.Random(seed)
    for tenant in ("acme", "globex"):
        scopes = [scope for scope in ALL_SCOPES if scope != "codeq:platform"]
        with codeq.Client(server.base, server.token(tenant, "worker", scopes=scopes)) as client:
            orders = codeq.new_tasks("mail", range(tasks // 2), max_attempts=2)
            orders += codeq.new_tasks("resize", range(tasks // 2), priority=dice.randrange(10))
            made = client.enqueue_many(orders)
            client.enqueue("mail", "later", delay=A_DAY_S)
            client.cancel(made[0].id)  # type: ignore[union-attr]
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


def whole_log(spark: SparkSession, connection: Connection) -> DataFrame:
    options = {"endpoint": connection.endpoint, "tokenFile": connection.token_file}
    return spark.read.format("codeq-events").options(**options).load()


def test_the_lake_is_what_the_server_wrote_and_nothing_else(
    spark: SparkSession, lake: Lake, connection: Connection, grown: list[Path]
) -> None:
    lake = Lake(Path(shutil.copytree(grown[0], lake.folder)))
    assert {table.batch for table in lake.all} == {1}
    assert run_once(spark, lake, connection).events > 0
    assert {table.batch for table in lake.all} == {2}
    assert run_once(spark, lake, connection).events == 0
    events = lake.bronze.read(spark).cache()
    rows = events.collect()
    assert Counter(map(str, rows)) == counted(whole_log(spark, connection))
    spans = Calls(connection).spans()
    assert len(spans) == SHARDS
    assert {shard: lake.bronze.offset(shard) for shard in spans} == {shard: span.end for shard, span in spans.items()}
    nothing = spark.createDataFrame([], tables.SILVER_TASKS.schema)
    assert counted(lake.tasks.read(spark)) == counted(partitions.of_frames(silver.tasks, nothing, events))
    for _, figures in lake.gold:
        days = [file.day for file in figures.files(part=DAYS)]
        assert len(days) == len(set(days)), "one file of each day"
    read = {table.folder.name: deltalake.DeltaTable(str(table.folder)).to_pyarrow_table() for table in lake.all}
    moves = Counter(row.move for row in rows)
    throughput = read[gold.THROUGHPUT.table.name]
    assert sum(throughput["enqueues"].to_pylist()) == moves["enqueue"]
    assert sum(throughput["completes"].to_pylist()) == moves["complete"]
    # Other programs find in a table what Spark finds.
    assert Counter({name: found.num_rows for name, found in read.items()}) == sizes(spark, lake.all)


def sizes(spark: SparkSession, of: Sequence[LakeTable]) -> "Counter[str]":
    named = [table.read(spark).select(f.lit(table.folder.name).alias("name")) for table in of]
    return Counter(row.name for row in reduce(DataFrame.union, named).collect())


def test_the_slower_of_two_runs_is_refused_and_changes_nothing(
    spark: SparkSession, lake: Lake, connection: Connection
) -> None:
    slower = Lake(lake.folder)
    take_in(spark, lake, connection)
    with pytest.raises(LakeConflict):
        take_in(spark, slower, connection)
    assert counted(Lake(lake.folder).bronze.read(spark)) == counted(whole_log(spark, connection))


@pytest.mark.usefixtures("_few_figures")
def test_small_batches_give_the_same_rows_as_making_all_anew_in_one(
    spark: SparkSession, grown: list[Path], anew: Rows
) -> None:
    lake = Lake(grown[-1])
    assert {table.batch for table in lake.all} == {BATCHES}
    assert_whole(spark, lake, anew)


@pytest.mark.usefixtures("_few_figures")
def test_a_run_that_died_between_any_two_commits_is_finished_by_the_next(
    spark: SparkSession, lake: Lake, connection: Connection, anew: Rows
) -> None:
    share = piece(connection, len(DEATHS) + 1)
    with few_figures(gold.THROUGHPUT, gold.LATENCY):
        for table, side in DEATHS:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(LakeTable, "commit", dying(table.name, side))
                with pytest.raises(Killed):
                    bring_forward(spark, Lake(lake.folder), connection, share)
        assert run_once(spark, Lake(lake.folder), connection).events > 0
        assert_whole(spark, Lake(lake.folder), anew)


def bring_forward(spark: SparkSession, lake: Lake, connection: Connection, events_max: int) -> None:
    """A run that finds no more than so many events."""
    take_in(spark, lake, connection, events_max=events_max)
    carry_forward(spark, lake)
    add_up(spark, lake)


def test_tables_that_share_sums_catch_up_each_from_its_own_batch(
    spark: SparkSession, lake: Lake, grown: list[Path], anew: Rows
) -> None:
    with few_figures(gold.USAGE, gold.THROUGHPUT, gold.RETRIES):
        for standing, stage in enumerate(grown, 1):
            shutil.copytree(stage, lake.folder, ignore=shutil.ignore_patterns("gold_*"), dirs_exist_ok=True)
            fresh = Lake(lake.folder)
            fresh.gold = fresh.gold[:standing]
            add_up(spark, fresh)
        whole = Lake(lake.folder)
        assert {table.batch for _, table in whole.gold} == {BATCHES}
        assert_whole(spark, whole, anew)


def test_events_that_bronze_has_twice_change_nothing_in_silver(
    spark: SparkSession, lake: Lake, grown: list[Path]
) -> None:
    lake = Lake(Path(shutil.copytree(grown[0], lake.folder)))
    before = [counted(table.read(spark)) for table in (lake.attempts, lake.tasks)]
    assert all(before)
    lake.bronze.commit(lake.bronze.write(lake.bronze.read(spark), part=EVENTS, batch=2), batch=2)
    carry_forward(spark, lake)
    assert lake.tasks.batch == 2
    assert [counted(table.read(spark)) for table in (lake.attempts, lake.tasks)] == before


def test_making_anew_that_died_half_way_is_finished_by_the_next_run(
    spark: SparkSession, lake: Lake, connection: Connection, grown: list[Path], anew: Rows
) -> None:
    shutil.copytree(grown[0], lake.folder)
    drop = LakeTable.drop
    dropped: list[LakeTable] = []

    def once(table: LakeTable) -> None:
        if dropped:
            raise Killed
        drop(table)
        dropped.append(table)

    with few_figures(gold.THROUGHPUT, gold.LATENCY):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(LakeTable, "drop", once)
            with pytest.raises(Killed):
                rebuild(spark, Lake(lake.folder))
        assert run_once(spark, Lake(lake.folder), connection).events > 0
        assert_whole(spark, Lake(lake.folder), anew)


def test_a_run_ends_although_there_is_always_more_to_take_in(
    spark: SparkSession, busy: Server, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold, "ALL", ())
    commit = LakeTable.commit

    def produce() -> None:
        with codeq.Client(busy.base, busy.token()) as client:
            client.enqueue("mail", "one more")

    def while_others_produce(table: LakeTable, *args: Any, **given: Any) -> None:
        commit(table, *args, **given)
        assert table.batch < 4, "it takes in and takes in, and never gets to silver"
        produce()

    produce()
    monkeypatch.setattr(LakeTable, "commit", while_others_produce)
    run_once(spark, Lake(lake.folder), connected(busy, tmp_path))
    assert Lake(lake.folder).tasks.batch == 1


class Killed(BaseException):
    """Nothing catches it, as nothing catches kill -9."""


def dying(name: str, side: str) -> Callable[..., None]:
    """A commit that does not return for this table, done or not."""
    commit = LakeTable.commit

    def instead(table: LakeTable, *args: Any, **given: Any) -> None:
        if table.folder.name != name or side == "after":
            commit(table, *args, **given)
        if table.folder.name == name:
            raise Killed

    return instead


def assert_whole(spark: SparkSession, lake: Lake, anew: Rows) -> None:
    """Bronze is the log; silver and gold are what is made of it in one go."""
    for name, rows in rows_of(spark, lake).items():
        assert rows == anew[name], name


def rows_of(spark: SparkSession, lake: Lake) -> Rows:
    rows = {table.folder.name: table.read(spark) for table in (lake.bronze, lake.attempts, lake.tasks)}
    rows |= {table.folder.name: comparable(table.read(spark), figures.table) for figures, table in lake.gold}
    return at_once({name: partial(counted, frame) for name, frame in rows.items()})


def test_another_servers_log_is_not_mixed_in(
    spark: SparkSession, busy: Server, lake: Lake, connection: Connection, tmp_path: Path
) -> None:
    take_in(spark, lake, connection)
    with pytest.raises(OtherLog, match="another server"):
        take_in(spark, lake, connected(busy, tmp_path))


def test_events_that_were_trimmed_before_they_were_taken_in_are_missed_aloud(
    spark: SparkSession, trimmed: Server, lake: Lake, tmp_path: Path
) -> None:
    lake.bronze.commit([], batch=1, offsets={0: 3})
    with pytest.raises(DataLost, match=r"events 3 to \d+ of shard 0 were trimmed.*begin a new lake"):
        take_in(spark, lake, connected(trimmed, tmp_path))
    assert (lake.bronze.batch, lake.bronze.files()) == (1, [])
    fresh = Lake(tmp_path / "fresh")
    assert take_in(spark, fresh, connected(trimmed, tmp_path)) == fresh.bronze.read(spark).count() > 0
