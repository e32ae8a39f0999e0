"""The files that the style rules apply to."""

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

import codeq

PROJECT = Path(__file__).parents[2]
PACKAGE = Path(codeq.__file__).parent


@dataclass(frozen=True)
class Source:
    """One Python file of the package: its name below `codeq/`, its text and its parsed form."""

    name: str
    text: str
    tree: ast.Module

    @property
    def is_core(self) -> bool:
        return self.name.startswith(("domain/", "store/", "usecases/"))


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 30
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in paths}
    return [Source(name, text, ast.parse(text)) for name, text in texts.items()]


@pytest.fixture(scope="session")
def project_files() -> list[Path]:
    """Returns everything that people wrote: code, documents and build files, but no generated files."""
    kinds = {".py", ".md", ".toml", ".lua", ".lock", ".yaml", ".yml", ".html", ".js", ".css", ""}
    tops = [PROJECT / ".ci", *(path for path in PROJECT.iterdir() if not path.name.startswith("."))]
    return [
        path
        for top in tops
        for path in [top, *top.rglob("*")]
        if path.is_file() and path.suffix in kinds and not {"__pycache__", "results", "data"} & set(path.parts)
    ]
