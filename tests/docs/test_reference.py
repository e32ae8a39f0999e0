"""The pages of the reference are what the code says, and leave nothing of it out."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import codeq
from codeq import errors as public
from codeq.cli import pages
from codeq.cli.pages import errors, sdk
from codeq.server import settings

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    made = pages.page(name)
    assert (FOLDER / f"{name}.md").read_text() == made, f"run: codeq reference {name} > docs/reference/{name}.md"


def test_the_page_of_settings_is_what_the_code_says() -> None:
    assert (FOLDER / "settings.md").read_text() == settings.reference()


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_command_prints_the_page(name: str) -> None:
    told = CliRunner().invoke(pages.reference_app, [name])
    assert told.exit_code == 0
    assert told.stdout == pages.page(name)


def test_every_error_has_a_line_that_says_what_to_do() -> None:
    assert errors.kinds() <= set(errors.ADVICE)
    assert {kind.__name__ for kind in errors.ADVICE} >= set(public.__all__) - {"CodeqError", "Refused"}


def test_every_public_name_has_an_entry() -> None:
    assert set(codeq.__all__) == (sdk.names() | sdk.ELSEWHERE) & set(codeq.__all__)
