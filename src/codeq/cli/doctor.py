"""`codeq doctor`: checks this machine, its disk, a server and a Redis."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codeq.cli.connect import ProfileName, TokenFile, TokenText, Url, local, resolve_endpoint
from codeq.cli.errors import ExitCode
from codeq.cli.output import Output, count, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from codeq.cli.machine_checks import CheckResult

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


def add_to(app: typer.Typer) -> None:
    local(app, "doctor", example=_EXAMPLES)(doctor)


def doctor(
    out: Output,
    data: Annotated[Path, typer.Option(help="Data directory; need not exist yet.")] = Path("./data"),
    repair: Annotated[
        bool, typer.Option("--repair", help="Put tasks that damage has hidden back into their queues, first.")
    ] = False,
    redis: Annotated[str | None, typer.Option(metavar="URL", help="Redis to check for use as a store.")] = None,
    url: Url = None,
    token: TokenText = None,
    token_file: TokenFile = None,
    profile: ProfileName = None,
) -> None:
    """Check this machine, and the server if an option, a variable or a profile names one.

    With --repair, the data directory is compared task by task with its indexes; no process may have it open.
    Exits with 1 if there is a problem, with 0 if there are only warnings.
    """
    from codeq.cli import machine_checks, redis_checks, server_checks

    def checks() -> "Iterator[CheckResult]":
        if repair:
            yield machine_checks.repair(data)
        yield from machine_checks.machine(data)
        endpoint = resolve_endpoint(url=url, token=token, token_file=token_file, profile=profile)
        if endpoint.is_explicit:
            yield from server_checks.server(endpoint)
        if redis is not None:
            yield from redis_checks.redis(redis)

    results: list[CheckResult] = []
    for result in checks():
        results.append(result)
        if not out.is_json:
            _show(out, result)
    states = [result.state for result in results]
    problems, warnings = states.count("problem"), states.count("warning")
    fields = {"checks": results, "problems": problems, "warnings": warnings}
    out.answer(fields, f"\n{count(problems, 'problem')}, {count(warnings, 'warning')}")
    if problems:
        raise typer.Exit(ExitCode.REFUSED)


def _show(out: Output, result: "CheckResult") -> None:
    from rich.text import Text

    sign, style = MARKS[result.state]
    line = Text.assemble((sign, style), f" {result.state:<8} {result.name:<18} {printable(result.detail)}")
    out.show(line)
    if result.advice:
        out.show(Text(f"             → {printable(result.advice)}", style="dim" if result.state == "ok" else ""))


_EXAMPLES = """
codeq doctor --data /var/lib/codeq
codeq doctor --data /var/lib/codeq --repair
codeq doctor --url https://codeq.example.org --token-file token --redis redis://127.0.0.1:6379
"""
