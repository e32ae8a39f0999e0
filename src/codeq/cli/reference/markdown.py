"""Docstrings and tables as Markdown."""

import ast
import inspect
import re
from collections.abc import Sequence
from typing import Any


def paragraphs(thing: Any) -> str:
    """The docstring with one line per paragraph; indented paragraphs stay as they are."""
    text = inspect.cleandoc(thing.__doc__ or "")
    return "\n\n".join(
        part if part.startswith(" ") else " ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part
    )


def field_notes(kind: type) -> dict[str, str]:
    """By field of a struct and its parents, the string below the field."""
    notes: dict[str, str] = {}
    for part in reversed(kind.__mro__):
        if part.__module__.startswith("codeq."):
            notes |= _notes(part)
    return notes


def _notes(kind: type) -> dict[str, str]:
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body[0]
    if not isinstance(tree, ast.ClassDef):
        return {}
    notes = {}
    for line, below in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            notes[line.target.id] = " ".join(str(below.value.value).split())
    return notes


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table(*columns: str, rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])
