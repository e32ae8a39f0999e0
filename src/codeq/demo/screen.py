"""Shows a running demo: a live screen in a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterable, Sequence
from typing import Protocol, Self

from rich.align import Align
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from codeq.demo.environment import COMMANDS, NO_STEP, DemoEnvironment, TimelineEntry

SPARKS = "▁▂▃▄▅▆▇█"
TENANT_STYLES = {"acme": "cyan", "globex": "magenta", "initech": "yellow"}
PLAIN_EVERY_S = 1.0
WIDE, TALL = 110, 33
_STATES = ("ready", "delayed", "running", "completed", "retried", "dead", "failed", "cancelled")
_NARROW_STATES = ("ready", "running", "completed", "retried", "dead")
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
    """Use it with `with`, which restores the terminal at the end."""

    def draw(self, demo: DemoEnvironment) -> None:
        """Shows the current state; called several times a second."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class PlainView:
    """Prints the counts about once a second, and each entry of the timeline."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0
        self._next_s = 0.0
        self._last = ""

    def draw(self, demo: DemoEnvironment) -> None:
        for entry in demo.timeline[self._printed :]:
            self._console.print(f"{entry.at_s:6.1f}s  * {entry.text}", highlight=False, markup=False, soft_wrap=True)
        self._printed = len(demo.timeline)
        if demo.tenants and demo.now_s >= self._next_s:
            self._next_s = demo.now_s + PLAIN_EVERY_S
            line = self._line(demo)
            if line != self._last:  # nothing changes while Spark works
                self._console.print(f"{demo.now_s:6.1f}s  {line}", highlight=False, markup=False, soft_wrap=True)
            self._last = line

    def _line(self, demo: DemoEnvironment) -> str:
        states = demo.states
        counts = "  ".join(f"{state} {states.total(state)}" for state in _STATES)
        acknowledged = len(demo.acknowledged.tasks)
        return f"acknowledged {acknowledged}  {counts}  {states.rate(now_ms()):.0f}/s"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class LiveView:
    """Fills the terminal and redraws it several times a second."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def draw(self, demo: DemoEnvironment) -> None:
        self._live.update(frame(demo, *self._live.console.size), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def frame(demo: DemoEnvironment, width: int, height: int) -> RenderableType:
    """The whole screen. A small terminal gets the queues and the timeline only."""
    queues = sum(len(commands) for commands in COMMANDS.values())
    layout = Layout()
    parts = [
        Layout(_header(demo), size=4),
        Layout(_queues(demo, _STATES if width >= WIDE else _NARROW_STATES), size=queues + 4),
        Layout(_timeline(demo)),
    ]
    if height >= TALL:
        middle = Layout(size=11)
        middle.split_row(*[Layout(part) for part in (_processes(demo), _speed(demo))[: 2 if width >= WIDE else 1]])
        parts.insert(2, middle)
    layout.split_column(*parts)
    return layout


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def timeline_table(entries: Iterable[TimelineEntry]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True, min_width=6)
    grid.add_column()
    for entry in entries:
        grid.add_row(Text(f"{entry.at_s:.1f}s", "bright_black"), Text(entry.text, entry.style))
    return grid


def _header(demo: DemoEnvironment) -> RenderableType:
    ended = demo.states.ended_tasks
    total = max(demo.tasks, len(demo.acknowledged.tasks), 1)
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column()
    grid.add_column(ratio=1)
    grid.add_column(justify="right")
    title = Text.assemble(("codeQ ", "bold"), ("every answer is on disk", "bright_black"))
    step = Text(demo.step, "bold") if demo.step == NO_STEP else Text(f" {demo.step} ", "bold black on yellow")
    grid.add_row(title, Align.center(step), f"{demo.now_s:.0f} s")
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(justify="right")
    time_left = ProgressBar(total=demo.seconds, completed=min(demo.now_s, demo.seconds), complete_style="cyan")
    bar.add_row(time_left, f"{ended:,} of {total:,} tasks ended")
    return Panel(Group(grid, bar), padding=(0, 1), border_style="bright_black")


def _queues(demo: DemoEnvironment, states: Sequence[str]) -> RenderableType:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bright_black")
    table.add_column("tenant", no_wrap=True)
    table.add_column("command", no_wrap=True)
    for state in states:
        table.add_column(state, justify="right")
    table.add_column("ended/s", justify="right")
    at_ms = now_ms()
    for tenant, commands in COMMANDS.items():
        for row, command in enumerate(commands):
            counts = demo.states.queues[tenant, command]
            cells = [_number(counts[state], _STYLES[state]) for state in states]
            speed = _number(round(demo.states.rate(at_ms, (tenant, command))), "bold")
            table.add_row(Text("" if row else tenant, f"bold {TENANT_STYLES[tenant]}"), command, *cells, speed)
    totals = [_number(demo.states.total(state), f"bold {_STYLES[state]}") for state in states]
    table.add_row("", "all", *totals, _number(round(demo.states.rate(at_ms)), "bold"))
    return Panel(table, title="queues", title_align="left", padding=(0, 1), border_style="bright_black")


def _processes(demo: DemoEnvironment) -> RenderableType:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bright_black")
    for name in ("process", "for", "state"):
        table.add_column(name)
    table.add_column("in progress", justify="right")
    table.add_column("done", justify="right")
    is_up = demo.server.is_running
    state = Text("● serving", "green") if is_up else Text("✖ down", "bold red")
    table.add_row("server", "all", state, "", "")
    for spec, child in demo.workers.values():
        if child.is_running:
            shown = Text("● slow", "yellow") if spec.slow else Text("● working", "green")
        else:
            shown = Text("✖ killed", "red") if spec.name in demo.kills else Text("○ stopped", "bright_black")
        held, done = demo.states.held[spec.name], demo.states.done_by[spec.name]
        tenant = Text(spec.tenant, TENANT_STYLES[spec.tenant])
        table.add_row(spec.name, tenant, shown, _number(held, "bright_cyan"), _number(done, "green"))
    return Panel(table, title="processes", title_align="left", padding=(0, 1), border_style="bright_black")


def _speed(demo: DemoEnvironment) -> RenderableType:
    states, at_ms = demo.states, now_ms()
    rates = states.rates(at_ms, 48)
    lines = [
        Text.assemble(("tasks ended per second, the last 48 s", "bright_black")),
        *_bars(rates, rows=3),
        Text.assemble((f"{rates[-1]:,}/s", "bold green"), ("  now    ", "bright_black"), f"{max(rates):,}/s at best"),
        Text(""),
        Text.assemble(
            ("wait until a worker has it  ", "bright_black"),
            f"p50 {states.wait_ms(0.5):,} ms   p99 {states.wait_ms(0.99):,} ms",
        ),
        Text.assemble(
            ("acknowledged  ", "bright_black"),
            f"{len(demo.acknowledged.tasks):,}",
            ("    keys sent twice  ", "bright_black"),
            f"{len(demo.acknowledged.repeats):,}",
        ),
    ]
    return Panel(Group(*lines), title="speed", title_align="left", padding=(0, 1), border_style="bright_black")


def _timeline(demo: DemoEnvironment) -> RenderableType:
    lines = timeline_table(reversed(demo.timeline))
    return Panel(lines, title="timeline", title_align="left", padding=(0, 1), border_style="bright_black")


def _bars(values: list[int], *, rows: int) -> list[Text]:
    """A bar chart of `rows` lines. Scaled by the square root, so that a rush does not hide the rest."""
    top = max(values, default=0) ** 0.5 or 1.0
    eighths = [round(value**0.5 / top * rows * 8) for value in values]
    lines = []
    for row in reversed(range(rows)):
        filled = [min(8, max(0, eighth - row * 8)) for eighth in eighths]
        lines.append(Text("".join(SPARKS[level - 1] if level else " " for level in filled), "green"))
    return lines


def _number(value: int, style: str) -> Text:
    return Text(f"{value:,}", style) if value else Text("·", "bright_black")
