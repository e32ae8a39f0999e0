"""`codeq reference`: generates the pages of docs/reference from the code, so that they cannot differ from it."""

from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer

from codeq.cli.errors import UsageError, needs_extra

PAGES = {
    "cli": "codeq.cli.reference.cli:page",
    "errors": "codeq.cli.reference.errors:page",
    "http": "codeq.cli.reference.http:page",
    "lake": "codeq.pipeline.lake.tables:reference",
    "sdk": "codeq.cli.reference.sdk:page",
    "settings": "codeq.server.read_settings:reference",
}
"""By page, the function that returns its Markdown. Each is a file of docs/reference."""


def add_to(app: typer.Typer) -> None:
    app.command("reference", hidden=True)(reference)


def page(name: str) -> str:
    with needs_extra("server", "this page"):
        make = resolve_name(PAGES[name])
        made: str = make()
    return made


def reference(
    name: Annotated[str, typer.Argument(metavar="PAGE", help=f"One of {', '.join(PAGES)}.")] = "",
    all: Annotated[Path | None, typer.Option("--all", metavar="DIR", help="Write all pages into a directory.")] = None,
) -> None:
    """Print a page of the reference as Markdown, or write all of them."""
    if all is not None and not name:
        for each in PAGES:
            (all / f"{each}.md").write_text(page(each))
    elif all is None and name in PAGES:
        print(page(name), end="")
    else:
        raise UsageError(f"give one PAGE of {', '.join(PAGES)}; or --all DIR")
