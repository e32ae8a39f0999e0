"""`codeq stats`, `backup` and `restore`: commands on a data directory that no server has open."""

from pathlib import Path
from typing import Annotated

import typer

from codeq.cli.connect import local
from codeq.cli.errors import LocalNotFound
from codeq.cli.output import Output
from codeq.cli.queues import print_queues

Directory = Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Data directory, as given to codeq.open().")]


def add_to(app: typer.Typer) -> None:
    local(app, "stats", example="codeq stats ./data --tenant acme")(stats)
    local(app, "backup", example="codeq backup ./data ./backup-monday")(backup)
    local(app, "restore", example="codeq restore ./backup-monday ./data")(restore)


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
    directory: Directory,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="New directory.")],
) -> None:
    """Copy a data directory that no process has open. A program backs up its own with queue.backup()."""
    import codeq

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
