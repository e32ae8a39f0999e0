"""The lake of a server that stores its tasks in Redis: the same events, and an audit that finds nothing."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.table_comparison import counted
from tests.pipeline.test_run import SHARDS, few_gold_tables, options_of, whole_log, work
from tests.server.server_process import start_server

from codeq.pipeline import audit
from codeq.pipeline.client import PipelineClient
from codeq.pipeline.lake.run import run_once
from codeq.pipeline.lake.table import Lake
from codeq.wire import paths

pytestmark = [pytest.mark.spark, pytest.mark.slow]
LISTING = "tenant string, task_id string, status string"


def test_a_lake_filled_from_redis_has_exactly_its_events_and_a_clean_audit(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"store": {"shards": SHARDS}}
    with start_server(tmp_path / "server", settings=settings, engine="redis") as server:
        for seed in range(2):
            work(server, seed, tasks=20)
        log_server, lake = options_of(server, tmp_path), Lake(tmp_path / "lake")
        with few_gold_tables():
            assert run_once(spark, lake, log_server).events > 0
            work(server, 2, tasks=20)
            assert run_once(spark, lake, log_server).events > 0
        events = lake.bronze.read(spark).cache()
        assert Counter(map(str, events.collect())) == counted(whole_log(spark, log_server))
        bounds = PipelineClient(log_server).log_bounds()
        assert lake.bronze.offsets == {shard: found.end for shard, found in bounds.items()}
        listing = [
            (task["tenantId"], task["id"], task["status"])
            for tenant in ("acme", "globex")
            for task in server.tenant(tenant).producer.get(paths.TASKS, limit=1000).json()["tasks"]
        ]
        verdicts = audit.audit(events, spark.createDataFrame(listing, LISTING))
        assert audit.is_clean(verdicts), audit.to_text(verdicts)
        assert {verdict.rule: verdict.checked for verdict in verdicts}["accounted"] == len(listing)
