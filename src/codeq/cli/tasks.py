"""`codeq task`: look at tasks, wait for them, end them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import Code, complain
from codeq.cli.output import Output, clean
from codeq.cli.parameters import duration
from codeq.cli.task_view import CUT_CHARS, ROW_COLUMNS, facts, fields, kept_fields, label, row, timeline

if TYPE_CHECKING:
    from codeq import Client, Task

app = typer.Typer(no_args_is_help=True, help="Look at tasks, wait for them, cancel them.")

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]
PAGE_TASKS = 500


@remote(app, "show", example="codeq task show 0199a1b2-7c3d-7000-8000-3f2a9c5e1b70")
def show(client: "Client", out: Output, task_id: TaskId) -> None:
    """Show a task: what it is, all that happened to it, its payload and its result."""
    kept, history = client.get(task_id), client.history(task_id)
    if out.is_json:
        out.document({**kept_fields(kept), "history": history})
        return
    from codeq.cli.output import table

    out.show(table(("", ""), facts(kept.task)))
    out.say()
    out.show(table(("when", ">after", "move", "status", "worker", "what"), timeline(history), fold="what"))
    _show_value(out, "payload", kept.payload)
    if kept.result is not None:
        _show_value(out, "result", kept.result)


@remote(app, "list", example="codeq task list --command resize --status failed --error timeout")
def list_(
    client: "Client",
    out: Output,
    command: Annotated[str | None, typer.Option(help="Of this command alone.")] = None,
    status: Annotated[
        str | None, typer.Option(help="pending, in_progress, completed, failed or cancelled.", metavar="STATUS")
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="In the dead-letter queue, oldest first.")] = False,
    error: Annotated[str | None, typer.Option(help="With this text in their error.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")] = 50,
    all: Annotated[bool, typer.Option("--all", help="All of them; with --json one document per line.")] = False,
) -> None:
    """List tasks, newest first."""
    wanted: dict[str, Any] = {
        "command": command,
        "status": status.upper().replace("-", "_") if status else None,
        "dead": dead,
        "error": error,
    }
    found = _found(client, wanted)
    if all:
        for task in found:
            out.line(fields(task)) if out.is_json else out.say("  ".join(map(str, row(task))))
        return
    tasks = [task for _, task in zip(range(limit), found, strict=False)]
    has_more = len(tasks) == limit and next(found, None) is not None
    if out.is_json:
        out.document({"tasks": [fields(task) for task in tasks], "more": has_more})
    elif not tasks:
        out.say("there are no such tasks")
    else:
        out.rows(ROW_COLUMNS, [row(task) for task in tasks], fold="error")
        if has_more:
            out.note(f"the first {limit}; there are more: --limit, or --all")


@remote(app, "wait", example="codeq task wait 0199a1b2-7c3d-7000-8000-3f2a9c5e1b70 --timeout 10m")
def wait(
    client: "Client",
    out: Output,
    task_id: TaskId,
    timeout: Annotated[float, typer.Option(parser=duration, metavar="DURATION", help="How long to wait.")] = 60,
) -> None:
    """Wait until a task has ended, and print its result. Fails if the task did."""
    from codeq.sdk.jobs import TaskFailed

    try:
        result = client.wait(task_id, timeout)
    except TaskFailed as failed:
        if not out.is_json:
            raise
        out.document(kept_fields(failed.details))
        complain(str(failed), code=failed.code, as_json=True)
        raise typer.Exit(Code.REFUSED) from None
    if out.is_json:
        out.document(kept_fields(client.get(task_id)))
    else:
        import msgspec

        out.say(msgspec.json.encode(result).decode())


@remote(app, "cancel", example="codeq task cancel 0199a1b2-7c3d-7000-8000-3f2a9c5e1b70")
def cancel(client: "Client", out: Output, task_id: TaskId) -> None:
    """Cancel a task. One in progress: its worker learns of it at its next heartbeat."""
    task = client.cancel(task_id)
    if out.is_json:
        out.document(fields(task))
    else:
        out.say(f"{task.id} is {label(task)}")


def _found(client: "Client", wanted: dict[str, Any]) -> "Iterator[Task]":
    cursor: str | None = None
    while True:
        page = client.list(**wanted, cursor=cursor, limit=PAGE_TASKS)
        yield from page.tasks
        cursor = page.cursor
        if cursor is None:
            return


def _show_value(out: Output, name: str, value: Any) -> None:
    import msgspec

    text = clean(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
    out.say(f"\n{name}")
    out.say(text[:CUT_CHARS])
    if len(text) > CUT_CHARS:
        out.say(f"... {len(text) - CUT_CHARS} more characters; --json shows all")
