"""How the command line answers: JSON for programs, tables and sentences for people."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

WIDE = 1000
"""Columns of an output that is no terminal: nothing is cut there, whoever reads it can."""

STYLES = {
    "PENDING": "cyan",
    "IN_PROGRESS": "yellow",
    "COMPLETED": "green",
    "FAILED": "red",
    "CANCELLED": "dim",
    "ok": "green",
    "warning": "yellow",
    "problem": "bold red",
}


class Output:
    """Where one command answers."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self.is_terminal = sys.stdout.isatty()

    def document(self, value: Any) -> None:
        """The whole answer as one JSON document: on one line for programs, indented for eyes."""
        text = msgspec.json.encode(value)
        print((msgspec.json.format(text, indent=2) if self.is_terminal else text).decode())

    def line(self, value: Any) -> None:
        """One of many JSON documents, each on a line of its own, seen at once by who reads."""
        print(msgspec.json.encode(value).decode(), flush=True)

    def say(self, text: str = "") -> None:
        print(clean(text))

    def note(self, text: str) -> None:
        """Something beside the answer, for a person who watches; programs do not get to see it."""
        if self.is_terminal and sys.stderr.isatty() and not self.is_json:
            print(clean(text), file=sys.stderr)

    def show(self, *things: "RenderableType") -> None:
        screen = console()
        for thing in things:
            with screen.capture() as captured:
                screen.print(thing, markup=False, highlight=False)
            for line in captured.get().splitlines():
                print(line if self.is_terminal else line.rstrip())

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], **titles: Any) -> None:
        self.show(table(columns, rows, **titles))


def console() -> "Console":
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # said, or rather not said, where all commands end

    return Quiet(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS") or WIDE), emoji=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, fold: str = "") -> "Table":
    """A plain table. A column that starts with `>` holds numbers; `fold` names the one that may be cut to fit."""
    from rich.table import Table
    from rich.text import Text

    made = Table(
        box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), show_header=any(columns)
    )  # fmt: skip
    for column in columns:
        name = column.lstrip(">")
        made.add_column(
            name,
            justify="right" if column != name else "left",
            no_wrap=True,
            overflow="ellipsis" if name == fold else "fold",
            min_width=None if name == fold else len(name),
        )
    for row in rows:
        cells = [Text(clean(str(cell)), style=STYLES.get(str(cell).split(" ")[0], "")) for cell in row]
        made.add_row(*cells)
    return made


def clean(text: str) -> str:
    """Text of others, safe to print: what would steer the terminal is shown instead of obeyed."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else f"\\x{ord(sign):02x}" for sign in text)


def cut(text: str, chars_max: int) -> str:
    """The beginning of the text on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= chars_max else flat[: chars_max - 1] + "…"


def span(seconds: float) -> str:
    """A duration in its two largest units."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    left = round(seconds)
    for size, unit, small, small_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if left >= size:
            rest = left % size // small
            return f"{left // size} {unit} {rest} {small_unit}" if rest else f"{left // size} {unit}"
    return f"{left} s"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def when(unix_ms: int) -> str:
    """A moment in UTC, to the millisecond, for people."""
    return stamp(unix_ms).replace("T", " ") if unix_ms else "-"


def stamp(unix_ms: int) -> str:
    """A moment as on the wire."""
    from codeq.wire import times

    return times.text(unix_ms)
