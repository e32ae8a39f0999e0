"""`codeq events`: watch what happens to tasks, from any point of the log on."""

from typing import TYPE_CHECKING, Annotated

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import Misuse
from codeq.cli.output import Output, clean, cut
from codeq.cli.task_view import FAILING

if TYPE_CHECKING:
    from codeq import Client
    from codeq.wire.events import Event

app = typer.Typer(no_args_is_help=True, help="Watch what happens to tasks.")

RETRY_S = 3600.0
"""Watching goes on through a restart of the server."""
PAST_THE_END = 1 << 61
"""An offset that no log reaches: what is asked from there on is nothing, but it says where the log ends."""


@remote(app, "tail", retry_s=RETRY_S, example="codeq events tail --from start --command resize --json")
def tail(
    client: "Client",
    out: Output,
    start: Annotated[
        str, typer.Option("--from", metavar="OFFSET", help="start, now, or the number of the first event.")
    ] = "now",
    command: Annotated[str | None, typer.Option(help="Of this command alone.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for what is yet to come.")] = True,
) -> None:
    """Print events of all shards as they happen, until Ctrl-C. With --json, one event per line.

    The order is that of the log inside a shard; events of different shards come as they arrive.
    """
    if start not in ("start", "now") and not (start.isascii() and start.isdigit()):
        raise Misuse(f"--from is start, now or a number, not {start!r}")
    offset = {"start": 1, "now": PAST_THE_END}.get(start) or max(1, int(start))

    def show(event: "Event") -> None:
        if command is None or event.command == command:
            out.line(event) if out.is_json else print(_line(event), flush=True)

    import asyncio

    from codeq.cli.tailing import Tail

    asyncio.run(Tail(client.as_async(), offset, show, is_following=follow).run())


def _line(event: "Event") -> str:
    status = event.status_after if event.status_before is None else f"{event.status_before} → {event.status_after}"
    said = [
        event.at.replace("T", " "),
        f"{event.shard}/{event.seq}",
        f"{event.move:<8}",
        event.task_id,
        event.command,
        status,
        f"worker {event.worker_id}" if event.worker_id and event.move == "claim" else "",
        cut(event.error, 200) if event.error and event.move in FAILING else "",
    ]
    return clean("  ".join(part for part in said if part))
