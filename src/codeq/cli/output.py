"""Prints the answers of commands: JSON for programs, tables and sentences for people."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

WIDE = 1000
"""Columns where the output is no terminal: wide enough that nothing is truncated."""

PADDING = 2
"""Blanks between the columns of a table."""
FOLDED_CHARS = 30
"""How much of a column that may be truncated is shown at least."""

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
    """Prints the answer of one command."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self.is_terminal = sys.stdout.isatty()

    def document(self, value: Any) -> None:
        """Prints the whole answer as one JSON document, indented in a terminal."""
        text = msgspec.json.encode(value)
        print((msgspec.json.format(text, indent=2) if self.is_terminal else text).decode())

    def answer(self, value: Any, text: str) -> None:
        """Prints the value with `--json`, and the text without."""
        self.document(value) if self.is_json else self.say(text)

    def line(self, value: Any) -> None:
        """Prints one of many JSON documents on a line of its own, without buffering."""
        print(msgspec.json.encode(value).decode(), flush=True)

    def say(self, text: str = "") -> None:
        """Prints a line of text."""
        print(printable(text))

    def note(self, text: str) -> None:
        """Prints a hint beside the answer, in a terminal only."""
        if self.is_terminal and sys.stderr.isatty() and not self.is_json:
            print(printable(text), file=sys.stderr)

    def show(self, *things: "RenderableType") -> None:
        """Prints tables and styled text."""
        screen = console()
        terminal_width = screen.width
        for thing in things:
            # A terminal wraps lines that are too long, where columns past its edge would be missing without a word.
            screen.width = max(terminal_width, _least_width(thing))
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
            raise BrokenPipeError  # RootGroup handles it without a message

    return Quiet(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS") or WIDE), emoji=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, fold: str | Sequence[str] = ()) -> "Table":
    """A plain table. `>` before a column aligns it right; `fold` names the columns that may be truncated to fit. The
    others are not, whatever the width: half an id is that of nothing."""
    from rich.table import Table
    from rich.text import Text

    made = Table(
        box=None, pad_edge=False, header_style="bold", padding=(0, PADDING, 0, 0), show_header=any(columns)
    )  # fmt: skip
    names = [column.lstrip(">") for column in columns]
    folds = [name == fold if isinstance(fold, str) else name in fold for name in names]
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    for place, (column, name) in enumerate(zip(columns, names, strict=True)):
        widest = max([len(name), *[len(row[place]) for row in cells]])
        made.add_column(
            name,
            justify="right" if column != name else "left",
            no_wrap=not folds[place],  # only columns that may wrap are made narrower first
            min_width=None if folds[place] else widest,
        )
    for row in cells:
        texts = [Text(cell, style=STYLES.get(cell.split(" ")[0], "")) for cell in row]
        for text, is_folded in zip(texts, folds, strict=True):
            if is_folded:
                text.no_wrap, text.overflow = True, "ellipsis"
        made.add_row(*texts)
    return made


def _least_width(thing: "RenderableType") -> int:
    """How wide a table is if its columns that may be truncated are; 0 for anything else."""
    from rich.table import Table

    if not isinstance(thing, Table):
        return 0
    return sum((column.min_width or FOLDED_CHARS) + PADDING for column in thing.columns)


def printable(text: str) -> str:
    """The text with control characters escaped, so that a payload or an error cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)


def truncate(text: str, chars_max: int) -> str:
    """The beginning of the text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= chars_max else flat[: chars_max - 1] + "…"


def format_bytes(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def format_duration(seconds: float) -> str:
    """A duration in its two largest units."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
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


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def format_time(unix_ms: int) -> str:
    """A time in UTC, to the millisecond, for people."""
    return rfc3339(unix_ms).replace("T", " ") if unix_ms else "-"


def rfc3339(unix_ms: int) -> str:
    """A time as on the wire."""
    from codeq.wire import times

    return times.text(unix_ms)
