"""`codeq events`: follows the event log of all shards, each from its own offset."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import UsageError
from codeq.cli.output import Output, printable, truncate
from codeq.cli.task_view import FAILING

if TYPE_CHECKING:
    from codeq import AsyncClient, Client
    from codeq.wire.events import Event, EventPage

app = typer.Typer(no_args_is_help=True, help="Follow the event log.")

RETRY_S = 3600.0
"""Following continues after a restart of the server."""
PAGE_EVENTS = 1000
WAIT_S = 20.0
CONNECTIONS_MAX = 32
"""Shards that are long-polled at once. If there are more, each is polled about once a second instead."""


@remote(app, "tail", retry_s=RETRY_S, example="codeq events tail --from start --command resize --json")
def tail(
    client: "Client",
    out: Output,
    start: Annotated[
        str, typer.Option("--from", metavar="OFFSET", help="start, now, or the number of the first event.")
    ] = "now",
    command: Annotated[str | None, typer.Option(help="Only events of this command.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new events.")] = True,
) -> None:
    """Print events of all shards as they happen, until Ctrl-C. With --json, one event per line.

    Events of one shard are printed in the order of the log, events of different shards as they arrive.
    """
    if start not in ("start", "now") and not (start.isascii() and start.isdigit()):
        raise UsageError(f"--from is start, now or a number, not {start!r}")
    from codeq.wire.events import PAST_THE_END

    offset = {"start": 1, "now": PAST_THE_END}.get(start) or max(1, int(start))

    def show(event: "Event") -> None:
        if command is None or event.command == command:
            out.line(event) if out.is_json else print(_line(event), flush=True)

    import asyncio

    asyncio.run(_read_all(client.as_async(), offset, show, follow=follow))


async def _read_all(client: "AsyncClient", offset: int, show: "Callable[[Event], None]", *, follow: bool) -> None:
    """Reads all shards concurrently: to the ends of their logs, or for ever if `follow`."""
    import asyncio

    from codeq.wire.events import PAST_THE_END

    connections = asyncio.Semaphore(CONNECTIONS_MAX)

    async def read_page(shard: int, offset: int, wait_s: float) -> "EventPage":
        async with connections:
            return await client.events(shard=shard, offset=offset, limit=PAGE_EVENTS, wait=wait_s)

    async def read_shard(shard: int, offset: int, wait_s: float) -> None:
        if offset == PAST_THE_END:
            offset = (await read_page(shard, offset, 0)).end_offset
        is_at_end = False
        while follow or not is_at_end:
            page = await read_page(shard, offset, wait_s)
            for event in page.events:
                show(event)
            offset, is_at_end = page.next_offset, page.next_offset >= page.end_offset
            if is_at_end and follow and not wait_s:
                await asyncio.sleep(1)

    async with client:
        shards = (await read_page(0, PAST_THE_END, 0)).shards
        wait_s = WAIT_S if follow and shards <= CONNECTIONS_MAX else 0.0
        try:
            async with asyncio.TaskGroup() as group:
                for shard in range(shards):
                    group.create_task(read_shard(shard, offset, wait_s))
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None  # the others were cancelled because of it


def _line(event: "Event") -> str:
    status = event.status_after if event.status_before is None else f"{event.status_before} → {event.status_after}"
    parts = [
        event.at.replace("T", " "),
        f"{event.shard}/{event.seq}",
        f"{event.move:<8}",
        event.task_id,
        event.command,
        status,
        f"worker {event.worker_id}" if event.worker_id and event.move == "claim" else "",
        truncate(event.error, 200) if event.error and event.move in FAILING else "",
    ]
    return printable("  ".join(part for part in parts if part))
