"""The `codeq` command: run the service, look into a data directory, copy it, put it back."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import codeq
from codeq.cli import demoing, serving
from codeq.cli.plain import PlainErrors

app = typer.Typer(no_args_is_help=True, add_completion=False, help="codeQ, a durable task queue.")
app.command()(serving.serve)
app.command()(serving.token)
app.command()(demoing.demo)
app.add_typer(serving.config_app, name="config")

Directory = Annotated[Path, typer.Argument(help="A data directory, as given to codeq.open().")]


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        print(f"codeq {codeq.__version__}")
        raise typer.Exit


@app.command()
def stats(
    directory: Directory,
    tenant: Annotated[str, typer.Option(help="Whose queues to show.")] = "default",
) -> None:
    """Show how many tasks stand where. The directory must not be open elsewhere."""
    _existing(directory)
    with PlainErrors(), codeq.open(directory, tenant=tenant, sweeping=False) as queue:
        table = Table("command", "pending", "delayed", "in progress", "dead", box=None)
        for command, counts in sorted(queue.queues().items()):
            row = (counts.pending, counts.delayed, counts.in_progress, counts.dead)
            table.add_row(command, *[str(number) for number in row])
        Console().print(table if table.rows else f"tenant {tenant} has no tasks waiting in {directory}")


@app.command()
def backup(directory: Directory, target: Annotated[Path, typer.Argument(help="A new directory.")]) -> None:
    """Copy a data directory. A running program copies its own with queue.backup()."""
    _existing(directory)
    with PlainErrors(), codeq.open(directory, sweeping=False) as queue:
        queue.backup(target)
    print(f"copied {directory} to {target}")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="What `codeq backup` wrote.")], directory: Directory
) -> None:
    """Put a backup into a new data directory."""
    with PlainErrors():
        codeq.restore(source, directory)
    print(f"restored {source} to {directory}")


def _existing(directory: Path) -> None:
    if not (directory / "codeq.json").exists():
        print(f"codeq: {directory} is not a codeQ data directory")
        raise typer.Exit(1)
