"""The event log as a DataFrame: the rows of the server, filtered and split, and an error if events were trimmed."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id
from tests.pipeline.event_log import OptionsFor, events, log_of, platform, seqs
from tests.pipeline.relay import relay
from tests.server.server_process import Server, Tenant, answered, start_server

from codeq.pipeline import event_schema
from codeq.wire import paths
from codeq.wire.events import COLUMNS


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("sharded"), settings={"store": {"shards": 3}}) as server:
        yield server


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row in the names and types of the server's JSON."""
    converted = {}
    for name, value in row.items():
        if isinstance(value, datetime):  # PySpark returns it in the time zone of this machine
            value = value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")  # noqa: PLW2901
        converted[camel(name)] = value
    return converted


def test_rows_are_what_the_server_says_of_every_event(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor
) -> None:
    tenant.ended(priority=3)
    tenant.dead("bad", reason="no")
    tenant.create("later", delaySeconds=60)
    frame = events(spark, options_for(tenant.admin))
    assert frame.schema == event_schema()
    assert frame.columns == [name for name, _, _ in COLUMNS]
    rows = sorted((row.asDict() for row in frame.collect()), key=lambda row: row["seq"])
    assert [as_json(row) for row in rows] == log_of(tenant.admin)


def test_an_empty_log_is_an_empty_table(spark: SparkSession, tenant: Tenant, options_for: OptionsFor) -> None:
    assert events(spark, options_for(tenant.admin)).count() == 0
    end = str(len(log_of(platform(tenant.server))) + 1000)
    assert events(spark, options_for(tenant.admin, startingOffsets=f'{{"0": {end}}}')).count() == 0


def test_some_columns_can_be_asked_for_by_a_schema(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor
) -> None:
    tenant.create()
    reader = spark.read.format("codeq-events").options(**options_for(tenant.admin))
    frame = reader.schema("move string not null, seq long not null").load()
    assert [row.asDict() for row in frame.collect()] == [{"move": "enqueue", "seq": log_of(tenant.admin)[0]["seq"]}]
    with pytest.raises(PySparkException, match="the schema has column seq as string"):
        reader.schema("seq string").load().collect()


def test_a_tenant_reads_its_own_and_the_platform_chooses(
    spark: SparkSession, server: Server, options_for: OptionsFor
) -> None:
    ours, theirs = server.tenant(), server.tenant()
    ours.create()
    theirs.create()
    assert {row.tenant for row in events(spark, options_for(ours.admin)).collect()} == {ours.name}
    everyone = {row.tenant for row in events(spark, options_for(platform(server))).collect()}
    assert {ours.name, theirs.name} <= everyone
    chosen = events(spark, options_for(platform(server), tenant=theirs.name)).collect()
    assert {row.tenant for row in chosen} == {theirs.name}
    with pytest.raises(PySparkException, match="tenant is for admins of the platform"):
        events(spark, options_for(ours.admin, tenant=theirs.name)).collect()


def test_commands_can_be_chosen(spark: SparkSession, tenant: Tenant, options_for: OptionsFor) -> None:
    for command in ("a", "b", "c", "b"):
        tenant.create(command)
    frame = events(spark, options_for(tenant.admin, subscribe="b, c"))
    assert sorted(row.command for row in frame.collect()) == ["b", "b", "c"]


def test_payloads_come_along_on_request_until_they_are_purged(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor
) -> None:
    tenant.ended(payload={"gone": 1})
    answered(tenant.admin.post(f"{paths.BASE}/admin/tasks/cleanup", {"before": "2100-01-01T00:00:00Z"}), 200)
    tenant.create(payload={"kept": "ü"})
    frame = events(spark, options_for(tenant.admin, includePayload="true"))
    assert frame.schema == event_schema(payload=True)
    found = [(row.move, row.payload, row.payload_purged) for row in frame.orderBy("seq").collect()]
    assert found == [("enqueue", None, True), ("claim", None, True), ("complete", None, True), ("purge", None, True),
                     ("enqueue", '{"kept":"ü"}', False)]  # fmt: skip


def test_a_read_begins_and_ends_where_it_is_told(spark: SparkSession, tenant: Tenant, options_for: OptionsFor) -> None:
    for n in range(6):
        tenant.create(payload=n)
    all_of_them = [event["seq"] for event in log_of(tenant.admin)]
    first, last = all_of_them[2], all_of_them[4]
    assert seqs(events(spark, options_for(tenant.admin, startingOffsets=f'{{"0": {first}}}'))) == all_of_them[2:]
    bounded = options_for(tenant.admin, startingOffsets=f'{{"0": {first}}}', endingOffsets=f'{{"0": {last}}}')
    assert seqs(events(spark, bounded)) == all_of_them[2:4]
    assert seqs(events(spark, options_for(tenant.admin, startingOffsets="latest"))) == []


def test_a_read_begins_and_ends_at_a_time(spark: SparkSession, tenant: Tenant, options_for: OptionsFor) -> None:
    tenant.create()
    before_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= before_ms + 2:
        tenant.server.client.get(paths.HEALTHZ)
    tenant.create()
    [old, new] = log_of(tenant.admin)
    assert seqs(events(spark, options_for(tenant.admin, startingTimestamp=new["at"]))) == [new["seq"]]
    assert seqs(events(spark, options_for(tenant.admin, startingTimestamp=str(before_ms + 1)))) == [new["seq"]]
    assert seqs(events(spark, options_for(tenant.admin, startingTimestamp=old["at"]))) == [old["seq"], new["seq"]]
    assert seqs(events(spark, options_for(tenant.admin, startingTimestamp="2100-01-01T00:00:00Z"))) == []
    assert seqs(events(spark, options_for(tenant.admin, endingTimestamp=new["at"]))) == [old["seq"]]
    assert seqs(events(spark, options_for(tenant.admin, endingTimestamp=str(before_ms - 60_000)))) == []
    later = {"startingTimestamp": old["at"], "endingTimestamp": "2100-01-01T00:00:00Z"}
    assert seqs(events(spark, options_for(tenant.admin, **later))) == [old["seq"], new["seq"]]
    with pytest.raises(PySparkException, match="endingOffsets or endingTimestamp, not both"):
        events(spark, options_for(tenant.admin, endingTimestamp=new["at"], endingOffsets="latest"))


def test_a_read_is_split_and_holds_every_event_once(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor
) -> None:
    made = [{"command": "many", "payload": n} for n in range(1000)]
    for _ in range(3):
        answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": made}), 200)
    frame = events(spark, options_for(tenant.admin, minPartitions="5"))
    assert frame.rdd.getNumPartitions() == 5
    assert seqs(frame) == [event["seq"] for event in log_of(tenant.admin)]
    assert frame.select(spark_partition_id().alias("p")).distinct().count() > 1


def test_every_shard_is_a_partition(spark: SparkSession, sharded: Server, options_for: OptionsFor) -> None:
    tenant = sharded.tenant()
    ids = {tenant.create(payload=n)["id"] for n in range(12)}
    frame = events(spark, options_for(tenant.admin))
    assert frame.rdd.getNumPartitions() == 3
    rows = frame.collect()
    assert {row.task_id for row in rows} == ids
    assert {row.shard for row in rows} == {0, 1, 2}
    latest = events(spark, options_for(tenant.admin, startingOffsets='{"0": -1, "2": -1}'))
    assert {row.shard for row in latest.collect()} == {1}


def test_events_that_are_gone_are_missed_aloud(spark: SparkSession, trimmed: Server, options_for: OptionsFor) -> None:
    ops = platform(trimmed)
    first = answered(ops.get(paths.EVENTS), 200)["firstOffset"]
    assert first > 1
    assert seqs(events(spark, options_for(ops))) == list(range(first, 201))
    with pytest.raises(PySparkException, match=f"events 1 to {first - 1} of shard 0 were trimmed"):
        events(spark, options_for(ops, startingOffsets='{"0": 1}')).collect()
    going_on = options_for(ops, startingOffsets='{"0": 1}', failOnDataLoss="false", minPartitions="4")
    assert seqs(events(spark, going_on)) == list(range(first, 201))
    bounded = {**going_on, "endingOffsets": f'{{"0": {first + 3}}}'}
    assert seqs(events(spark, bounded)) == [first, first + 1, first + 2]


def test_a_batch_waits_for_a_server_and_gives_up_in_time(
    spark: SparkSession, server: Server, options_for: OptionsFor
) -> None:
    with relay() as way:
        way.lead_to(server.port)
        way.cut()
        options = options_for(platform(server), endpoint=way.base, retrySeconds="1")
        with pytest.raises(PySparkException, match="the connection broke"):
            events(spark, options).collect()


def test_a_token_is_taken_from_the_environment(spark: SparkSession, server: Server) -> None:
    options = {"endpoint": server.base, "tokenEnv": "PIPELINE_TEST_TOKEN"}
    assert events(spark, options).schema == event_schema()
    assert events(spark, options).count() >= 0
    with pytest.raises(PySparkException, match="there is no token"):
        events(spark, {"endpoint": server.base, "tokenEnv": "NOT_SET"}).collect()


def test_a_token_that_is_refused_ends_the_read_in_parallel(
    spark: SparkSession, tenant: Tenant, options_for: OptionsFor
) -> None:
    with pytest.raises(PySparkException, match="missing scope"):
        events(spark, options_for(tenant.producer)).collect()


def test_one_frame_can_be_filtered_in_two_ways(spark: SparkSession, tenant: Tenant, options_for: OptionsFor) -> None:
    """Pushed filters would break this."""
    tenant.ended()
    frame = events(spark, options_for(tenant.admin))
    assert frame.where("move = 'claim'").count() == 1
    assert frame.count() == 3
    assert frame.where("move = 'claim'").union(frame.where("move = 'enqueue'")).count() == 2
