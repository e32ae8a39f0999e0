"""`codeq pipeline`: updates, audits, reports on and maintains a lake, and replays from it. Needs the extra `spark`."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from codeq.cli.connect import FileToken, remote
from codeq.cli.errors import ExitCode, LocalNotFound, UsageError, needs_extra
from codeq.cli.output import Output
from codeq.cli.parameters import duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from codeq import Client
    from codeq.pipeline.client import ServerOptions
    from codeq.pipeline.lake.table import Lake

app = typer.Typer(no_args_is_help=True, help="The data pipeline: events on Spark, and the lake made from them.")

MAINTENANCE_EVERY_S = 3600
REPORT_DAYS = 30
"""Days that a report shows by default, so that it costs the same after any history."""
_TOKEN = "CODEQ_PIPELINE_TOKEN"  # noqa: S105 - the name of a variable

LakeAddress = Annotated[
    str, typer.Option("--lake", metavar="FOLDER", help="Folder of the lake, or its URL, such as s3://bucket/path.")
]
Master = Annotated[str, typer.Option(help="Where Spark runs, such as spark://host:7077.")]
Keep = Annotated[
    float | None,
    typer.Option(parser=duration, metavar="DURATION", help="Delete events and ended tasks older than this."),
]
Where = Annotated[str, typer.Option("--where", help="SQL condition over the columns of silver_tasks.")]


def run(
    client: "Client",
    out: Output,
    lake: LakeAddress = "./lake",
    once: Annotated[bool, typer.Option("--once", help="Run once; the default.")] = False,
    every: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Repeat at this interval.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's events; for admins of the platform.")] = None,
    keep: Keep = None,
    and_audit: Annotated[
        bool, typer.Option("--audit", help="Then show the verdicts on all events so far; fails if a rule is broken.")
    ] = False,
    and_report: Annotated[Path | None, typer.Option("--report", help="Then write the HTML report here.")] = None,
    master: Master = "local[*]",
) -> None:
    """Ingest new events and update every table of the lake: once, or at an interval with --every until Ctrl-C.

    With --every the lake is maintained once an hour too (see `tidy`).
    """
    if once and every is not None:
        raise UsageError("--once or --every, not both")
    with _started(client, lake, master) as (spark, server, tables):
        from codeq.pipeline.lake.maintenance import maintain

        update = partial(_run, spark, server=server, out=out, tenant=tenant, and_audit=and_audit, and_report=and_report)
        if every is not None:
            _repeat(update, lambda of: maintain(spark, of, delete_before=_before(keep), log=out.note), lake, every)
        if keep is not None:  # before the run, because only events that every table has can be deleted
            maintain(spark, tables, delete_before=_before(keep), log=out.note)
        update(tables)


def _repeat(
    update: "Callable[[Lake], None]", maintain: "Callable[[Lake], object]", address: str, every_s: float
) -> NoReturn:
    """Updates the lake at this interval, and maintains it once an hour, until Ctrl-C or a fault that does not pass."""
    from codeq.pipeline.client import TRANSIENT
    from codeq.pipeline.lake.table import Lake, LakeConflict, LakeUnavailable
    from codeq.pipeline.spark_errors import ExecutorsLost, spark_errors

    maintained_s = time.monotonic()
    while True:
        started_s = time.monotonic()
        try:
            with spark_errors():
                tables = Lake(address)
                update(tables)
                if started_s - maintained_s > MAINTENANCE_EVERY_S:
                    maintained_s = started_s
                    maintain(tables)
        except (
            *TRANSIENT,
            LakeConflict,
            LakeUnavailable,
            ExecutorsLost,
        ) as fault:  # it passes, or another run was faster
            print(f"codeq: {fault}; trying again in {every_s:g} s", file=sys.stderr)
        time.sleep(max(0.0, every_s - (time.monotonic() - started_s)))


def _run(
    spark: "SparkSession",
    tables: "Lake",
    *,
    server: "ServerOptions",
    out: Output,
    tenant: str | None,
    and_audit: bool,
    and_report: Path | None,
) -> None:
    from codeq.pipeline.lake.run import run_once

    summary = run_once(spark, tables, server, log=out.note, tenant=tenant)
    seconds = {layer: round(taken_s, 2) for layer, taken_s in summary.seconds.items()}
    result: dict[str, Any] = {"events": summary.events, "batches": summary.batches, "seconds": seconds}
    if not out.is_json:
        print(f"{summary.events:,} events ingested; " + ", ".join(f"{name} {s} s" for name, s in seconds.items()))
    is_clean = _audit_and_report(spark, tables, server, result, out=out, audit=and_audit, report_to=and_report)
    if out.is_json:
        out.line(result)
    if not is_clean:
        raise typer.Exit(ExitCode.REFUSED)


def _audit_and_report(
    spark: "SparkSession",
    tables: "Lake",
    server: "ServerOptions",
    result: dict[str, Any],
    *,
    out: Output,
    audit: bool,
    report_to: Path | None,
) -> bool:
    """Audits and reports after a run, if the options ask for it. Returns whether no rule was broken."""
    if not audit and report_to is None:
        return True
    from codeq.pipeline.audit import is_clean, to_text
    from codeq.pipeline.lake.verdicts import verdicts_of

    verdicts = verdicts_of(tables)
    if report_to is not None:
        from codeq.pipeline.lake_report import collect_lake
        from codeq.pipeline.report import render

        _write_page(report_to, render(collect_lake(spark, tables, server, days=REPORT_DAYS)))
        result["report"] = str(report_to)
    if audit:
        result["audit"] = {verdict.rule: verdict.label for verdict in verdicts}
    if not out.is_json:
        print((to_text(verdicts) if audit else "") + (f"wrote {report_to}" if report_to else ""))
    return not audit or is_clean(verdicts)


def audit(
    client: "Client",
    out: Output,
    lake: LakeAddress = "./lake",
    live: Annotated[
        bool, typer.Option("--live", help="Compare with the tasks of the token's tenant on the server too.")
    ] = False,
    master: Master = "local[*]",
) -> None:
    """Check the guarantees of the queue over the whole history. Fails if one was broken, and shows the events.

    Every run judges its new events already; `run --audit` shows these verdicts without reading history again.
    """
    with _started(client, lake, master, must_exist=True) as (spark, server, tables):
        from codeq.pipeline.audit import is_clean, to_json, to_text
        from codeq.pipeline.live_audit import all_tasks, audit_lake, audit_live

        verdicts = audit_live(spark, tables, server, lambda: all_tasks(client)) if live else audit_lake(spark, tables)
        print(to_json(verdicts).decode() if out.is_json else to_text(verdicts), end="")
        if not is_clean(verdicts):
            raise typer.Exit(ExitCode.REFUSED)


def report(
    client: "Client",
    out: Output,
    lake: LakeAddress = "./lake",
    to: Annotated[Path, typer.Option(help="The file to write.")] = Path("codeq-report.html"),
    title: Annotated[str, typer.Option(help="Title of the report.")] = "codeQ",
    days: Annotated[int, typer.Option(min=1, help="How many days, up to the newest event.")] = REPORT_DAYS,
    master: Master = "local[*]",
) -> None:
    """Write an HTML report of the lake: throughput, latency, failures, tenants, workers, capacity, and the audit."""
    with _started(client, lake, master, must_exist=True) as (spark, server, tables):
        from codeq.pipeline.lake_report import collect_lake
        from codeq.pipeline.report import render, to_json

        data = collect_lake(spark, tables, server, days=days, title=title)
        if out.is_json:
            print(to_json(data).decode())
            return
        _write_page(to, render(data))
        print(f"wrote {to}")


def rebuild(client: "Client", out: Output, lake: LakeAddress = "./lake", master: Master = "local[*]") -> None:
    """Recompute the silver and gold tables from bronze."""
    with _started(client, lake, master, must_exist=True) as (spark, _, tables):
        from codeq.pipeline.lake import run

        run.rebuild(spark, tables, log=out.note)
        out.note("recomputed")
        if out.is_json:
            out.document({"batch": tables.bronze.batch})


def tidy(
    client: "Client",
    out: Output,
    lake: LakeAddress = "./lake",
    keep: Keep = None,
    keep_figures: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Delete gold rows of days older than this."),
    ] = None,
    master: Master = "local[*]",
) -> None:
    """Compact small files, delete rows past their retention, and vacuum files unreferenced for a day."""
    with _started(client, lake, master, must_exist=True) as (spark, _, tables):
        from codeq.pipeline.lake.maintenance import maintain

        gold_before = _before(keep_figures)
        summary = maintain(
            spark,
            tables,
            delete_before=_before(keep),
            delete_gold_before=gold_before.date() if gold_before else None,
            log=out.note,
        )
        if out.is_json:
            out.document(
                {
                    "putTogether": summary.compacted_files,
                    "forgottenRows": summary.deleted_rows,
                    "removedFiles": summary.vacuumed_files,
                }
            )
        else:
            print(
                f"{summary.compacted_files:,} small files compacted, {summary.deleted_rows:,} rows deleted, "
                f"{summary.vacuumed_files:,} unreferenced files removed"
            )


def replay(
    client: "Client",
    out: Output,
    where: Where,
    lake: LakeAddress = "./lake",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list them.")] = False,
    master: Master = "local[*]",
) -> None:
    """Replay dead tasks that match an SQL condition over the lake. Tasks that are no longer dead are left alone."""
    with _started(client, lake, master, must_exist=True) as (spark, _, tables):
        from pyspark.errors import AnalysisException, ParseException

        try:
            chosen = tables.tasks.read(spark).where("outcome = 'dead'").where(where).select("task_id").collect()
        except (AnalysisException, ParseException) as fault:
            raise UsageError(f"--where: {str(fault).splitlines()[0]}") from None
        ids = [row.task_id for row in chosen]
        changed = 0
        for start in range(0, len(ids), 1000):
            changed += client.replay_dead(ids=ids[start : start + 1000], dry_run=dry_run).changed
        if out.is_json:
            out.document({"matched": len(ids), "changed": changed, "dryRun": dry_run, "ids": ids[:1000]})
        else:
            print(
                f"{len(ids):,} dead tasks match" + ("; nothing was changed" if dry_run else f"; {changed:,} replayed")
            )


def _write_page(path: Path, page: str) -> None:
    """Replaces the page as a whole: somebody may be reading it, and a browser may be told to load it again."""
    if path.exists() and not path.is_file():  # such as /dev/stdout
        path.write_text(page)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(page)
    temporary.replace(path)


def _before(keep_s: float | None) -> datetime | None:
    return datetime.now(UTC) - timedelta(seconds=keep_s) if keep_s is not None else None


@contextmanager
def _started(
    client: "Client", address: str, master: str, *, must_exist: bool = False
) -> "Iterator[tuple[SparkSession, ServerOptions, Lake]]":
    with needs_extra("spark", "the pipeline"):
        from codeq.pipeline import make_session
        from codeq.pipeline.client import ServerOptions
        from codeq.pipeline.lake.table import Lake
        from codeq.pipeline.spark_errors import spark_errors
    lake = Lake(address)
    if must_exist and not lake.bronze.exists:
        raise LocalNotFound(f"there is no lake at {address}; make one with `codeq pipeline run --lake {address}`")
    if master.startswith("sc://"):
        raise UsageError(
            "--master: a Spark Connect server cannot get the token of this command; see docs/guides/spark.md"
        )
    source = client.options["token"]
    token = source() if callable(source) else source
    os.environ[_TOKEN] = token  # before Java starts, which passes its environment on
    # Executors of a cluster do not inherit that environment.
    spark = make_session(master, secrets={_TOKEN: token, **lake.folder.environment()})
    # On this machine the file is read again, because its token may be renewed while the command runs.
    file = source.file if isinstance(source, FileToken) and master.startswith("local") else None
    tokens = {"token_file": str(file)} if file else {"token_env": _TOKEN}
    with spark_errors():
        # Java took some seconds to start, in which another run may have committed.
        yield spark, ServerOptions(endpoint=client.url, ca_file=client.options["ca_file"], **tokens), Lake(address)


remote(app, "run", example="codeq pipeline run --lake ./lake --every 1m")(run)
remote(app, "audit", example="codeq pipeline audit --lake ./lake")(audit)
remote(app, "report", example="codeq pipeline report --lake ./lake --to report.html")(report)
remote(app, "rebuild", example="codeq pipeline rebuild --lake ./lake")(rebuild)
remote(app, "tidy", example="codeq pipeline tidy --lake ./lake --keep 90d")(tidy)
remote(
    app,
    "replay",
    example="codeq pipeline replay --where \"command = 'mail' and last_error like '%timeout%'\" --dry-run",
)(replay)
