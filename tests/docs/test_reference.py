"""The pages of docs/reference are what the code generates, and leave out nothing public."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import codeq
from codeq import errors as public
from codeq.cli import reference
from codeq.cli.main import app
from codeq.cli.reference import errors, sdk

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / f"{name}.md").read_text() == reference.page(name), "run: make reference"


@pytest.mark.parametrize("command", [["reference", "sdk"], ["config", "reference"], ["reference", "cli"]])
def test_a_command_prints_the_page_whatever_the_terminal(command: list[str]) -> None:
    done = CliRunner().invoke(app, command, env={"COLUMNS": "40"})
    name = "settings" if command[0] == "config" else command[1]
    assert (done.exit_code, done.stdout) == (0, reference.page(name))


def test_all_pages_are_written_at_once_and_are_the_ones_of_the_folder(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["reference", "--all", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert {page.name: page.read_text() for page in tmp_path.iterdir()} == {
        page.name: page.read_text() for page in FOLDER.glob("*.md")
    }


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["sdk", "--all", "."]])
def test_no_page_or_an_unknown_one_is_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["reference", *arguments]).exit_code == 2


def test_every_error_has_a_line_that_says_what_to_do() -> None:
    assert errors.kinds() <= set(errors.ADVICE)
    assert {kind.__name__ for kind in errors.ADVICE} >= set(public.__all__) - {"CodeqError", "Refused"}


def test_every_public_name_has_an_entry() -> None:
    assert set(codeq.__all__) == (sdk.names() | sdk.ELSEWHERE) & set(codeq.__all__)
