"""`codeq stats`, `backup` and `restore`: a data directory that no server has open."""

from pathlib import Path
from typing import Annotated

import typer

from codeq.cli.connect import local
from codeq.cli.errors import Missing
from codeq.cli.output import Output
from codeq.cli.queues import COLUMNS, fields, row

Directory = Annotated[Path, typer.Argument(metavar="DIRECTORY", help="A data directory, as given to codeq.open().")]


def add_to(app: typer.Typer) -> None:
    local(app, "stats", example="codeq stats ./data --tenant acme")(stats)
    local(app, "backup", example="codeq backup ./data ./backup-monday")(backup)
    local(app, "restore", example="codeq restore ./backup-monday ./data")(restore)


def stats(
    out: Output, directory: Directory, tenant: Annotated[str, typer.Option(help="Whose queues to show.")] = "default"
) -> None:
    """Show how many tasks stand where. The directory must not be open elsewhere."""
    import codeq

    _check(directory)
    with codeq.open(directory, tenant=tenant, sweeping=False) as queue:
        found = queue.queues()
    if out.is_json:
        out.document({"queues": [fields(command, info) for command, info in sorted(found.items())]})
    elif found:
        out.rows(COLUMNS, [row(command, info) for command, info in sorted(found.items())])
    else:
        out.say(f"tenant {tenant} has no tasks waiting in {directory}")


def backup(
    out: Output,
    directory: Directory,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new directory.")],
) -> None:
    """Copy a data directory. A running program copies its own with queue.backup()."""
    import codeq

    _check(directory)
    with codeq.open(directory, sweeping=False) as queue:
        queue.backup(target)
    _say(out, "copied", directory, target)


def restore(
    out: Output,
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="What `codeq backup` wrote.")],
    directory: Directory,
) -> None:
    """Put a backup into a new data directory."""
    import codeq

    codeq.restore(source, directory)
    _say(out, "restored", source, directory)


def _say(out: Output, done: str, source: Path, target: Path) -> None:
    if out.is_json:
        out.document({"from": str(source), "to": str(target)})
    else:
        out.say(f"{done} {source} to {target}")


def _check(directory: Path) -> None:
    if not (directory / "codeq.json").exists():
        raise Missing(f"{directory} is not a codeQ data directory")
