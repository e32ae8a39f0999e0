"""`codeq top`: shows counts and rates of all queues, refreshed every second."""

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.output import Output, console, format_duration, format_time, rfc3339, table
from codeq.cli.parameters import duration
from codeq.cli.queues import queue_fields, queue_note
from codeq.domain.errors import CodeqError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from codeq import Client, QueueInfo

COLUMNS = ("command", ">pending", ">delayed", ">in progress", ">dead", ">oldest",
           ">enqueued/s", ">completed/s", ">failed/s", "")  # fmt: skip
MOVES = {"enqueue": "enqueued", "complete": "completed", "fail": "failed", "nack": "failed", "expire": "failed"}
"""The rate that each move counts for. A failed attempt counts as failed, also if it is retried."""
EVENTS_MAX = 20_000
"""Events read per shard and refresh. If there are more, they are skipped and the rates are lower bounds."""
RETRY_S = 10.0
"""How long the server may be unreachable before the command fails."""


def add_to(app: typer.Typer) -> None:
    remote(app, "top", example="codeq top --every 5s\ncodeq top --once --json", retry_s=RETRY_S)(top)


def top(
    client: "Client",
    out: Output,
    every: Annotated[float, typer.Option(parser=duration, metavar="DURATION", help="Interval between refreshes.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="Measure one interval, print it, and exit.")] = False,
) -> None:
    """Show counts, ages and rates of all queues, until Ctrl-C.

    Into a pipe it prints plain tables, with --json one document per refresh.
    """
    monitor = QueueMonitor(client)
    if once or out.is_json or not out.is_terminal:
        monitor.refresh()
        while True:
            time.sleep(max(0.1, every))
            monitor.refresh()
            if out.is_json:
                out.document(monitor.fields()) if once else out.line(monitor.fields())
            else:
                if not once:
                    print(f"\n{_now()}")
                out.show(monitor.as_table())
                sys.stdout.flush()
            if once:
                return
    from rich.live import Live

    monitor.refresh()
    with Live(monitor.screen(client.url, every), console=console(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(max(0.1, every))
            monitor.refresh()
            live.update(monitor.screen(client.url, every), refresh=True)


class QueueMonitor:
    """The counts at the last refresh, and the events between it and the one before."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._offsets: dict[int, int] = {}
        self._refreshed_s = 0.0
        self._interval_s = 0.0
        self._events: Counter[tuple[str, str]] = Counter()
        self.queues: dict[str, QueueInfo] = {}
        self.may_read_events = True
        self.is_behind = False

    def refresh(self) -> None:
        self.queues = self._client.queues()
        self._events.clear()
        self.is_behind = False
        if self.may_read_events:
            try:
                self._read_events()
            except CodeqError as fault:
                if fault.code != "forbidden":
                    raise
                self.may_read_events = False
        now_s = time.monotonic()
        self._interval_s = now_s - self._refreshed_s if self._refreshed_s else 0.0
        self._refreshed_s = now_s

    def fields(self) -> dict[str, Any]:
        rows = [
            {**queue_fields(command, info), **{f"{kind}PerSecond": self._rate(command, kind) for kind in _KINDS}}
            for command, info in self._all()
        ]
        return {"at": rfc3339(time.time_ns() // 1_000_000), "queues": rows}

    def as_table(self) -> "RenderableType":
        from rich.text import Text

        rows = [self._row(command, info) for command, info in self._all()]
        return table(COLUMNS, rows) if rows else Text("there are no tasks in any queue", style="dim")

    def screen(self, url: str, every_s: float) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        waiting = sum(info.pending + info.delayed for info in self.queues.values())
        running = sum(info.in_progress for info in self.queues.values())
        head = f"codeq top   {url}   {_now()[:19]}Z   {waiting} waiting, {running} in progress"
        notes = [f"every {format_duration(every_s)}; Ctrl-C ends"]
        if not self.may_read_events:
            notes.append("no rates: the token has no scope codeq:events")
        if self.is_behind:
            notes.append("more events than can be read; rates are lower bounds")
        return Group(Text(head, style="bold"), Text(), self.as_table(), Text(), Text("; ".join(notes), style="dim"))

    def _row(self, command: str, info: "QueueInfo") -> tuple[Any, ...]:
        rates = [self._rate(command, kind) for kind in _KINDS]
        return (
            command,
            info.pending,
            info.delayed,
            info.in_progress,
            info.dead,
            format_duration(info.oldest_seconds) if info.pending else "-",
            *("-" if rate is None else f"{rate:.1f}" for rate in rates),
            queue_note(info),
        )

    def _all(self) -> "list[tuple[str, QueueInfo]]":
        """Queues that hold tasks, and queues whose tasks all ended within the interval."""
        from codeq.sdk.jobs import QueueInfo

        empty = {command: QueueInfo() for command, _ in self._events if command not in self.queues}
        return sorted({**self.queues, **empty}.items())

    def _rate(self, command: str, kind: str) -> float | None:
        if not self.may_read_events or not self._interval_s:
            return None
        return round(self._events[command, kind] / self._interval_s, 1)

    def _read_events(self) -> None:
        if not self._offsets:
            from codeq.wire.events import PAST_THE_END

            first = self._client.events(shard=0, offset=PAST_THE_END, limit=1)
            for shard in range(first.shards):
                at = first if shard == 0 else self._client.events(shard=shard, offset=PAST_THE_END, limit=1)
                self._offsets[shard] = at.end_offset
            return
        for shard, offset in self._offsets.items():
            page = self._client.events(shard=shard, offset=offset, limit=EVENTS_MAX)
            self._events.update((event.command, MOVES[event.move]) for event in page.events if event.move in MOVES)
            self.is_behind |= page.next_offset < page.end_offset
            self._offsets[shard] = max(page.next_offset, page.end_offset)


_KINDS = tuple(dict.fromkeys(MOVES.values()))


def _now() -> str:
    return format_time(time.time_ns() // 1_000_000)
