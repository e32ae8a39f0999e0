"""The page about the command line says what the command line does, and every command explains itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calling import Cli
from typer.main import get_command

from codeq.cli import reference
from codeq.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
SILENT = {"serve", "token", "config check", "config reference"}
"""Commands without `--json`: they run a server, or print what is one word or a page already."""


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


def test_the_page_is_what_the_command_line_says_of_itself() -> None:
    assert PAGE.read_text() == reference.page(app), "run: codeq docs-cli > docs/reference/cli.md"


def test_the_page_does_not_depend_on_the_terminal(cli: Cli) -> None:
    assert cli.ok("docs-cli", env={"COLUMNS": "40"}).out == PAGE.read_text()


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
