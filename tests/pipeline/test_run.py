"""The lake as a whole: what a run takes in is exactly what the server wrote, however often it is run and cut off."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.comparing import comparable, counted
from tests.server.running import Server, start_server

import codeq
from codeq.pipeline import gold, silver, tables
from codeq.pipeline.calling import Calls, Connection
from codeq.pipeline.lake import EVENTS, Lake, LakeConflict, LakeTable
from codeq.pipeline.run import OtherLog, add_up, carry_forward, rebuild, run_once, take_in
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


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of these tests alone: bronze is compared with all that it ever wrote."""
    with start_server(tmp_path_factory.mktemp("busy"), settings={"store": {"shards": SHARDS}}) as server:
        yield server


@pytest.fixture
def connection(busy: Server, tmp_path: Path) -> Connection:
    file = tmp_path / "token"
    file.write_text(busy.token("platform", "admin", scopes=ALL_SCOPES))
    return Connection(endpoint=busy.base, token_file=str(file))


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path / "lake")


def work(server: Server, seed: int, tasks: int = 16) -> None:
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


@pytest.fixture
def _few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables of gold stand for all, which take most of a run's time: one of sums, one of sketches."""
    monkeypatch.setattr(gold, "ALL", (gold.THROUGHPUT, gold.LATENCY))


def whole_log(spark: SparkSession, connection: Connection) -> DataFrame:
    options = {"endpoint": connection.endpoint, "tokenFile": connection.token_file}
    return spark.read.format("codeq-events").options(**options).load()


def test_the_lake_is_what_the_server_wrote_and_nothing_else(
    spark: SparkSession, busy: Server, lake: Lake, connection: Connection
) -> None:
    for seed in (1, 2):
        work(busy, seed)
        assert run_once(spark, lake, connection).events > 0
    assert run_once(spark, lake, connection).events == 0
    events = lake.bronze.read(spark).cache()
    assert counted(events) == counted(whole_log(spark, connection))
    spans = Calls(connection).spans()
    assert len(spans) == SHARDS
    assert {shard: lake.bronze.offset(shard) for shard in spans} == {shard: span.end for shard, span in spans.items()}
    nothing = spark.createDataFrame([], tables.SILVER_TASKS.schema)
    assert counted(lake.tasks.read(spark)) == counted(silver.tasks(nothing, events))
    throughput = {figures.table.name: table for figures, table in lake.gold}[gold.THROUGHPUT.table.name]
    [row] = throughput.read(spark).selectExpr("sum(enqueues) as enqueued", "sum(completes) as completed").collect()
    assert row.enqueued == events.where("move = 'enqueue'").count()
    assert row.completed == events.where("move = 'complete'").count()
    for table in lake.all:  # as other programs read them
        assert deltalake.DeltaTable(str(table.folder)).to_pyarrow_table().num_rows == table.read(spark).count()


def test_the_slower_of_two_runs_is_refused_and_changes_nothing(
    spark: SparkSession, busy: Server, lake: Lake, connection: Connection
) -> None:
    work(busy, seed=7)
    slower = Lake(lake.folder)
    take_in(spark, lake, connection)
    with pytest.raises(LakeConflict):
        take_in(spark, slower, connection)
    assert counted(Lake(lake.folder).bronze.read(spark)) == counted(whole_log(spark, connection))


@pytest.mark.usefixtures("_few_figures")
def test_small_batches_give_the_same_rows_as_making_all_anew_in_one(
    spark: SparkSession, busy: Server, lake: Lake, connection: Connection
) -> None:
    work(busy, seed=3, tasks=6)
    events = sum(span.end - span.first for span in Calls(connection).spans().values())
    while take_in(spark, lake, connection, events_max=events // 2):
        carry_forward(spark, lake)
        add_up(spark, lake)
    assert lake.bronze.batch > 2
    assert_whole(spark, lake, connection)


@pytest.mark.usefixtures("_few_figures")
def test_a_run_that_died_between_any_two_commits_is_finished_by_the_next(
    spark: SparkSession, busy: Server, lake: Lake, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, (table, side) in enumerate(DEATHS):
        work(busy, seed, tasks=4)
        with monkeypatch.context() as patched:
            patched.setattr(LakeTable, "commit", dying(table.name, side))
            with pytest.raises(Killed):
                run_once(spark, Lake(lake.folder), connection)
    run_once(spark, Lake(lake.folder), connection)
    assert_whole(spark, Lake(lake.folder), connection)


def test_tables_that_share_sums_catch_up_each_from_its_own_batch(
    spark: SparkSession, busy: Server, lake: Lake, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold, "ALL", (gold.USAGE, gold.THROUGHPUT, gold.RETRIES))
    for standing in (1, 2, 3):
        work(busy, seed=30 + standing, tasks=4)
        take_in(spark, lake, connection)
        carry_forward(spark, lake)
        fresh = Lake(lake.folder)
        fresh.gold = fresh.gold[:standing]
        add_up(spark, fresh)
        lake = Lake(lake.folder)
    assert {table.batch for _, table in lake.gold} == {3}
    assert_whole(spark, lake, connection)


def test_events_that_bronze_has_twice_change_nothing_in_silver(
    spark: SparkSession, busy: Server, lake: Lake, connection: Connection
) -> None:
    work(busy, seed=5, tasks=4)
    take_in(spark, lake, connection)
    carry_forward(spark, lake)
    before = [counted(table.read(spark)) for table in (lake.attempts, lake.tasks)]
    lake.bronze.commit(lake.bronze.write(lake.bronze.read(spark), part=EVENTS, batch=2), batch=2)
    carry_forward(spark, lake)
    assert lake.tasks.batch == 2
    assert [counted(table.read(spark)) for table in (lake.attempts, lake.tasks)] == before


@pytest.mark.usefixtures("_few_figures")
def test_making_anew_that_died_half_way_is_finished_by_the_next_run(
    spark: SparkSession, busy: Server, lake: Lake, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(busy, seed=9, tasks=4)
    run_once(spark, lake, connection)
    drop = LakeTable.drop
    dropped: list[LakeTable] = []

    def once(table: LakeTable) -> None:
        if dropped:
            raise Killed
        drop(table)
        dropped.append(table)

    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "drop", once)
        with pytest.raises(Killed):
            rebuild(spark, lake)
    work(busy, seed=10, tasks=4)
    run_once(spark, Lake(lake.folder), connection)
    assert_whole(spark, Lake(lake.folder), connection)


def test_a_run_ends_although_there_is_always_more_to_take_in(
    spark: SparkSession, busy: Server, lake: Lake, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold, "ALL", ())
    commit = LakeTable.commit

    def while_others_produce(table: LakeTable, *args: Any, **given: Any) -> None:
        commit(table, *args, **given)
        assert table.batch < 4, "it takes in and takes in, and never gets to silver"
        with codeq.Client(busy.base, busy.token()) as client:
            client.enqueue("mail", "one more")

    monkeypatch.setattr(LakeTable, "commit", while_others_produce)
    run_once(spark, Lake(lake.folder), connection)
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


def assert_whole(spark: SparkSession, lake: Lake, connection: Connection) -> None:
    """Bronze is the log; silver and gold are what is made of it in one go."""
    assert counted(lake.bronze.read(spark)) == counted(whole_log(spark, connection))
    before = rows_of(spark, lake)
    rebuild(spark, lake)
    anew = rows_of(spark, Lake(lake.folder))
    for name, rows in before.items():
        assert rows == anew[name], name


def rows_of(spark: SparkSession, lake: Lake) -> dict[str, Counter[str]]:
    rows = {table.folder.name: counted(table.read(spark)) for table in (lake.attempts, lake.tasks)}
    return rows | {
        table.folder.name: counted(comparable(table.read(spark), figures.table)) for figures, table in lake.gold
    }


def test_another_servers_log_is_not_mixed_in(
    spark: SparkSession, busy: Server, lake: Lake, connection: Connection, tmp_path: Path
) -> None:
    work(busy, seed=21)
    take_in(spark, lake, connection)
    with start_server(tmp_path / "other", settings={"store": {"shards": SHARDS}}) as other:
        file = tmp_path / "other-token"
        file.write_text(other.token("platform", "admin", scopes=ALL_SCOPES))
        with pytest.raises(OtherLog, match="another server"):
            take_in(spark, lake, Connection(endpoint=other.base, token_file=str(file)))
