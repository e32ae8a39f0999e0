"""How the command line speaks to its user: one line for what they can mend, and the exit code that goes with it."""

import sys
from types import TracebackType

import typer

from codeq.domain.errors import CodeqError


class PlainErrors:
    """Turns an error of codeQ into one line on standard error and exit code 1."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(fault, CodeqError):
            print(f"codeq: {fault}", file=sys.stderr)
            raise typer.Exit(1)
