"""The audit of a lake beside a store in use: what happens between the lake and the listing is no fault."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.server.server_process import Server, Tenant, start_server

import codeq
from codeq.pipeline import audit
from codeq.pipeline.client import ServerOptions
from codeq.pipeline.lake.run import LogMismatch, ingest
from codeq.pipeline.lake.table import Lake
from codeq.pipeline.lake_report import collect_lake
from codeq.pipeline.live_audit import Listed, all_tasks, audit_live
from codeq.server.dev import ALL_SCOPES

pytestmark = pytest.mark.spark

SCOPES = [scope for scope in ALL_SCOPES if scope != "codeq:platform"]


def test_a_busy_store_raises_no_false_alarm_and_a_lost_task_still_does(spark: SparkSession, tmp_path: Path) -> None:
    unsent = {"webhooks": {"allow": "192.0.2.1", "enabled": False}}
    with start_server(tmp_path / "server", settings=unsent) as server:
        (tmp_path / "token").write_text(server.token("acme", "worker", scopes=SCOPES))
        options, lake = ServerOptions(endpoint=server.base, token_file=str(tmp_path / "token")), Lake(tmp_path / "lake")
        with codeq.Client(server.base, (tmp_path / "token").read_text()) as client:
            client.enqueue("mail", "completed")
            client.enqueue("mail", "kept")
            client.cancel(client.enqueue("mail", "called back", webhook="http://192.0.2.1/never").id)
            cancelled = client.enqueue("mail", "cancelled").id
            ingest(spark, lake, options)

            def listing() -> list[Listed]:
                client.enqueue("mail", "new")
                client.cancel(cancelled)
                [job] = client.claim("mail", limit=1)
                client.complete(job)
                found = all_tasks(client)
                client.enqueue("mail", "newer")
                return found

            verdicts = audit_live(spark, lake, options, listing)
            assert audit.is_clean(verdicts), audit.to_text(verdicts)
            [accounted] = [one for one in audit_live(spark, lake, options, list) if one.rule == "accounted"]
            assert accounted.violations == 3, "kept, called back, and its callback have not changed, and are not listed"


def test_another_server_has_not_lost_the_tasks_of_this_lake(
    spark: SparkSession, server: Server, tenant: Tenant, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    with start_server(tmp_path / "own") as own:
        (tmp_path / "own-token").write_text(own.token("acme", "admin"))
        own.tenant("acme").create()
        ingest(spark, lake, ServerOptions(endpoint=own.base, token_file=str(tmp_path / "own-token")))
    (tmp_path / "token").write_text(tenant.admin.token)
    other = ServerOptions(endpoint=server.base, token_file=str(tmp_path / "token"))
    with pytest.raises(LogMismatch, match="this is another server"):
        audit_live(spark, Lake(lake.folder), other, list)
    assert collect_lake(spark, Lake(lake.folder), other, days=1).freshness.events_behind is None
