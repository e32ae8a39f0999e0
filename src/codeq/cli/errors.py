"""How does a command end? Prints one line per error and chooses the exit code."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import typer
from typer.core import TyperGroup

import codeq
from codeq.distribution import missing_package
from codeq.domain.errors import CodeqError

_TyperUsageError: Any = typer.BadParameter.__base__
"""What Typer raises for a wrong command line; its module differs between versions of Typer."""


class ExitCode(IntEnum):
    OK = 0
    REFUSED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    NOT_ALLOWED = 5
    TIMEOUT = 6
    INTERRUPTED = 130


EXIT_CODES = {
    ExitCode.OK: "success",
    ExitCode.REFUSED: "refused, or failed",
    ExitCode.USAGE: "wrong usage",
    ExitCode.NOT_FOUND: "no such task, profile or file",
    ExitCode.UNREACHABLE: "the server cannot be reached, or is not ready",
    ExitCode.NOT_ALLOWED: "the token is missing, not accepted, or does not allow this",
    ExitCode.TIMEOUT: "timeout",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
}

_BY_ERROR_CODE = {
    "usage": ExitCode.USAGE,
    "not-found": ExitCode.NOT_FOUND,
    "unreachable": ExitCode.UNREACHABLE,
    "unavailable": ExitCode.UNREACHABLE,
    "unauthenticated": ExitCode.NOT_ALLOWED,
    "forbidden": ExitCode.NOT_ALLOWED,
    "timeout": ExitCode.TIMEOUT,
}
"""Every other error is REFUSED, also a lost lease: there the token is fine and the task belongs to another worker."""

_ADVICE = {
    "unreachable": "start a server with `codeq serve --dev`, or name one: --url, CODEQ_URL or a profile",
    "unauthenticated": "give a token: --token-file, CODEQ_TOKEN or a profile (codeq profile add --help)",
}


class LocalNotFound(CodeqError):
    """Something on this machine does not exist: a profile, a directory, a package."""

    code = "not-found"


class UsageError(CodeqError):
    """The options contradict each other or cannot be read. Raised before anything is changed."""

    code = "usage"


@contextlib.contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Says which extra to install if an import inside the block finds that a package is missing."""
    try:
        yield
    except ModuleNotFoundError as fault:
        if fault.name is not None and fault.name.partition(".")[0] == "codeq":
            raise
        raise LocalNotFound(missing_package(what, fault.name, extra)) from None


def exit_code_of(fault: CodeqError) -> ExitCode:
    return _BY_ERROR_CODE.get(fault.code, ExitCode.REFUSED)


def print_error(message: str, *, code: str = "", exit_code: int = ExitCode.REFUSED, as_json: bool = False) -> None:
    """Prints one line to standard error; as JSON, an object in the shape of the server's errors."""
    if as_json:
        print(json.dumps({"error": message, "code": code, "exitCode": int(exit_code)}), file=sys.stderr)
        return
    print(f"codeq: {message}", file=sys.stderr)
    if code in _ADVICE:
        print(f"  {_ADVICE[code]}", file=sys.stderr)


class RootGroup(TyperGroup):
    """The root command. Errors of all commands are printed and turned into exit codes here, and only here."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by who started this process, as by `>&-`
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        if arguments == ["--version"]:  # answered before a hundred options are built
            _print_version()
            sys.exit(ExitCode.OK)
        self.is_json = "--json" in arguments
        if not self.is_json or not standalone_mode:
            return super().main(arguments, standalone_mode=standalone_mode, **extra)
        try:
            sys.exit(super().main(arguments, standalone_mode=False, **extra))
        except _TyperUsageError as fault:
            print_error(fault.format_message(), code="usage", exit_code=ExitCode.USAGE, as_json=True)
            sys.exit(ExitCode.USAGE)

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except CodeqError as fault:
            code = exit_code_of(fault)
            print_error(str(fault), code=fault.code, exit_code=code, as_json=self.is_json)
            raise typer.Exit(code) from None
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(ExitCode.OK) from None
        except OSError as fault:
            message = f"{fault.filename}: {fault.strerror}" if fault.filename else str(fault)
            code = ExitCode.NOT_FOUND if isinstance(fault, FileNotFoundError) else ExitCode.REFUSED
            print_error(message, code="os", exit_code=code, as_json=self.is_json)
            raise typer.Exit(code) from None


def _print_version() -> None:
    try:
        print(f"codeq {codeq.__version__}", flush=True)
    except BrokenPipeError:
        _discard_output()


def _discard_output() -> None:
    """Redirects standard output to nowhere: its reader is gone, and the flush at exit must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
