"""The figures as a person reads them."""

from collections.abc import Sequence

from benchmarks.claims import DEEP_BACKLOG, Point, ratios
from benchmarks.cycles import CALLERS, Row
from benchmarks.machine import Machine
from benchmarks.mover import DUE, Promotion
from benchmarks.startup import OPEN_GOAL_S, RSS_GOAL_MB, Opening
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

SLOWER_MAX = 1.5


def heading(console: Console, machine: Machine, *, calibration_s: float, mode: str) -> None:
    console.print(
        Panel(
            f"{machine.cores} cores, {machine.memory_gb} GB, {escape(machine.system)}, Python {machine.python}, "
            f"rocksdict {machine.rocksdict}, msgspec {machine.msgspec}\n"
            f"disk: {machine.file_system}, 4 KB forced to disk in {machine.fsync_ms:.2f} ms (median)\n"
            f"calibration: 10 M loop iterations in {calibration_s:.2f} s (to compare runs by)\n"
            "[b]fsync[/b]    acknowledged means forced to disk: survives a power cut; calls share fsyncs; the default\n"
            "[b]process[/b]  acknowledged means handed to the system: survives kill -9, not a power cut",
            title=f"codeQ engine, in process, one shard ({mode})",
            title_align="left",
        )
    )
    if machine.file_system in ("tmpfs", "ramfs"):
        console.print("[yellow]This directory is in memory: the fsync figures mean nothing. Give a disk with --dir.[/]")


def cycles(console: Console, rows: Sequence[Row]) -> None:
    table = _table(
        "1-2. Full cycles per second (enqueue + claim + complete), and the same writes made raw to RocksDB",
        ["durability", "payload", "batch", "callers", "cycles/s", "raw/s", "engine/raw", "(low-high)",
         "15 keys raw/s", "engine/15 keys", "ops/cycle",
         "B/cycle", "calls/fsync"],
    )  # fmt: skip
    before = None
    for row in rows:
        s = row.setting
        if before not in (None, (s.durability, s.payload_bytes)):
            table.add_section()
        before = (s.durability, s.payload_bytes)
        shared = "-" if row.calls_per_flush is None else f"{row.calls_per_flush:.1f}"
        table.add_row(
            s.durability, _bytes(s.payload_bytes), str(s.batch), str(s.callers), f"{row.engine_per_s:,.0f}",
            f"{row.raw_per_s:,.0f}", f"{row.ratio:.2f}", f"{row.ratio_low:.2f}-{row.ratio_high:.2f}",
            f"{row.draft_per_s:,.0f}", f"{row.draft_ratio:.2f}",
            f"{row.operations_per_cycle:.1f}", f"{row.bytes_per_cycle:,.0f}", shared,
        )  # fmt: skip
    console.print(table)
    console.print(
        f"[dim]{CALLERS} callers are coroutines on one command. Raw replays the recorded keys, values, batches and "
        "fsyncs from one thread, with the engine's options; it decides nothing and overlaps nothing. '15 keys' is bare "
        "RocksDB writing one key per task and index, as a first draft of the layout did. Medians of 3.[/]"
    )


def claims(console: Console, points: Sequence[Point]) -> None:
    table = _table(
        f"3. Claim latency in ms as served tasks grow (goal: within {SLOWER_MAX} x of the figure at 1 k)",
        [
            "backlog",
            "served",
            "claim of",
            "p50",
            "p99",
            "mean",
            "x 1 k: p50",
            "p99",
            "mean",
            "x twin: p50",
            "p99",
            "mean",
        ],
    )
    first: dict[tuple[int, int], Point] = {}
    for point in points:
        if first and (point.backlog, point.limit) not in first:
            table.add_section()
        at_1k = first.setdefault((point.backlog, point.limit), point)
        now = point.latency
        table.add_row(
            f"{point.backlog:,}", f"{point.served:,}", str(point.limit),
            *(f"{value:.3f}" for value in (now.p50, now.p99, now.mean)),
            *(_within(value, SLOWER_MAX) for value in ratios(now, at_1k.latency)),
            *(f"{value:.2f}" for value in ratios(now, point.twin)),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"[dim]Durability process. A backlog of {DEEP_BACKLOG:,} is larger than the window in memory: its claims read "
        "ahead from disk. The twin is a new store with 1 k served, measured in turns in this process: what slows down "
        "both (compaction, other load) shows only under 'x 1 k', what the store's own age costs shows under both.[/]"
    )


def openings(console: Console, found: Sequence[Opening]) -> None:
    table = _table(
        f"4. Opening, in a new process (goals at 1 M pending: under {OPEN_GOAL_S:.0f} s and {RSS_GOAL_MB:.0f} MB)",
        ["pending", "after", "open s", "first claim of 16 ms", "RSS before MB", "opened", "after claim", "peak"],
    )
    for row in found:
        table.add_row(
            f"{row.pending:,}", row.after, _within(row.open_s, OPEN_GOAL_S, digits=3), f"{row.first_claim_ms:.1f}",
            f"{row.rss_before_mb:.0f}", f"{row.rss_open_mb:.0f}", f"{row.rss_claimed_mb:.0f}",
            _within(row.rss_peak_mb, RSS_GOAL_MB, digits=0),
        )  # fmt: skip
    console.print(table)


def promotions(console: Console, none: Promotion, many: Promotion) -> None:
    table = _table(
        "5. Mover: one promote_due",
        ["future tasks", f"{DUE} due: ms", "x", "none due: ms", "none due, worst of all"],
    )
    for row in (none, many):
        table.add_row(
            f"{row.future:,}", f"{row.due_ms:.3f}", f"{row.due_ms / none.due_ms:.2f}", f"{row.idle_ms:.4f}",
            f"{row.idle_worst_ms:.3f}",
        )  # fmt: skip
    console.print(table)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    return table


def _within(value: float, most: float, *, digits: int = 2) -> str:
    return f"[{'green' if value <= most else 'red'}]{value:,.{digits}f}[/]"


def _bytes(number: int) -> str:
    return f"{number} B" if number < 1000 else f"{number // 1000} KB"
