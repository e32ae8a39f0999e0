"""Audits a lake as a whole, and together with the store that it was made from, while the store is in use.

The lake ends somewhere, and the listing comes later. What happened in between is in the server's log: it is read after
the listing, so that every task that may be listed in a later state has a later event, and is left to the next audit.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from urllib.parse import parse_qs

from pyspark.sql import DataFrame, SparkSession

from codeq.domain.queue import WEBHOOKS
from codeq.errors import Forbidden
from codeq.pipeline import audit
from codeq.pipeline.audit import Verdict
from codeq.pipeline.client import LogBounds, PipelineClient, ServerOptions
from codeq.pipeline.lake.run import check_log
from codeq.pipeline.lake.table import Lake
from codeq.pipeline.lake.verdicts import SCOPE
from codeq.sdk.client import Client

GAPLESS = "gapless"
Listed = tuple[str, str, str]
"""Tenant, task id and status."""


def audit_lake(spark: SparkSession, lake: Lake) -> list[Verdict]:
    """Checks every rule over all events that the lake has. Numbers have gaps in the events of one tenant alone."""
    verdicts = audit.audit(lake.bronze.read(spark))
    if not lake.bronze.properties.get(SCOPE):
        return verdicts
    return [Verdict(one.rule, one.text, 0, 0) if one.rule == GAPLESS else one for one in verdicts]


def audit_live(
    spark: SparkSession, lake: Lake, server: ServerOptions, list_tasks: Callable[[], Sequence[Listed]]
) -> list[Verdict]:
    """Checks every rule over the lake, and whether the store has the tasks of these tenants as their events have.
    Raises LogMismatch if the server is not the one whose events the lake has: all of its tasks would be lost there.
    """
    with closing(PipelineClient(server)) as client:
        bounds = client.log_bounds()[0]
    check_log(lake, bounds)
    events, settled = lake.bronze.read(spark), lake.bronze.offsets
    verdicts = audit_lake(spark, lake)
    listing = list_tasks()
    tenants = sorted({tenant for tenant, _, _ in listing} | _own_tenant(bounds))
    rows = spark.createDataFrame(list(listing), "tenant string, task_id string, status string")
    known = events.unionByName(_events_after(spark, server, settled))
    of_tenants = audit.audit(known.where(known.tenant.isin(tenants)), rows, settled=settled)
    checked = {verdict.rule: verdict for verdict in of_tenants if verdict.checked and verdict.rule != GAPLESS}
    return [verdict if verdict.checked else checked.get(verdict.rule, verdict) for verdict in verdicts]


def all_tasks(client: Client) -> list[Listed]:
    """Lists the tasks of the client's tenant, and the deliveries of its callbacks, whose events only admins get too."""
    found = _listed(client, None)
    with suppress(Forbidden):
        found += _listed(client, WEBHOOKS)
    return found


def _listed(client: Client, command: str | None) -> list[Listed]:
    found: list[Listed] = []
    cursor = None
    while True:
        page = client.list(command=command, cursor=cursor, limit=1000)
        found += [(task.tenant, task.id, task.status.value) for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            return found


def _events_after(spark: SparkSession, server: ServerOptions, offsets: dict[int, int]) -> DataFrame:
    given = {"tokenFile": server.token_file, "tokenEnv": server.token_env, "caFile": server.ca_file}
    options = {"endpoint": server.endpoint, "startingOffsets": json.dumps(offsets)}
    options |= {name: value for name, value in given.items() if value}
    return spark.read.format("codeq-events").options(**options).load()


def _own_tenant(bounds: LogBounds) -> set[str]:
    """Returns the tenant of the token, whose listing may be empty; none if the token is for all tenants."""
    return set(parse_qs(bounds.scope).get("tenant", []))
