"""`codeq doctor`: is this machine, this disk and this server fit for the job? In plain words."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codeq.cli.connect import ProfileName, TokenFile, TokenText, Url, choose, local
from codeq.cli.errors import Code
from codeq.cli.output import Output, clean

if TYPE_CHECKING:
    from codeq.cli.machine_checks import Finding

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


def add_to(app: typer.Typer) -> None:
    local(app, "doctor", example=_EXAMPLES)(doctor)


def doctor(
    out: Output,
    data: Annotated[Path, typer.Option(help="The data directory, or where it is to be.")] = Path("./data"),
    redis: Annotated[str | None, typer.Option(metavar="URL", help="A Redis that is to hold the queues.")] = None,
    url: Url = None,
    token: TokenText = None,
    token_file: TokenFile = None,
    profile: ProfileName = None,
) -> None:
    """Check this machine, and a server if one is named by an option, a variable or a profile.

    Ends with 0 unless there is a problem; warnings are for you to weigh.
    """
    from codeq.cli import machine_checks, server_checks

    findings: list[Finding] = []

    def tell(finding: "Finding") -> None:
        findings.append(finding)
        if not out.is_json:
            _show(out, finding)

    for finding in machine_checks.machine(data):
        tell(finding)
    at = choose(url=url, token=token, token_file=token_file, profile=profile)
    if at.is_named:
        for finding in server_checks.server(at):
            tell(finding)
    if redis is not None:
        for finding in server_checks.redis(redis):
            tell(finding)
    states = [finding.state for finding in findings]
    problems, warnings = states.count("problem"), states.count("warning")
    if out.is_json:
        out.document({"checks": findings, "problems": problems, "warnings": warnings})
    else:
        out.say(f"\n{problems or 'no'} problem{'' if problems == 1 else 's'}, {warnings or 'no'} "
                f"warning{'' if warnings == 1 else 's'}")  # fmt: skip
    if problems:
        raise typer.Exit(Code.REFUSED)


def _show(out: Output, finding: "Finding") -> None:
    from rich.text import Text

    sign, style = MARKS[finding.state]
    line = Text.assemble((sign, style), f" {finding.state:<8} {finding.name:<18} {clean(finding.detail)}")
    out.show(line)
    if finding.advice:
        out.show(Text(f"             → {clean(finding.advice)}", style="dim" if finding.state == "ok" else ""))


_EXAMPLES = """
codeq doctor --data /var/lib/codeq
codeq doctor --url https://codeq.example.org --token-file token --redis redis://127.0.0.1:6379
"""
