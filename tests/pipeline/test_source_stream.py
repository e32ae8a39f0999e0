"""The event log as a Spark stream: every event once, with limits, restarts, replays and an unavailable server."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.pipeline.event_log import OptionsFor, enqueue, log_of, platform
from tests.pipeline.relay import relay
from tests.server.server_process import Server, Tenant, answered, eventually, launch, start_server

from codeq.wire import paths


class Lake:
    """A folder of Parquet that a stream writes, and its checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.out, self.checkpoint = str(folder / "out"), str(folder / "checkpoint")

    def start(self, options: dict[str, str], to: str = "parquet", **trigger: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("codeq-events").options(**options).load()
        writer = frame.writeStream.format(to).option("checkpointLocation", self.checkpoint)
        return writer.trigger(**trigger).start(self.out)

    def drain(self, options: dict[str, str], to: str = "parquet") -> list[int]:
        """Reads all available events, and returns the number of rows of each batch."""
        query = self.start(options, to, availableNow=True)
        assert query.awaitTermination(60)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def seqs(self) -> list[int]:
        return sorted(row.seq for row in self.spark.read.parquet(self.out).select("seq").collect())


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def numbers(tenant: Tenant) -> list[int]:
    return [event["seq"] for event in log_of(tenant.admin)]


def rows_read(query: StreamingQuery) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def test_it_drains_in_limited_batches_and_goes_on_from_its_checkpoint(
    lake: Lake, tenant: Tenant, options_for: OptionsFor
) -> None:
    enqueue(tenant, 250)
    start = numbers(tenant)[0]
    options = options_for(tenant.admin, startingOffsets=f'{{"0": {start}}}', maxEventsPerTrigger="100")
    assert lake.drain(options) == [100, 100, 50]
    kept = Path(lake.checkpoint, "offsets", "0").read_text().splitlines()[-1]
    log_id = answered(tenant.admin.get(paths.EVENTS, limit=1), 200)["logId"]
    assert json.loads(kept) == {"0": start + 100, "log": log_id}
    enqueue(tenant, 30)
    assert lake.drain(options) == [30]
    assert lake.seqs() == numbers(tenant)


def test_a_batch_that_was_not_committed_is_read_again_the_same(
    lake: Lake, tenant: Tenant, options_for: OptionsFor
) -> None:
    enqueue(tenant, 50)
    options = options_for(tenant.admin, startingOffsets=f'{{"0": {numbers(tenant)[0]}}}', minPartitions="3")
    assert lake.drain(options, "noop") == [50]
    for kept in Path(lake.checkpoint, "commits").iterdir():
        kept.unlink()
    enqueue(tenant, 20)
    assert lake.drain(options, "noop") == [50, 20]


def test_a_server_that_goes_and_comes_back_is_waited_for(lake: Lake, tmp_path: Path, options_for: OptionsFor) -> None:
    folder = tmp_path / "server"
    with relay() as way:
        first = launch(folder)
        way.lead_to(first.port)
        tenant = first.tenant("acme")
        enqueue(tenant, 10)
        query = lake.start(options_for(tenant.admin, endpoint=way.base), processingTime="100 milliseconds")
        try:
            eventually(lambda: rows_read(query) == 10, 60)
            reported = json.loads(query.recentProgress[0]["sources"][0]["latestOffset"])
            assert (reported["0"], reported["lag"]) == (11, 0)
            first.kill()
            way.cut()
            eventually(lambda: way.refused or not query.isActive, 60)
            with start_server(folder) as second:
                again = second.tenant("acme")
                enqueue(again, 15)
                way.lead_to(second.port)
                eventually(lambda: rows_read(query) == 25 or not query.isActive, 60)
                assert query.isActive, query.exception()
                assert lake.seqs() == numbers(again)
        finally:
            query.stop()


def test_a_server_that_was_never_there_ends_the_query_with_a_reason(
    lake: Lake, server: Server, options_for: OptionsFor
) -> None:
    with relay() as way:
        way.lead_to(server.port)
        way.cut()
        with pytest.raises(StreamingQueryException, match="the connection broke"):
            lake.drain(options_for(platform(server), endpoint=way.base, retrySeconds="0"))
