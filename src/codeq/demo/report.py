"""Prints the outcome of a demo: timeline, figures, promises and verdict."""

from rich import box
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from codeq.demo.audit import IDS_SHOWN, PromiseCheck
from codeq.demo.figures import Figures
from codeq.demo.lake import LakeFigures
from codeq.demo.run import DemoReport
from codeq.demo.screen import timeline_table


def print_report(console: Console, report: DemoReport, *, timeline: bool) -> None:
    if timeline:
        console.print(timeline_table(report.timeline))
    console.print()
    console.print(Columns([_figures(report.figures), _promises(report.findings)], padding=(0, 2)))
    for check in report.findings:
        _print_faults(console, check)
    if report.lake is not None:
        console.print(_lake(report.lake), soft_wrap=True)
    console.print(_verdict(report), soft_wrap=True)


def _figures(figures: Figures) -> RenderableType:
    table = Table(title="figures", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    f = figures
    rows = [
        ("tasks", f"{f.tasks:,}"),
        ("acknowledged", f"{f.acknowledged:,}"),
        ("completed", f"{f.completed:,}"),
        ("failed, dead, cancelled", f"{f.failed:,}, {f.dead:,}, {f.cancelled:,}"),
        ("tasks/s, on average and at best", f"{f.per_second:,.0f}, {f.per_second_peak:,}"),
        ("wait before the rush, p50 and p99", f"{f.wait_ms_p50:,} ms, {f.wait_ms_p99:,} ms"),
        ("killed: workers, server", f"{f.workers_killed}, {f.servers_killed}"),
        ("server down", f"{f.downtime_seconds:.1f} s"),
        ("retries", f"{f.retries:,}"),
        ("leases expired", f"{f.leases_expired:,}"),
        ("deliveries after the first", f"{f.redeliveries:,}"),
        ("dead letters replayed", f"{f.replays:,}"),
        ("tasks enqueued again with the same key", f"{f.repeats:,}"),
        ("events audited", f"{f.events:,}"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _promises(checks: list[PromiseCheck]) -> RenderableType:
    table = Table(title="promises", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=False)
    for check in checks:
        mark = Text("✓", "green") if check.is_kept else Text("✗", "bold red")
        count = "" if check.is_kept else f" ({len(check.faults)})"
        table.add_row(mark, Text(check.promise + count, "" if check.is_kept else "bold red"))
    return table


def _print_faults(console: Console, check: PromiseCheck) -> None:
    if check.is_kept:
        return
    console.print(Text(f"BROKEN: {check.promise}", "bold red"))
    for fault in check.faults[:IDS_SHOWN]:
        console.print(f"  {fault}", highlight=False, markup=False, soft_wrap=True)
    if len(check.faults) > IDS_SHOWN:
        more = ", ".join(check.ids[IDS_SHOWN : 10 * IDS_SHOWN])
        console.print(f"  and {len(check.faults) - IDS_SHOWN} more: {more}", highlight=False, markup=False)


def _lake(lake: LakeFigures) -> Text:
    took_s = sum(lake.seconds.values())
    if lake.broken:
        return Text(f"The lake breaks {', '.join(lake.broken)}: see {lake.report}", "bold red")
    text = f"{lake.events:,} events from the server to a lake in {took_s:.1f} s, audited on Spark. Open "
    return Text.assemble((" LAKE ", "bold white on blue"), " ", text, (lake.report, "bold"))


def _verdict(report: DemoReport) -> Text:
    f = report.figures
    if report.ok:
        kills = f"{f.workers_killed + f.servers_killed} x kill -9"
        text = f"{f.acknowledged:,} tasks acknowledged, {kills}: each reached exactly one final state"
        return Text.assemble((" ALL IS WELL ", "bold white on green"), " ", (text, "green"))
    broken = sum(not check.is_kept for check in report.findings) + len(report.lake.broken if report.lake else ())
    text = f"{broken} promises are broken" if f.acknowledged else "nothing was acknowledged"
    return Text.assemble((" SOMETHING IS WRONG ", "bold white on red"), " ", (text, "red"))
