"""The lake as a whole: what a run takes in is exactly what the server wrote, however often it is run and cut off."""

import random
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.server.running import Server, start_server

import codeq
from codeq.pipeline import gold, silver, tables
from codeq.pipeline.calling import Calls, Connection
from codeq.pipeline.lake import Lake, LakeConflict
from codeq.pipeline.run import run_once, take_in
from codeq.server.dev import ALL_SCOPES

SHARDS = 2


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
            client.enqueue("mail", "later", delay=600)
            client.cancel(made[0].id)  # type: ignore[union-attr]
            while jobs := client.claim(limit=dice.randint(1, 9), lease=60):
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


def same(one: DataFrame, other: DataFrame) -> bool:
    return one.exceptAll(other).isEmpty() and other.exceptAll(one).isEmpty()


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
    assert same(events, whole_log(spark, connection))
    spans = Calls(connection).spans()
    assert len(spans) == SHARDS
    assert {shard: lake.bronze.offset(shard) for shard in spans} == {shard: span.end for shard, span in spans.items()}
    nothing = spark.createDataFrame([], tables.SILVER_TASKS.schema)
    assert same(lake.tasks.read(spark), silver.tasks(nothing, events))
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
    assert same(Lake(lake.folder).bronze.read(spark), whole_log(spark, connection))
