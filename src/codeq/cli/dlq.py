"""`codeq dlq`: what ran out of tries; why, and back into its queue or away with it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import Code, Misuse, complain
from codeq.cli.output import Output, count, cut, stamp
from codeq.cli.task_view import ROW_COLUMNS, error, fields, row

if TYPE_CHECKING:
    from codeq import Client, Task
    from codeq.domain.requests import BulkResult

app = typer.Typer(no_args_is_help=True, help="Tasks that ran out of tries: look, replay, purge.")

PAGE_TASKS, SWEEP_TASKS, IDS_MAX = 500, 10_000, 1000
TASKS_SHOWN = 20

Command = Annotated[str | None, typer.Option(help="Of this command.")]
Error = Annotated[str | None, typer.Option(help="With this text in their error.")]
Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="This task; may be given often.")]
All = Annotated[bool, typer.Option("--all", help="All dead tasks.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how many it would be, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@remote(app, "list", example="codeq dlq list --command resize --error timeout")
def list_(
    client: "Client",
    out: Output,
    command: Command = None,
    error: Error = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many tasks to look at.")] = 1000,
    all: Annotated[bool, typer.Option("--all", help="Look at all of them.")] = False,
) -> None:
    """List dead tasks, oldest first, with their errors grouped by text."""
    found = _dead(client, command, error)
    tasks = list(found if all else islice(found, limit))
    has_more = not all and len(tasks) == limit and next(found, None) is not None
    groups = _grouped(tasks)
    if out.is_json:
        out.document({"groups": groups, "tasks": [fields(task) for task in tasks], "more": has_more})
        return
    if not tasks:
        out.say("there are no dead tasks" if command is error is None else "there are no such dead tasks")
        return
    rows = [(g["count"], g["command"], *_between(g), cut(g["error"], 300)) for g in groups]
    out.rows((">tasks", "command", "first", "last", "error"), rows, fold="error")
    out.say()
    out.rows(ROW_COLUMNS, [row(task) for task in tasks[:TASKS_SHOWN]], fold="error")
    if len(tasks) > TASKS_SHOWN:
        out.say(f"... and {len(tasks) - TASKS_SHOWN} more")
    if has_more:
        out.say(f"there are more than these {len(tasks)}: --limit, or --all")


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
    """Put dead tasks back into their queues, with a fresh set of tries."""
    chosen = _Chosen(command, error, id, is_all=all)
    _sweep(client, out, chosen, client.replay_dead, words=("replay", "replayed"), dry_run=dry_run, yes=yes)


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
    """Forget dead tasks for good, with their payloads."""
    chosen = _Chosen(command, error, id, is_all=all)
    _sweep(client, out, chosen, client.purge_dead, words=("purge", "purged"), dry_run=dry_run, yes=yes)


class _Chosen:
    """Which dead tasks are meant: named ones, matching ones, or all; exactly one of these."""

    def __init__(self, command: str | None, error: str | None, ids: list[str] | None, *, is_all: bool) -> None:
        self.command, self.error, self.ids = command, error, ids
        if sum((bool(ids), command is not None or error is not None, is_all)) != 1:
            raise Misuse("say which dead tasks: --id, or --command and --error, or --all; one of these")

    def __str__(self) -> str:
        said = f" of {self.command}" if self.command is not None else ""
        return said + (f" with {self.error!r} in their error" if self.error is not None else "")

    def sweep(self, verb: "Callable[..., BulkResult]", *, expected: int, dry_run: bool) -> Iterator["BulkResult"]:
        """Call the verb as often as it takes. No more than `expected` are met, or what dies again would be met again
        for ever."""
        if self.ids is not None:
            for first in range(0, len(self.ids), IDS_MAX):
                yield verb(ids=self.ids[first : first + IDS_MAX], dry_run=dry_run)
            return
        left = expected
        while left > 0:
            limit = min(left, SWEEP_TASKS)
            swept = verb(self.command, error=self.error, limit=limit, dry_run=dry_run)
            yield swept
            left -= limit
            if dry_run or swept.matched < limit:
                return


def _sweep(
    client: "Client",
    out: Output,
    chosen: _Chosen,
    verb: "Callable[..., BulkResult]",
    *,
    words: tuple[str, str],
    dry_run: bool,
    yes: bool,
) -> None:
    do, done = words
    expected = 0
    if chosen.ids is None:
        expected = sum(info.dead for command, info in client.queues().items() if chosen.command in (None, command))
    looked = list(chosen.sweep(verb, expected=expected, dry_run=True))
    matched = sum(swept.matched for swept in looked)
    more = "more than " if chosen.ids is None and matched == SWEEP_TASKS < expected else ""
    if dry_run:
        if out.is_json:
            out.document({"matched": matched, "changed": 0, "dryRun": True, "ids": _ids(looked), "refused": {}})
        else:
            out.say(f"would {do} {more}{count(matched, 'dead task')}{chosen}")
        return
    if matched and not yes:
        _confirm(f"{do} {more}{count(matched, 'dead task')}{chosen}?")
    swept = list(chosen.sweep(verb, expected=expected, dry_run=False))
    _report(out, swept, done=done, where=str(chosen))


def _report(out: Output, swept: Sequence["BulkResult"], *, done: str, where: str) -> None:
    changed, refused = sum(each.changed for each in swept), {k: v for each in swept for k, v in each.refused.items()}
    if out.is_json:
        matched = sum(each.matched for each in swept)
        out.document(
            {"matched": matched, "changed": changed, "dryRun": False, "ids": _ids(swept), "refused": refused}
        )  # fmt: skip
    else:
        out.say(f"{done} {count(changed, 'dead task')}{where}")
    exit_code = Code.NOT_FOUND if set(refused.values()) == {"not-found"} else Code.REFUSED
    for task_id, code in refused.items():
        complain(f"{task_id} was not {done}: {code}", code=code, exit_code=exit_code, as_json=out.is_json)
    if refused:
        raise typer.Exit(exit_code)


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise Misuse(f"{question} Nobody can be asked here: say --yes, or look first with --dry-run")
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(Code.REFUSED)


def _dead(client: "Client", command: str | None, error: str | None) -> "Iterator[Task]":
    cursor: str | None = None
    while True:
        page = client.list(command=command, error=error, dead=True, cursor=cursor, limit=PAGE_TASKS)
        yield from page.tasks
        cursor = page.cursor
        if cursor is None:
            return


def _grouped(tasks: "Sequence[Task]") -> list[dict[str, Any]]:
    """One group per command and error, the largest first."""
    groups: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.command, error(task)), []).append(task)
    made = [
        {
            "command": command,
            "error": text,
            "count": len(members),
            "oldestAt": stamp(min(task.ended_ms for task in members)),
            "newestAt": stamp(max(task.ended_ms for task in members)),
            "exampleId": members[0].id,
        }
        for (command, text), members in groups.items()
    ]
    return sorted(made, key=lambda group: -group["count"])


def _between(group: dict[str, Any]) -> list[str]:
    return [group[name].replace("T", " ") for name in ("oldestAt", "newestAt")]


def _ids(swept: Sequence["BulkResult"]) -> list[str]:
    return [task_id for each in swept for task_id in each.ids]
