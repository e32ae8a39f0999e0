"""`codeq stats`, `backup` and `restore`: commands on a data directory, and the backup of a running server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codeq.cli.connect import ProfileName, TokenFile, TokenText, Url, local, resolve_endpoint
from codeq.cli.errors import LocalNotFound, UsageError
from codeq.cli.output import Output, count
from codeq.cli.queues import COLUMNS, queue_fields, queue_row

if TYPE_CHECKING:
    from codeq import QueueInfo

Directory = Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Data directory, as given to codeq.open().")]


def add_to(app: typer.Typer) -> None:
    local(app, "stats", example="codeq stats ./data --tenant acme")(stats)
    local(app, "backup", example=_BACKUP)(backup)
    local(app, "restore", example="codeq restore ./backup-monday ./data")(restore)


_BACKUP = """
codeq backup --url https://codeq.example.org --token-file ops.token monday
codeq backup ./data ./backup-monday
"""


def stats(
    out: Output,
    directory: Directory,
    tenant: Annotated[str | None, typer.Option(help="Only queues of this tenant; default: of all.")] = None,
) -> None:
    """Show the queues of a data directory with their tenants and counts. No other process may have it open."""
    import asyncio

    _check(directory)
    found = asyncio.run(_queues(directory, tenant))
    if out.is_json:
        out.document({"queues": [{"tenant": each[0], **queue_fields(*each[1:])} for each in found]})
    elif found:
        out.rows(("tenant", *COLUMNS), [(each[0], *queue_row(*each[1:])) for each in found])
    else:
        out.say(f"{f'tenant {tenant}' if tenant else 'no tenant'} has {'no ' if tenant else ''}tasks in {directory}")


async def _queues(directory: Path, tenant: str | None) -> "list[tuple[str, str, QueueInfo]]":
    """Returns tenant, command and counts of each queue."""
    import codeq
    from codeq.usecases import queries

    async with await codeq.open_async(directory, sweeping=False) as queue:
        tenants = {tenant} if tenant else {key.tenant async for part in queries.all_counts(queue.core) for key in part}
        return [
            (each, command, info)
            for each in sorted(tenants)
            for command, info in sorted((await queue.for_tenant(each).queues()).items())
        ]


def backup(
    out: Output,
    source: Annotated[
        str, typer.Argument(metavar="DIRECTORY|NAME", help="Data directory; alone, the new backup's name on a server.")
    ],
    target: Annotated[Path | None, typer.Argument(metavar="[TARGET]", help="New directory.")] = None,
    url: Url = None,
    token: TokenText = None,
    token_file: TokenFile = None,
    profile: ProfileName = None,
) -> None:
    """Back up a running server, or copy a data directory that no process has open.

    A server writes the backup NAME below its own setting backup.path and stays in use; the token needs the scopes
    codeq:admin and codeq:platform. A program backs up its own data with queue.backup().
    """
    import codeq

    if target is None:
        with resolve_endpoint(url=url, token=token, token_file=token_file, profile=profile).client() as client:
            made = client.backup(source)
        out.answer(made, f"backed up as {made.name}: {made.bytes} bytes, {count(made.tasks, 'task')}, {made.seconds} s")
        return
    if url is not None:
        raise UsageError("a server is given the NAME of a backup alone; it chooses the directory by its backup.path")
    directory = Path(source)
    _check(directory)
    with codeq.open(directory, sweeping=False) as queue:
        queue.backup(target)
    _print_copied(out, "copied", directory, target)


def restore(
    out: Output,
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="Directory that `codeq backup` wrote.")],
    directory: Directory,
) -> None:
    """Restore a backup into a new data directory."""
    import codeq

    codeq.restore(source, directory)
    _print_copied(out, "restored", source, directory)


def _print_copied(out: Output, done: str, source: Path, target: Path) -> None:
    out.answer({"from": str(source), "to": str(target)}, f"{done} {source} to {target}")


def _check(directory: Path) -> None:
    if not (directory / "codeq.json").exists():
        raise LocalNotFound(f"{directory} is not a codeQ data directory")
