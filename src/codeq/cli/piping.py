"""`codeq pipeline`: bring a lake up to date, audit it, report on it, replay from it. Needs the extra `codeq[spark]`."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.measures import duration
from codeq.cli.plain import Code, Missing, Misuse
from codeq.cli.reaching import remote
from codeq.cli.showing import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from codeq import Client
    from codeq.pipeline.calling import Connection
    from codeq.pipeline.run import Lake

app = typer.Typer(no_args_is_help=True, help="The data pipeline: events on Spark, and the lake made from them.")

_TOKEN = "CODEQ_PIPELINE_TOKEN"  # noqa: S105 - the name of a variable

LakeFolder = Annotated[Path, typer.Option("--lake", help="Folder of the lake.")]
Master = Annotated[str, typer.Option(help="Where Spark runs, such as spark://host:7077.")]
Where = Annotated[str, typer.Option("--where", help="Which dead tasks, in SQL over the columns of silver_tasks.")]


def run(
    client: "Client",
    out: Output,
    lake: LakeFolder = Path("./lake"),
    every: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Run again and again, this far apart.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's events; for admins of the platform.")] = None,
    master: Master = "local[*]",
) -> None:
    """Take in what is new and bring every table of the lake up to date: once, or --every so often until Ctrl-C."""
    spark, connection, tables = _start(client, lake, master)
    from codeq.pipeline.run import Lake, run_once

    while True:
        started_s = time.monotonic()
        done = run_once(spark, tables, connection, say=out.note, tenant=tenant)
        took = {layer: round(seconds, 2) for layer, seconds in done.seconds.items()}
        if out.is_json:
            out.document({"events": done.events, "batches": done.batches, "seconds": took})
        else:
            print(f"{done.events:,} events taken in; " + ", ".join(f"{name} {s} s" for name, s in took.items()))
        if every is None:
            return
        time.sleep(max(0.0, every - (time.monotonic() - started_s)))
        tables = Lake(lake)


def audit(
    client: "Client",
    out: Output,
    lake: LakeFolder = Path("./lake"),
    live: Annotated[
        bool, typer.Option("--live", help="Compare with the tasks that the server has for the token's tenant.")
    ] = False,
    master: Master = "local[*]",
) -> None:
    """Check the promises of the queue over the whole history. Fails if any was broken, and shows where."""
    spark, _, tables = _start(client, lake, master, must_exist=True)
    from codeq.pipeline.audit import is_clean, to_json, to_text

    verdicts = _audited(spark, tables, client if live else None)
    print(to_json(verdicts).decode() if out.is_json else to_text(verdicts), end="")
    if not is_clean(verdicts):
        raise typer.Exit(Code.REFUSED)


def report(
    client: "Client",
    out: Output,
    lake: LakeFolder = Path("./lake"),
    to: Annotated[Path, typer.Option(help="The page to write.")] = Path("codeq-report.html"),
    title: Annotated[str, typer.Option(help="Its title.")] = "codeQ",
    master: Master = "local[*]",
) -> None:
    """Write one page that shows the lake: flow, latency, failures, tenants, workers, capacity, and the audit."""
    from datetime import UTC, datetime

    spark, _, tables = _start(client, lake, master, must_exist=True)
    from codeq.pipeline.report import collect, render, to_json

    rows = {figures.table.name: table.read(spark) for figures, table in tables.gold}
    data = collect(rows, made_at=datetime.now(UTC), title=title, verdicts=_audited(spark, tables, None))
    if out.is_json:
        print(to_json(data).decode())
        return
    to.write_text(render(data))
    print(f"wrote {to}")


def rebuild(client: "Client", out: Output, lake: LakeFolder = Path("./lake"), master: Master = "local[*]") -> None:
    """Make the silver and gold tables anew from bronze."""
    spark, _, tables = _start(client, lake, master, must_exist=True)
    from codeq.pipeline.run import rebuild as again

    again(spark, tables, say=out.note)
    out.note("made anew")
    if out.is_json:
        out.document({"batch": tables.bronze.batch})


def replay(
    client: "Client",
    out: Output,
    where: Where,
    lake: LakeFolder = Path("./lake"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
    master: Master = "local[*]",
) -> None:
    """Put dead tasks that the lake knows of back into their queues, chosen by SQL. Those not dead any more are left."""
    spark, _, tables = _start(client, lake, master, must_exist=True)
    from pyspark.errors import AnalysisException, ParseException

    try:
        chosen = tables.tasks.read(spark).where("outcome = 'dead'").where(where).select("task_id").collect()
    except (AnalysisException, ParseException) as fault:
        raise Misuse(f"--where: {str(fault).splitlines()[0]}") from None
    ids = [row.task_id for row in chosen]
    changed = 0
    for start in range(0, len(ids), 1000):
        changed += client.replay_dead(ids=ids[start : start + 1000], dry_run=dry_run).changed
    if out.is_json:
        out.document({"matched": len(ids), "changed": changed, "dryRun": dry_run, "ids": ids[:1000]})
    else:
        print(f"{len(ids):,} dead tasks match" + ("; nothing was changed" if dry_run else f"; {changed:,} put back"))


def _start(
    client: "Client", folder: Path, master: str, *, must_exist: bool = False
) -> "tuple[SparkSession, Connection, Lake]":
    try:
        from codeq.pipeline import make_session, register
        from codeq.pipeline.calling import Connection
        from codeq.pipeline.run import Lake
    except ModuleNotFoundError as fault:
        raise Missing(f"{fault.name} is not installed: pip install 'codeq[spark]'") from None
    lake = Lake(folder)
    if must_exist and not lake.bronze.exists:
        raise Missing(f"there is no lake at {folder}; make one with `codeq pipeline run --lake {folder}`")
    if master.startswith("sc://"):
        raise Misuse(
            "--master: a server of Spark Connect cannot get the token of this command; see docs/guides/spark.md"
        )
    given = client.given["token"]
    token = given() if callable(given) else given
    os.environ[_TOKEN] = token  # before Java starts, which hands it on
    spark = make_session(master, secrets={_TOKEN: token})  # executors of a cluster are not started by that Java
    register(spark)
    return spark, Connection(endpoint=client.url, token_env=_TOKEN, ca_file=client.given["ca_file"]), lake


def _audited(spark: "SparkSession", tables: "Lake", client: "Client | None") -> list[Any]:
    from codeq.pipeline import audit as auditing

    events = tables.bronze.read(spark)
    verdicts = auditing.audit(events)
    if client is None:
        return verdicts
    settled = {shard: offset for shard in range(4096) if (offset := tables.bronze.offset(shard)) is not None}
    listing = _listing(client)
    tenants = {tenant for tenant, _, _ in listing}
    rows = spark.createDataFrame(listing, "tenant string, task_id string, status string")
    mine = auditing.audit(events.where(events.tenant.isin(sorted(tenants))), rows, settled=settled)
    checked = {verdict.rule: verdict for verdict in mine if verdict.checked}
    return [verdict if verdict.checked else checked.get(verdict.rule, verdict) for verdict in verdicts]


def _listing(client: "Client") -> list[tuple[str, str, str]]:
    found = []
    cursor = None
    while True:
        page = client.list(cursor=cursor, limit=1000)
        found += [(task.tenant, task.id, task.status.value) for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            return found


remote(app, "run", example="codeq pipeline run --lake ./lake --every 1m")(run)
remote(app, "audit", example="codeq pipeline audit --lake ./lake")(audit)
remote(app, "report", example="codeq pipeline report --lake ./lake --to report.html")(report)
remote(app, "rebuild", example="codeq pipeline rebuild --lake ./lake")(rebuild)
remote(
    app,
    "replay",
    example="codeq pipeline replay --where \"command = 'mail' and last_error like '%timeout%'\" --dry-run",
)(replay)
