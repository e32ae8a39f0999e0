"""`codeq demo`: see the whole product at work, and have it audited."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from codeq.cli.connect import examples
from codeq.cli.errors import Code


def add_to(app: typer.Typer) -> None:
    app.command("demo", epilog=examples("codeq demo --seconds 20"))(demo)


def demo(
    seconds: Annotated[float, typer.Option(min=5, max=3600, help="How long, about.")] = 45,
    tasks: Annotated[int | None, typer.Option(min=1, help="How many tasks; 450 per second if not said.")] = None,
    keep: Annotated[Path | None, typer.Option(help="A new directory in which data and logs are left.")] = None,
    page: Annotated[Path, typer.Option("--report", help="Where Spark's report is left.")] = Path("codeq-demo.html"),
    pipeline: Annotated[bool, typer.Option(help="End with the data pipeline; needs codeq[spark].")] = True,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live screen.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The outcome as JSON; lines go to standard error.")] = False,
) -> None:
    """Run the product end to end: tenants, producers, workers, kills, dead letters; then audit it, and again on Spark.

    Exits with 0 only if every acknowledged task reached exactly one end.
    """
    import asyncio

    import msgspec
    from rich.console import Console

    from codeq.demo.lake import has_spark
    from codeq.demo.report import print_report
    from codeq.demo.run import Options, run
    from codeq.demo.screen import LiveView, PlainView

    console = Console(stderr=json)
    if pipeline and not has_spark():
        console.print("The pipeline on Spark is left out: pip install 'codeq\\[spark]' brings it.")
        pipeline = False
    is_plain = plain or json or not console.is_terminal
    view = PlainView(console) if is_plain else LiveView(console)
    try:
        report = run(Options(seconds=seconds, tasks=tasks, keep=keep, page=page if pipeline else None), view)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("codeq: stopped; everything that was started has been ended", file=sys.stderr)
        raise typer.Exit(Code.INTERRUPTED) from None
    if json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print_report(console, report, timeline=not is_plain)
    raise typer.Exit(0 if report.ok else 1)
