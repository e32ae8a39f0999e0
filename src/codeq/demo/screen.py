"""How the show looks while it runs: a live screen in a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.align import Align
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from codeq.demo.environment import CALM, COMMANDS, Note, Stage

SPARKS = "▁▂▃▄▅▆▇█"
TENANT_STYLES = {"acme": "cyan", "globex": "magenta", "initech": "yellow"}
PLAIN_EVERY_S = 1.0
WIDE, TALL = 110, 33
_PLACES = ("ready", "delayed", "running", "completed", "retried", "dead", "failed", "cancelled")
_NARROW_PLACES = ("ready", "running", "completed", "retried", "dead")
_STYLES = {
    "ready": "white",
    "delayed": "blue",
    "running": "bright_cyan",
    "completed": "green",
    "retried": "yellow",
    "dead": "red",
    "failed": "bright_red",
    "cancelled": "bright_black",
}


class View(Protocol):
    """Use it with `with`: what it took of the terminal is given back."""

    def draw(self, stage: Stage) -> None:
        """Show how things stand; called several times a second."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainView:
    """A line about once a second, and one for each thing that happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = 0
        self._next_s = 0.0
        self._last = ""

    def draw(self, stage: Stage) -> None:
        for note in stage.notes[self._told :]:
            self._console.print(f"{note.at_s:6.1f}s  * {note.text}", highlight=False, markup=False, soft_wrap=True)
        self._told = len(stage.notes)
        if stage.tenants and stage.now_s >= self._next_s:
            self._next_s = stage.now_s + PLAIN_EVERY_S
            line = self._line(stage)
            if line != self._last:  # while Spark is at work nothing else changes
                self._console.print(f"{stage.now_s:6.1f}s  {line}", highlight=False, markup=False, soft_wrap=True)
            self._last = line

    def _line(self, stage: Stage) -> str:
        board = stage.board
        counts = "  ".join(f"{place} {board.total(place)}" for place in _PLACES)
        acknowledged = len(stage.ledger.receipts)
        return f"acknowledged {acknowledged}  {counts}  {board.rate(now_ms()):.0f}/s"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LiveView:
    """The whole terminal, redrawn several times a second."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def draw(self, stage: Stage) -> None:
        self._live.update(frame(stage, *self._live.console.size), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def frame(stage: Stage, width: int, height: int) -> RenderableType:
    """Everything where there is room for it; in a small terminal the queues and what happens."""
    queues = sum(len(commands) for commands in COMMANDS.values())
    layout = Layout()
    parts = [
        Layout(_header(stage), size=4),
        Layout(_queues(stage, _PLACES if width >= WIDE else _NARROW_PLACES), size=queues + 4),
        Layout(_timeline(stage)),
    ]
    if height >= TALL:
        middle = Layout(size=11)
        middle.split_row(*[Layout(part) for part in (_processes(stage), _speed(stage))[: 2 if width >= WIDE else 1]])
        parts.insert(2, middle)
    layout.split_column(*parts)
    return layout


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def note_lines(notes: Iterable[Note]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True, min_width=6)
    grid.add_column()
    for note in notes:
        grid.add_row(Text(f"{note.at_s:.1f}s", "bright_black"), Text(note.text, note.style))
    return grid


def _header(stage: Stage) -> RenderableType:
    ended = stage.board.ended_tasks
    total = max(stage.tasks, len(stage.ledger.receipts), 1)
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column()
    grid.add_column(ratio=1)
    grid.add_column(justify="right")
    title = Text.assemble(("codeQ ", "bold"), ("every answer is on disk", "bright_black"))
    act = Text(stage.act, "bold") if stage.act == CALM else Text(f" {stage.act} ", "bold black on yellow")
    grid.add_row(title, Align.center(act), f"{stage.now_s:.0f} s")
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(justify="right")
    time_left = ProgressBar(total=stage.seconds, completed=min(stage.now_s, stage.seconds), complete_style="cyan")
    bar.add_row(time_left, f"{ended:,} of {total:,} tasks ended")
    return Panel(Group(grid, bar), padding=(0, 1), border_style="bright_black")


def _queues(stage: Stage, places: Sequence[str]) -> RenderableType:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bright_black")
    table.add_column("tenant", no_wrap=True)
    table.add_column("command", no_wrap=True)
    for place in places:
        table.add_column(place, justify="right")
    table.add_column("ended/s", justify="right")
    at_ms = now_ms()
    for tenant, commands in COMMANDS.items():
        for row, command in enumerate(commands):
            counts = stage.board.queues[tenant, command]
            cells = [_number(counts[place], _STYLES[place]) for place in places]
            speed = _number(round(stage.board.rate(at_ms, (tenant, command))), "bold")
            table.add_row(Text("" if row else tenant, f"bold {TENANT_STYLES[tenant]}"), command, *cells, speed)
    totals = [_number(stage.board.total(place), f"bold {_STYLES[place]}") for place in places]
    table.add_row("", "all", *totals, _number(round(stage.board.rate(at_ms)), "bold"))
    return Panel(table, title="queues", title_align="left", padding=(0, 1), border_style="bright_black")


def _processes(stage: Stage) -> RenderableType:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bright_black")
    for name in ("process", "for", "state"):
        table.add_column(name)
    table.add_column("holds", justify="right")
    table.add_column("done", justify="right")
    is_up = stage.server.is_running
    state = Text("● serving", "green") if is_up else Text("✖ down", "bold red")
    table.add_row("server", "everyone", state, "", "")
    for hire, child in stage.crew.values():
        if child.is_running:
            shown = Text("● slow", "yellow") if hire.slow else Text("● working", "green")
        else:
            shown = Text("✖ killed", "red") if hire.name in stage.kills else Text("○ stopped", "bright_black")
        held, done = stage.board.held[hire.name], stage.board.done_by[hire.name]
        tenant = Text(hire.tenant, TENANT_STYLES[hire.tenant])
        table.add_row(hire.name, tenant, shown, _number(held, "bright_cyan"), _number(done, "green"))
    return Panel(table, title="processes", title_align="left", padding=(0, 1), border_style="bright_black")


def _speed(stage: Stage) -> RenderableType:
    board, at_ms = stage.board, now_ms()
    rates = board.rates(at_ms, 48)
    lines = [
        Text.assemble(("tasks ended per second, the last 48 s", "bright_black")),
        *_bars(rates, rows=3),
        Text.assemble((f"{rates[-1]:,}/s", "bold green"), ("  now    ", "bright_black"), f"{max(rates):,}/s at best"),
        Text(""),
        Text.assemble(
            ("wait until a worker has it  ", "bright_black"),
            f"p50 {board.wait_ms(0.5):,} ms   p99 {board.wait_ms(0.99):,} ms",
        ),
        Text.assemble(
            ("acknowledged  ", "bright_black"),
            f"{len(stage.ledger.receipts):,}",
            ("    keys sent twice  ", "bright_black"),
            f"{len(stage.ledger.repeats):,}",
        ),
    ]
    return Panel(Group(*lines), title="speed", title_align="left", padding=(0, 1), border_style="bright_black")


def _timeline(stage: Stage) -> RenderableType:
    lines = note_lines(reversed(stage.notes))
    return Panel(lines, title="timeline", title_align="left", padding=(0, 1), border_style="bright_black")


def _bars(values: list[int], *, rows: int) -> list[Text]:
    """A chart of bars, `rows` lines high. Scaled by the square root, so that a rush leaves the rest in sight."""
    top = max(values, default=0) ** 0.5 or 1.0
    eighths = [round(value**0.5 / top * rows * 8) for value in values]
    lines = []
    for row in reversed(range(rows)):
        filled = [min(8, max(0, eighth - row * 8)) for eighth in eighths]
        lines.append(Text("".join(SPARKS[level - 1] if level else " " for level in filled), "green"))
    return lines


def _number(value: int, style: str) -> Text:
    return Text(f"{value:,}", style) if value else Text("·", "bright_black")
