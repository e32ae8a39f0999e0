"""How the command line ends: one line for what the user can mend, and the exit code that goes with it."""

import json
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import typer
from typer.core import TyperGroup

import codeq
from codeq.domain.errors import CodeqError

_Misused: Any = typer.BadParameter.__base__
"""What Typer raises for a command line that cannot be read; it lives elsewhere in every version of Typer."""


class Code(IntEnum):
    OK = 0
    REFUSED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    NOT_ALLOWED = 5
    TIMEOUT = 6
    INTERRUPTED = 130


MEANINGS = {
    Code.OK: "done",
    Code.REFUSED: "refused, or failed",
    Code.USAGE: "the command line cannot be understood",
    Code.NOT_FOUND: "there is no such task, profile or file",
    Code.UNREACHABLE: "the server cannot be reached, or is not ready",
    Code.NOT_ALLOWED: "the token is missing, not accepted, or does not allow this",
    Code.TIMEOUT: "the time was over first",
    Code.INTERRUPTED: "interrupted (Ctrl-C)",
}

_CODES = {
    "usage": Code.USAGE,
    "not-found": Code.NOT_FOUND,
    "unreachable": Code.UNREACHABLE,
    "unavailable": Code.UNREACHABLE,
    "unauthenticated": Code.NOT_ALLOWED,
    "forbidden": Code.NOT_ALLOWED,
    "timeout": Code.TIMEOUT,
}
"""By the code of the error; every other error is REFUSED. A lost lease is: the token is fine, the task is not ours."""

_ADVICE = {
    "unreachable": "start a server with `codeq serve --dev`, or say where it is: --url, CODEQ_URL or a profile",
    "unauthenticated": "say who you are: --token-file, CODEQ_TOKEN or a profile (codeq profile add --help)",
}


class Missing(CodeqError):
    """Something on this machine that is not there."""

    code = "not-found"


class Misuse(CodeqError):
    """What the user asked for makes no sense, which is seen before anything is done."""

    code = "usage"


def code_of(fault: CodeqError) -> Code:
    return _CODES.get(fault.code, Code.REFUSED)


def complain(message: str, *, code: str = "", exit_code: int = Code.REFUSED, as_json: bool = False) -> None:
    """One line on standard error; with `--json`, one JSON document in the shape of the server's refusals."""
    if as_json:
        print(json.dumps({"error": message, "code": code, "exitCode": int(exit_code)}), file=sys.stderr)
        return
    print(f"codeq: {message}", file=sys.stderr)
    if code in _ADVICE:
        print(f"  {_ADVICE[code]}", file=sys.stderr)


class Commands(TyperGroup):
    """The whole command line. What goes wrong in any command is said and given its exit code here, and only here."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        if given == ["--version"]:  # known without building a hundred options first
            _say_version()
            sys.exit(Code.OK)
        self.is_json = "--json" in given
        if not self.is_json or not standalone_mode:
            return super().main(given, standalone_mode=standalone_mode, **extra)
        try:
            sys.exit(super().main(given, standalone_mode=False, **extra))
        except _Misused as fault:
            complain(fault.format_message(), code="usage", exit_code=Code.USAGE, as_json=True)
            sys.exit(Code.USAGE)

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except CodeqError as fault:
            code = code_of(fault)
            complain(str(fault), code=fault.code, exit_code=code, as_json=self.is_json)
            raise typer.Exit(code) from None
        except BrokenPipeError:
            _forget_output()
            raise typer.Exit(Code.OK) from None
        except OSError as fault:
            said = f"{fault.filename}: {fault.strerror}" if fault.filename else str(fault)
            code = Code.NOT_FOUND if isinstance(fault, FileNotFoundError) else Code.REFUSED
            complain(said, code="os", exit_code=code, as_json=self.is_json)
            raise typer.Exit(code) from None


def _say_version() -> None:
    try:
        print(f"codeq {codeq.__version__}", flush=True)
    except BrokenPipeError:
        _forget_output()


def _forget_output() -> None:
    """Whoever read our output has seen enough. What is still buffered must not complain at the very end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
