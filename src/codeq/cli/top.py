"""`codeq top`: the queues as they stand and what flows through them, again every second."""

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.output import Output, console, span, stamp, table, when
from codeq.cli.parameters import duration
from codeq.cli.queues import fields
from codeq.domain.errors import CodeqError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from codeq import Client, QueueInfo

COLUMNS = ("command", ">pending", ">delayed", ">in progress", ">dead", ">oldest",
           ">enqueued/s", ">completed/s", ">failed/s", "")  # fmt: skip
MOVES = {"enqueue": "enqueued", "complete": "completed", "fail": "failed", "nack": "failed", "expire": "failed"}
"""Which move counts as what; a failed try counts as failed, whether or not it is tried again."""
EVENTS_MAX = 20_000
"""Events read of one shard per refresh. Behind by more than that, the rest is passed over and rates are a bound."""
PAST_THE_END = 1 << 61
QUIET_AFTER_S = 10.0
"""How long a server may be away before the view says so and ends."""


def add_to(app: typer.Typer) -> None:
    remote(app, "top", example="codeq top --every 5s\ncodeq top --once --json", retry_s=QUIET_AFTER_S)(top)


def top(
    client: "Client",
    out: Output,
    every: Annotated[float, typer.Option(parser=duration, metavar="DURATION", help="How often to look.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="Look for one interval, print what was seen, and end.")] = False,
) -> None:
    """Watch the queues: counts, ages and rates, until Ctrl-C. Into a pipe: plain lines; with --json, one per look."""
    watch = _Watch(client)
    if once or out.is_json or not out.is_terminal:
        watch.look()
        while True:
            time.sleep(max(0.1, every))
            watch.look()
            if out.is_json:
                out.document(watch.fields()) if once else out.line(watch.fields())
            else:
                if not once:
                    print(f"\n{_now()}")
                out.show(watch.drawn())
                sys.stdout.flush()
            if once:
                return
    from rich.live import Live

    watch.look()
    with Live(watch.screen(client.url, every), console=console(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(max(0.1, every))
            watch.look()
            live.update(watch.screen(client.url, every), refresh=True)


class _Watch:
    """What was seen at the last look, and how much happened since the one before."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._offsets: dict[int, int] = {}
        self._looked_s = 0.0
        self._passed_s = 0.0
        self._happened: Counter[tuple[str, str]] = Counter()
        self.queues: dict[str, QueueInfo] = {}
        self.may_read = True
        self.is_behind = False

    def look(self) -> None:
        self.queues = self._client.queues()
        self._happened.clear()
        self.is_behind = False
        if self.may_read:
            try:
                self._read_events()
            except CodeqError as fault:
                if fault.code != "forbidden":
                    raise
                self.may_read = False
        now_s = time.monotonic()
        self._passed_s = now_s - self._looked_s if self._looked_s else 0.0
        self._looked_s = now_s

    def fields(self) -> dict[str, Any]:
        rows = [
            {**fields(command, info), **{f"{what}PerSecond": self._rate(command, what) for what in _KINDS}}
            for command, info in self._all()
        ]
        return {"at": stamp(time.time_ns() // 1_000_000), "queues": rows}

    def drawn(self) -> "RenderableType":
        return table(COLUMNS, [self._row(command, info) for command, info in self._all()])

    def screen(self, url: str, every_s: float) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        waiting = sum(info.pending + info.delayed for info in self.queues.values())
        running = sum(info.in_progress for info in self.queues.values())
        head = f"codeq top   {url}   {_now()[:19]}Z   {waiting} waiting, {running} in progress"
        notes = [f"every {span(every_s)}; Ctrl-C ends"]
        if not self.may_read:
            notes.append("no rates: the token has no scope codeq:events")
        if self.is_behind:
            notes.append("more happens than can be read; rates are lower bounds")
        body = self.drawn() if self.queues else Text("there are no tasks in any queue", style="dim")
        return Group(Text(head, style="bold"), Text(), body, Text(), Text("; ".join(notes), style="dim"))

    def _row(self, command: str, info: "QueueInfo") -> tuple[Any, ...]:
        rates = [self._rate(command, what) for what in _KINDS]
        return (
            command,
            info.pending,
            info.delayed,
            info.in_progress,
            info.dead,
            span(info.oldest_seconds) if info.pending else "-",
            *("-" if rate is None else f"{rate:.1f}" for rate in rates),
            "paused" if info.paused else "",
        )

    def _all(self) -> "list[tuple[str, QueueInfo]]":
        """Queues with tasks in them, and those that tasks only passed through."""
        from codeq.sdk.jobs import QueueInfo

        passed = {command: QueueInfo() for command, _ in self._happened if command not in self.queues}
        return sorted({**self.queues, **passed}.items())

    def _rate(self, command: str, what: str) -> float | None:
        if not self.may_read or not self._passed_s:
            return None
        return round(self._happened[command, what] / self._passed_s, 1)

    def _read_events(self) -> None:
        if not self._offsets:
            first = self._client.events(shard=0, offset=PAST_THE_END, limit=1)
            for shard in range(first.shards):
                at = first if shard == 0 else self._client.events(shard=shard, offset=PAST_THE_END, limit=1)
                self._offsets[shard] = at.end_offset
            return
        for shard, offset in self._offsets.items():
            page = self._client.events(shard=shard, offset=offset, limit=EVENTS_MAX)
            self._happened.update((event.command, MOVES[event.move]) for event in page.events if event.move in MOVES)
            self.is_behind |= page.next_offset < page.end_offset
            self._offsets[shard] = max(page.next_offset, page.end_offset)


_KINDS = tuple(dict.fromkeys(MOVES.values()))


def _now() -> str:
    return when(time.time_ns() // 1_000_000)
