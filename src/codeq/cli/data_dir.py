"""`codeq stats`, `backup` and `restore`: commands on a data directory, and the backup of a running server."""

from pathlib import Path
from typing import Annotated

import typer

from codeq.cli.connect import ProfileName, TokenFile, TokenText, Url, local, resolve_endpoint
from codeq.cli.errors import LocalNotFound, UsageError
from codeq.cli.output import Output, count
from codeq.cli.queues import print_queues

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
    out: Output, directory: Directory, tenant: Annotated[str, typer.Option(help="Tenant of the queues.")] = "default"
) -> None:
    """Show the queues of a data directory with their counts. No other process may have it open."""
    import codeq

    _check(directory)
    with codeq.open(directory, tenant=tenant, sweeping=False) as queue:
        queues = queue.queues()
    print_queues(out, queues, if_none=f"tenant {tenant} has no queues with tasks in {directory}")


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
