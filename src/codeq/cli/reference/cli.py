"""The page of the documentation that lists every command, made from the commands themselves."""

from typing import Any

import typer

from codeq.cli.connect import PANEL
from codeq.cli.errors import MEANINGS

INTRODUCTION = """# The command line

This page is made by `codeq docs-cli`. `codeq COMMAND --help` says the same, and `codeq --install-completion` teaches
your shell to complete commands and options.

## Which server

Commands that speak to a server take these options:

{options}

Flags win over the environment, the environment over the profile in use (`codeq profile use`), and without any of these
it is `http://127.0.0.1:8080`. `--profile` is a flag: it wins over `CODEQ_URL` and `CODEQ_TOKEN`. A profile's token is
sent to the profile's own address only. Without any token, a server on this machine is offered `dev-token`, which
`codeq serve --dev` accepts. Profiles are kept in `~/.config/codeq/config.toml` (below `XDG_CONFIG_HOME` if that is
set), readable by you alone; no command prints a token.

## Answers

Tables are for people and may change. With `--json` a command answers with one JSON document, and a stream (`top`,
`events tail`, `task list --all`) with one per line; names are camelCase as on the wire and stay. What goes wrong is
told on standard error, with `--json` as `{{"error": ..., "code": ..., "exitCode": ...}}`.

Durations are seconds, or have a unit: `500ms`, `90s`, `10m`, `2h`, `7d`.

## Exit codes

| code | meaning |
|---|---|
{codes}

## Commands
"""


def page(app: typer.Typer) -> str:
    from typer.main import get_command

    root = get_command(app)
    commands = list(_walk(root, "codeq"))
    found = {name: said for _, command in commands for name, said in _options(command, PANEL)}
    codes = "\n".join(f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items())
    parts = [INTRODUCTION.format(options=_table("option", found.items()), codes=codes)]
    parts += [_section(path, command) for path, command in commands]
    return "\n".join(parts)


def _walk(group: Any, path: str) -> Any:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _walk(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _section(path: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    usage = " ".join([path, *(_metavar(argument) for argument in arguments), "[OPTIONS]"])
    parts = [f"### {path}\n", f"`{usage}`\n", _paragraphs(command.help)]
    if arguments:
        parts.append(_table("argument", [(f"`{_metavar(each)}`", each.help or "") for each in arguments]) + "\n")
    options = list(_options(command, None))
    if options:
        parts.append(_table("option", options) + "\n")
    if any(parameter.name == "profile" for parameter in command.params):
        parts.append("And the options that choose [the server](#which-server).\n")
    if command.epilog:
        lines = [line.strip().replace("\\[", "[") for line in command.epilog.split("\n\n")[1:]]
        parts.append("```sh\n" + "\n".join(lines) + "\n```\n")
    return "\n".join(parts)


def _options(command: Any, panel: str | None) -> Any:
    for option in command.params:
        if option.param_type_name != "option" or option.hidden or getattr(option, "rich_help_panel", None) != panel:
            continue
        if option.name in ("help", "install_completion", "show_completion"):
            continue
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        said = option.help or ""
        if option.required:
            said += " Required."
        elif option.default not in (None, False, "", (), []) and not option.is_bool_flag:
            said += f" Default: {option.default}."
        yield names, said.strip()


def _metavar(argument: Any) -> str:
    shown = argument.metavar or argument.name.upper()
    if argument.nargs == -1:
        return f"[{shown}]..."
    return shown if argument.required or shown.startswith("[") else f"[{shown}]"


def _table(what: str, rows: Any) -> str:
    lines = [f"| {name} | {said.replace('|', '/')} |" for name, said in rows]
    return "\n".join([f"| {what} | meaning |", "|---|---|", *lines])


def _paragraphs(text: str | None) -> str:
    return "\n".join(line.strip() for line in (text or "").strip().splitlines()) + "\n"
