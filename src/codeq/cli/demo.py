"""`codeq demo`: runs the whole product, kills parts of it, and audits the outcome."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from codeq.cli.connect import examples
from codeq.cli.errors import ExitCode, needs_extra
from codeq.distribution import install_line


def add_to(app: typer.Typer) -> None:
    app.command("demo", epilog=examples("codeq demo --seconds 20\ncodeq demo --store redis"))(demo)


def demo(
    seconds: Annotated[float, typer.Option(min=5, max=3600, help="Approximate duration.")] = 45,
    tasks: Annotated[int | None, typer.Option(min=1, help="Number of tasks; default: 450 per second.")] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Redis to run on, redis://host:6379/0; `redis` starts one. Default: RocksDB."),
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="New directory in which to keep data and logs.")] = None,
    page: Annotated[Path, typer.Option("--report", help="Where to write the report.")] = Path("codeq-demo.html"),
    pipeline: Annotated[bool, typer.Option(help="Run the data pipeline at the end; needs the extra `spark`.")] = True,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live screen.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, and lines to standard error.")] = False,
) -> None:
    """Run the product end to end, kill parts of it, and audit the outcome, also on Spark.

    Exits with 0 only if every acknowledged task reached exactly one final state.
    """
    import asyncio

    import msgspec
    from rich.console import Console

    with needs_extra("server", "the demo"):
        from codeq.demo.lake import has_spark
        from codeq.demo.report import print_report
        from codeq.demo.run import DemoOptions, run
        from codeq.demo.screen import LiveView, PlainView

    console = Console(stderr=json)
    if pipeline and not has_spark():
        console.print(f"The pipeline is skipped: it needs {install_line('spark')}", markup=False)
        pipeline = False
    is_plain = plain or json or not console.is_terminal
    view = PlainView(console) if is_plain else LiveView(console)
    try:
        shown = page if pipeline else None
        report = run(DemoOptions(seconds=seconds, tasks=tasks, keep=keep, page=shown, store=store), view)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("codeq: stopped; all processes of the demo have ended", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print_report(console, report, timeline=not is_plain)
    raise typer.Exit(0 if report.ok else 1)
