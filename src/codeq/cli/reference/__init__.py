"""Pages of the documentation that are made of the code, so that they cannot differ from it: `codeq reference sdk`."""

from importlib import import_module

import typer

reference_app = typer.Typer(no_args_is_help=True, help="Print a page of the reference, as Markdown.")

PAGES = ("errors", "http", "sdk")
"""Each is a file of this folder with a function `page`, and a file of `docs/reference`."""


def page(name: str) -> str:
    made: str = import_module(f"codeq.cli.pages.{name}").page()
    return made


@reference_app.command("errors")
def print_errors() -> None:
    """Every error: its code, its class, its status, what to do."""
    print(page("errors"), end="")


@reference_app.command("http")
def print_http() -> None:
    """Every route: who may call it, what it takes and gives."""
    print(page("http"), end="")


@reference_app.command("sdk")
def print_sdk() -> None:
    """Every public name of the package."""
    print(page("sdk"), end="")
