"""`codeq profile`: stores addresses and tokens of servers under names."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from codeq.cli import profile_file
from codeq.cli.connect import local
from codeq.cli.errors import UsageError
from codeq.cli.output import Output, table
from codeq.cli.profile_file import Profile
from codeq.domain.errors import InvalidRequest

app = typer.Typer(no_args_is_help=True, help="Store servers under names, for --profile NAME and CODEQ_PROFILE.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.")]
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@local(app, "add", example="codeq profile add prod --url https://codeq.example.org --token-file ~/.codeq-prod")
def add(
    out: Output,
    name: Name,
    url: Annotated[str, typer.Option(help="Address of the server.")],
    token: Annotated[str | None, typer.Option(help="Token, to be stored in the file of profiles.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File that contains the token.")] = None,
    token_env: Annotated[str | None, typer.Option(help="Variable that contains the token.", metavar="NAME")] = None,
    use: Annotated[bool, typer.Option("--use", help="Make it the default.")] = False,
) -> None:
    """Add or replace a profile. The first one becomes the default."""
    from codeq.sdk.transport import address_of

    if not _NAME.fullmatch(name):
        raise UsageError(f"a name has 1 to 64 letters, digits and _.-; not {name!r}")
    if sum(value is not None for value in (token, token_file, token_env)) > 1:
        raise UsageError("a profile has one token: --token, --token-file or --token-env")
    try:
        address_of(url)
    except InvalidRequest as fault:
        raise UsageError(str(fault)) from None
    absolute_file = str(token_file.expanduser().absolute()) if token_file else None
    file, stored = _stored()
    added = {**stored.profiles, name: Profile(url=url, token=token, token_file=absolute_file, token_env=token_env)}
    default = name if use or not stored.default else stored.default
    profile_file.save(file, profile_file.Profiles(default=default, profiles=added))
    out.answer(
        _fields(name, added[name], default),
        f"{name} is stored in {file}" + (", and is the default" if default == name else ""),
    )


@local(app, "list", example="codeq profile list")
def list_(out: Output) -> None:
    """List the profiles; a star marks the default."""
    _, stored = _stored()
    named = sorted(stored.profiles.items())
    if out.is_json:
        out.document({"profiles": [_fields(name, profile, stored.default) for name, profile in named]})
    elif not named:
        out.say("there are no profiles; add one with codeq profile add NAME --url URL")
    else:
        rows = [("*" if name == stored.default else "", name, p.url, p.token_from) for name, p in named]
        out.rows(("", "name", "url", "token"), rows)


@local(app, "show", example="codeq profile show prod")
def show(
    out: Output,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Default: the profile in use.")] = None,
) -> None:
    """Show a profile, without its token."""
    _, stored = _stored()
    selected = name or os.environ.get("CODEQ_PROFILE") or stored.default
    if not selected:
        raise UsageError("no profile is in use; give a name")
    profile = stored.named(selected)
    if out.is_json:
        out.document(_fields(selected, profile, stored.default))
    else:
        out.show(table(("", ""), (("name", selected), ("url", profile.url), ("token", profile.token_from))))


@local(app, "use", example="codeq profile use prod")
def use(out: Output, name: Name) -> None:
    """Make a profile the default, for commands without other options or variables."""
    file, stored = _stored()
    profile = stored.named(name)
    profile_file.save(file, msgspec.structs.replace(stored, default=name))
    out.answer(_fields(name, profile, name), f"{name} ({profile.url}) is the default now")


@local(app, "remove", example="codeq profile remove prod")
def remove(out: Output, name: Name) -> None:
    """Delete a profile, with the token if it is stored in it."""
    file, stored = _stored()
    profile = stored.named(name)
    left = {other: value for other, value in stored.profiles.items() if other != name}
    default = None if stored.default == name else stored.default
    profile_file.save(file, profile_file.Profiles(default=default, profiles=left))
    out.answer(_fields(name, profile, default), f"{name} is deleted")


def _stored() -> tuple[Path, profile_file.Profiles]:
    file = profile_file.location()
    return file, profile_file.load(file)


def _fields(name: str, profile: Profile, default: str | None) -> dict[str, Any]:
    return {"name": name, "url": profile.url, "token": profile.token_from, "default": name == default}
