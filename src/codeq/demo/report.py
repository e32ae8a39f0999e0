"""What is left on the screen when the show is over: what happened, the figures, the promises, the verdict."""

from rich import box
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from codeq.demo.audit import IDS_SHOWN, Finding
from codeq.demo.figures import Figures
from codeq.demo.lake import LakeFigures
from codeq.demo.run import Report
from codeq.demo.screen import note_lines


def print_report(console: Console, report: Report, *, timeline: bool) -> None:
    if timeline:
        console.print(note_lines(report.timeline))
    console.print()
    console.print(Columns([_figures(report.figures), _promises(report.findings)], padding=(0, 2)))
    for finding in report.findings:
        _print_faults(console, finding)
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
        ("failed by verdict, dead, cancelled", f"{f.failed:,}, {f.dead:,}, {f.cancelled:,}"),
        ("tasks/s, on average and at best", f"{f.per_second:,.0f}, {f.per_second_peak:,}"),
        ("wait until the rush, p50 and p99", f"{f.wait_ms_p50:,} ms, {f.wait_ms_p99:,} ms"),
        ("kills survived: workers, server", f"{f.workers_killed}, {f.servers_killed}"),
        ("server away", f"{f.downtime_seconds:.1f} s"),
        ("retries", f"{f.retries:,}"),
        ("leases that ran out", f"{f.leases_expired:,}"),
        ("deliveries past the first", f"{f.redeliveries:,}"),
        ("dead letters replayed", f"{f.replays:,}"),
        ("orders sent again with the same key", f"{f.repeats:,}"),
        ("events audited", f"{f.events:,}"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _promises(findings: list[Finding]) -> RenderableType:
    table = Table(title="promises", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=False)
    for finding in findings:
        mark = Text("✓", "green") if finding.is_kept else Text("✗", "bold red")
        count = "" if finding.is_kept else f" ({len(finding.faults)})"
        table.add_row(mark, Text(finding.promise + count, "" if finding.is_kept else "bold red"))
    return table


def _print_faults(console: Console, finding: Finding) -> None:
    if finding.is_kept:
        return
    console.print(Text(f"BROKEN: {finding.promise}", "bold red"))
    for fault in finding.faults[:IDS_SHOWN]:
        console.print(f"  {fault}", highlight=False, markup=False, soft_wrap=True)
    if len(finding.faults) > IDS_SHOWN:
        more = ", ".join(finding.ids[IDS_SHOWN : 10 * IDS_SHOWN])
        console.print(f"  and {len(finding.faults) - IDS_SHOWN} more: {more}", highlight=False, markup=False)


def _lake(lake: LakeFigures) -> Text:
    took_s = sum(lake.seconds.values())
    if lake.broken:
        return Text(f"The lake breaks {', '.join(lake.broken)}: see {lake.report}", "bold red")
    said = f"{lake.events:,} events from the server to a lake in {took_s:.1f} s, audited on Spark. Open "
    return Text.assemble((" LAKE ", "bold white on blue"), " ", said, (lake.report, "bold"))


def _verdict(report: Report) -> Text:
    f = report.figures
    if report.ok:
        kills = f"{f.workers_killed + f.servers_killed} x kill -9"
        said = f"{f.acknowledged:,} tasks acknowledged, {kills}: each reached exactly one end"
        return Text.assemble((" ALL IS WELL ", "bold white on green"), " ", (said, "green"))
    broken = sum(not finding.is_kept for finding in report.findings) + len(report.lake.broken if report.lake else ())
    said = f"{broken} promises are broken" if f.acknowledged else "nothing was acknowledged"
    return Text.assemble((" SOMETHING IS WRONG ", "bold white on red"), " ", (said, "red"))
