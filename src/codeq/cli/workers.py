"""`codeq workers`: lists who works, on what, and what each worker holds."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.output import Output, count, format_duration, rfc3339, truncate

if TYPE_CHECKING:
    from datetime import datetime

    from codeq import Client, WorkerStatus

COLUMNS = ("name", "subject", "version", ">slots", ">holds", ">seen", "commands")
COMMANDS_CHARS_MAX = 200


def add_to(app: typer.Typer) -> None:
    remote(app, "workers", example="codeq workers\ncodeq workers --command resize --tasks")(workers)


def workers(
    client: "Client",
    out: Output,
    command: Annotated[str | None, typer.Option(help="Only workers on this command.")] = None,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="Also print the ids of tasks that they hold, ten each.")
    ] = False,
) -> None:
    """List the workers that were heard from lately, and those that hold tasks. For admins.

    Also says which queues have tasks that nobody works on. Names, hosts and versions are what workers tell.
    """
    found = [each for each in client.workers() if command is None or each.works_on(command)]
    alone = [
        (name, info.pending)
        for name, info in sorted(client.queues().items())
        if info.workers == 0 and info.pending and command in (None, name)
    ]
    if out.is_json:
        unattended = [{"command": name, "ready": pending} for name, pending in alone]
        out.document({"workers": [_fields(each) for each in found], "unattended": unattended})
        return
    if found:
        out.rows(COLUMNS, [_row(each) for each in found], fold="commands")
    else:
        out.say("no worker was heard from lately" if command is None else f"nobody works on {command}")
    for each in found if tasks else ():
        for task_id in each.tasks:
            out.say(f"{each.name or each.subject} holds {task_id}")
    for name, pending in alone:
        out.say(f"nobody works on {name}: {count(pending, 'task')} ready")


def _row(worker: "WorkerStatus") -> tuple[Any, ...]:
    seen = _ago(worker.last_seen_at) if worker.last_seen_at else "gone"
    commands = "all" if worker.commands is None else ", ".join(worker.commands)
    return (
        worker.name or "-",
        worker.subject,
        worker.version or "-",
        worker.slots or "-",
        worker.holds,
        seen,
        truncate(commands, COMMANDS_CHARS_MAX) if worker.last_seen_at else "-",
    )


def _fields(worker: "WorkerStatus") -> dict[str, Any]:
    return {
        "name": worker.name,
        "subject": worker.subject,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "slots": worker.slots,
        "commands": worker.commands,
        "firstSeenAt": _text(worker.first_seen_at),
        "lastSeenAt": _text(worker.last_seen_at),
        "holds": worker.holds,
        "tasks": worker.tasks,
    }


def _ago(seen: "datetime") -> str:
    return f"{format_duration(max(0.0, time.time() - seen.timestamp()))} ago"


def _text(seen: "datetime | None") -> str | None:
    from codeq.sdk.durations import unix_ms

    return rfc3339(unix_ms(seen)) if seen else None
