"""`codeq task`: shows, lists, waits for and cancels tasks."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import ExitCode, print_error
from codeq.cli.output import Output, printable
from codeq.cli.parameters import duration
from codeq.cli.task_view import (
    CUT_CHARS,
    ROW_COLUMNS,
    details_fields,
    facts,
    status_text,
    task_fields,
    task_row,
    timeline,
)

if TYPE_CHECKING:
    from codeq import Client, Task

app = typer.Typer(no_args_is_help=True, help="Show, list, wait for and cancel tasks.")

TaskId = Annotated[str, typer.Argument(metavar="ID", help="Task id.")]
PAGE_TASKS = 500


@remote(app, "show", example="codeq task show 0199a1b2-7c3d-7000-8000-3f2a9c5e1b70")
def show(client: "Client", out: Output, task_id: TaskId) -> None:
    """Show a task with its history, payload and result."""
    details, history = client.get(task_id), client.history(task_id)
    if out.is_json:
        out.document({**details_fields(details), "history": history})
        return
    from codeq.cli.output import table

    out.show(table(("", ""), facts(details.task)))
    out.say()
    out.show(table(("when", ">after", "move", "status", "worker", "what"), timeline(history), fold="what"))
    _show_value(out, "payload", details.payload)
    if details.result is not None:
        _show_value(out, "result", details.result)


@remote(app, "list", example="codeq task list --command resize --status failed --error timeout")
def list_(
    client: "Client",
    out: Output,
    command: Annotated[str | None, typer.Option(help="Only tasks of this command.")] = None,
    status: Annotated[
        str | None,
        typer.Option(help="pending, in_progress, completed, failed or cancelled.", metavar="STATUS"),
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Only dead-lettered tasks, oldest first.")] = False,
    error: Annotated[str | None, typer.Option(help="Only tasks with this text in their error.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of tasks.")] = 50,
    all: Annotated[bool, typer.Option("--all", help="List all; with --json, one document per line.")] = False,
) -> None:
    """List tasks, newest first."""
    filters: dict[str, Any] = {
        "command": command,
        "status": status.upper().replace("-", "_") if status else None,
        "dead": dead,
        "error": error,
    }
    matching = iterate_tasks(client, **filters)
    if all:
        for task in matching:
            out.line(task_fields(task)) if out.is_json else out.say("  ".join(map(str, task_row(task))))
        return
    tasks = list(islice(matching, limit))
    has_more = len(tasks) == limit and next(matching, None) is not None
    if out.is_json:
        out.document({"tasks": [task_fields(task) for task in tasks], "more": has_more})
    elif not tasks:
        out.say("no tasks match")
    else:
        out.rows(ROW_COLUMNS, [task_row(task) for task in tasks], fold="error")
        if has_more:
            out.note(f"these are the first {limit}; use --limit or --all for more")


@remote(app, "wait", example="codeq task wait 0199a1b2-7c3d-7000-8000-3f2a9c5e1b70 --timeout 10m")
def wait(
    client: "Client",
    out: Output,
    task_id: TaskId,
    timeout: Annotated[float, typer.Option(parser=duration, metavar="DURATION", help="Maximum time to wait.")] = 60,
) -> None:
    """Wait until a task has ended, and print its result. Fails if the task failed."""
    from codeq.sdk.jobs import TaskFailed

    try:
        result = client.wait(task_id, timeout)
    except TaskFailed as failed:
        if not out.is_json:
            raise
        out.document(details_fields(failed.details))
        print_error(str(failed), code=failed.code, as_json=True)
        raise typer.Exit(ExitCode.REFUSED) from None
    if out.is_json:
        out.document(details_fields(client.get(task_id)))
    else:
        import msgspec

        out.say(msgspec.json.encode(result).decode())


@remote(app, "cancel", example="codeq task cancel 0199a1b2-7c3d-7000-8000-3f2a9c5e1b70")
def cancel(client: "Client", out: Output, task_id: TaskId) -> None:
    """Cancel a task. If it is in progress, its worker hears of it within about a second."""
    task = client.cancel(task_id)
    out.answer(task_fields(task), f"{task.id} is {status_text(task)}")


def iterate_tasks(client: "Client", **filters: Any) -> "Iterator[Task]":
    """All tasks that match, page by page."""
    cursor: str | None = None
    while True:
        page = client.list(**filters, cursor=cursor, limit=PAGE_TASKS)
        yield from page.tasks
        cursor = page.cursor
        if cursor is None:
            return


def _show_value(out: Output, name: str, value: Any) -> None:
    import msgspec

    text = printable(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
    out.say(f"\n{name}")
    out.say(text[:CUT_CHARS])
    if len(text) > CUT_CHARS:
        out.say(f"... {len(text) - CUT_CHARS} more characters; --json shows all")
