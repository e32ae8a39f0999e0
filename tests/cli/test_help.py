"""Every command has a description, an example and `--json`, and every option its help."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.shell import Cli
from typer.main import get_command

from codeq.cli.main import app

SILENT = {"serve", "worker run", "token", "config check", "config reference"}
"""Commands without `--json`: they run a server or a worker, or print what is one word or a page already."""


def commands(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    root: Any = group or get_command(app)
    for name, command in root.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_the_command_has_an_example_of_it(cli: Cli, path: str) -> None:
    assert f"codeq {path}" in COMMANDS[path].epilog
    assert "Example" in cli.ok(*path.split(), "--help", env={"COLUMNS": "200"}).out
    assert (COMMANDS[path].help or "").strip()


def test_every_command_that_shows_something_speaks_json() -> None:
    without = {path for path, command in COMMANDS.items() if not any(p.name == "json" for p in command.params)}
    assert without == SILENT


def test_every_option_is_explained() -> None:
    silent = [
        f"{path} {parameter.name}"
        for path, command in COMMANDS.items()
        for parameter in command.params
        if not parameter.help and parameter.name != "help"
    ]
    assert silent == []
