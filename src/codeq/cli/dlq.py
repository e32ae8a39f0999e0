"""`codeq dlq`: lists, replays and purges dead-lettered tasks."""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import ExitCode, UsageError, print_error
from codeq.cli.output import Output, count, rfc3339, truncate
from codeq.cli.task_view import ROW_COLUMNS, error_text, task_fields, task_row
from codeq.cli.tasks import iterate_tasks

if TYPE_CHECKING:
    from codeq import Client, Task
    from codeq.domain.requests import BulkResult

app = typer.Typer(no_args_is_help=True, help="List, replay and purge dead-lettered tasks.")

CALL_TASKS, IDS_MAX = 10_000, 1000
TASKS_SHOWN = 20

Command = Annotated[str | None, typer.Option(help="Only tasks of this command.")]
Error = Annotated[str | None, typer.Option(help="Only tasks with this text in their error.")]
Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="This task; repeatable.")]
All = Annotated[bool, typer.Option("--all", help="All dead tasks.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print how many tasks match, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@remote(app, "list", example="codeq dlq list --command resize --error timeout")
def list_(
    client: "Client",
    out: Output,
    command: Command = None,
    error: Error = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum number of tasks.")] = 1000,
    all: Annotated[bool, typer.Option("--all", help="List all of them.")] = False,
) -> None:
    """List dead tasks, oldest first, with their errors grouped by text."""
    dead = iterate_tasks(client, command=command, error=error, dead=True)
    tasks = list(dead if all else islice(dead, limit))
    has_more = not all and len(tasks) == limit and next(dead, None) is not None
    groups = _grouped(tasks)
    if out.is_json:
        out.document({"groups": groups, "tasks": [task_fields(task) for task in tasks], "more": has_more})
        return
    if not tasks:
        out.say("there are no dead tasks" if command is error is None else "no dead tasks match")
        return
    rows = [(g["count"], g["command"], *_first_and_last(g), truncate(g["error"], 300)) for g in groups]
    out.rows((">tasks", "command", "first", "last", "error"), rows, fold="error")
    out.say()
    out.rows(ROW_COLUMNS, [task_row(task) for task in tasks[:TASKS_SHOWN]], fold="error")
    if len(tasks) > TASKS_SHOWN:
        out.say(f"... and {len(tasks) - TASKS_SHOWN} more")
    if has_more:
        out.say(f"there are more than these {len(tasks)}; use --limit or --all")


@remote(app, "replay", example="codeq dlq replay --command resize --error timeout --dry-run")
def replay(
    client: "Client",
    out: Output,
    command: Command = None,
    error: Error = None,
    id: Ids = None,
    all: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Put dead tasks back into their queues, with their attempts reset."""
    selection = _Selection(command, error, id, is_all=all)
    _change(client, out, selection, client.replay_dead, words=("replay", "replayed"), dry_run=dry_run, yes=yes)


@remote(app, "purge", example="codeq dlq purge --id 0199a1b2-7c3d-7000-8000-3f2a9c5e1b70 --yes")
def purge(
    client: "Client",
    out: Output,
    command: Command = None,
    error: Error = None,
    id: Ids = None,
    all: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete dead tasks, with their payloads."""
    selection = _Selection(command, error, id, is_all=all)
    _change(client, out, selection, client.purge_dead, words=("purge", "purged"), dry_run=dry_run, yes=yes)


class _Selection:
    """Which dead tasks to change: by id, by filter, or all; exactly one of these."""

    def __init__(self, command: str | None, error: str | None, ids: list[str] | None, *, is_all: bool) -> None:
        self.command, self.error, self.ids = command, error, ids
        if sum((bool(ids), command is not None or error is not None, is_all)) != 1:
            raise UsageError("choose dead tasks by --id, by --command and --error, or by --all; exactly one of these")

    def __str__(self) -> str:
        of_command = f" of {self.command}" if self.command is not None else ""
        return of_command + (f" with {self.error!r} in their error" if self.error is not None else "")

    def apply(self, verb: "Callable[..., BulkResult]", *, expected: int, dry_run: bool) -> Iterator["BulkResult"]:
        """Calls the verb until all are changed. Stops after `expected` tasks: a replayed task that dies again must not
        be matched again for ever."""
        if self.ids is not None:
            for first in range(0, len(self.ids), IDS_MAX):
                yield verb(ids=self.ids[first : first + IDS_MAX], dry_run=dry_run)
            return
        left = expected
        while left > 0:
            limit = min(left, CALL_TASKS)
            result = verb(self.command, error=self.error, limit=limit, dry_run=dry_run)
            yield result
            left -= limit
            if dry_run or result.matched < limit:
                return


def _change(
    client: "Client",
    out: Output,
    selection: _Selection,
    verb: "Callable[..., BulkResult]",
    *,
    words: tuple[str, str],
    dry_run: bool,
    yes: bool,
) -> None:
    do, done = words
    expected = 0
    if selection.ids is None:
        expected = sum(info.dead for command, info in client.queues().items() if selection.command in (None, command))
    previews = list(selection.apply(verb, expected=expected, dry_run=True))
    matched = sum(preview.matched for preview in previews)
    more = "more than " if selection.ids is None and matched == CALL_TASKS < expected else ""
    if dry_run:
        out.answer(
            {"matched": matched, "changed": 0, "dryRun": True, "ids": _ids(previews), "refused": {}},
            f"would {do} {more}{count(matched, 'dead task')}{selection}",
        )
        return
    if matched and not yes:
        confirm(f"{do} {more}{count(matched, 'dead task')}{selection}?")
    results = list(selection.apply(verb, expected=expected, dry_run=False))
    _report(out, results, done=done, where=str(selection))


def _report(out: Output, results: Sequence["BulkResult"], *, done: str, where: str) -> None:
    matched, changed = sum(each.matched for each in results), sum(each.changed for each in results)
    refused = {task_id: code for each in results for task_id, code in each.refused.items()}
    fields = {"matched": matched, "changed": changed, "dryRun": False, "ids": _ids(results), "refused": refused}
    out.answer(fields, f"{done} {count(changed, 'dead task')}{where}")
    exit_code = ExitCode.NOT_FOUND if set(refused.values()) == {"not-found"} else ExitCode.REFUSED
    for task_id, code in refused.items():
        print_error(f"{task_id} was not {done}: {code}", code=code, exit_code=exit_code, as_json=out.is_json)
    if refused:
        raise typer.Exit(exit_code)


def confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask in: add --yes, or try --dry-run first")
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(ExitCode.REFUSED)


def _grouped(tasks: "Sequence[Task]") -> list[dict[str, Any]]:
    """One group per command and error, the largest first."""
    groups: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.command, error_text(task)), []).append(task)
    grouped = [
        {
            "command": command,
            "error": text,
            "count": len(members),
            "oldestAt": rfc3339(min(map(_ended_ms, members))),
            "newestAt": rfc3339(max(map(_ended_ms, members))),
            "exampleId": members[0].id,
        }
        for (command, text), members in groups.items()
    ]
    return sorted(grouped, key=lambda group: -group["count"])


def _ended_ms(task: "Task") -> int:
    from codeq.sdk.tasks import record_of

    return record_of(task).ended_ms


def _first_and_last(group: dict[str, Any]) -> list[str]:
    return [group[name].replace("T", " ") for name in ("oldestAt", "newestAt")]


def _ids(results: Sequence["BulkResult"]) -> list[str]:
    return [task_id for each in results for task_id in each.ids]
