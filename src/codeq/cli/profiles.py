"""`codeq profile`: the servers this user knows by name."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from codeq.cli import profile_file
from codeq.cli.connect import local
from codeq.cli.errors import Misuse
from codeq.cli.output import Output, table
from codeq.cli.profile_file import Profile
from codeq.domain.errors import InvalidRequest

app = typer.Typer(no_args_is_help=True, help="Servers known by name: --profile NAME, or CODEQ_PROFILE.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.")]
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@local(app, "add", example="codeq profile add prod --url https://codeq.example.org --token-file ~/.codeq-prod")
def add(
    out: Output,
    name: Name,
    url: Annotated[str, typer.Option(help="Address of the server.")],
    token: Annotated[str | None, typer.Option(help="The token, to be kept in the file of profiles.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="The file that holds the token.")] = None,
    token_env: Annotated[str | None, typer.Option(help="The variable that holds the token.", metavar="NAME")] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on, if nothing else is said.")] = False,
) -> None:
    """Add a profile, or replace it. The first one is used from now on."""
    from codeq.sdk.transport import address_of

    if not _NAME.fullmatch(name):
        raise Misuse(f"a name has 1 to 64 letters, digits and _.-; not {name!r}")
    if sum(value is not None for value in (token, token_file, token_env)) > 1:
        raise Misuse("a profile has one token: --token, --token-file or --token-env")
    try:
        address_of(url)
    except InvalidRequest as fault:
        raise Misuse(str(fault)) from None
    kept_file = str(token_file.expanduser().absolute()) if token_file else None
    file, known = _known()
    added = {**known.profiles, name: Profile(url=url, token=token, token_file=kept_file, token_env=token_env)}
    default = name if use or not known.default else known.default
    profile_file.save(file, profile_file.Profiles(default=default, profiles=added))
    if out.is_json:
        out.document(_fields(name, added[name], default))
    else:
        out.say(f"{name} is kept in {file}" + (", and used from now on" if default == name else ""))


@local(app, "list", example="codeq profile list")
def list_(out: Output) -> None:
    """List the profiles; the one in use has a star."""
    _, known = _known()
    named = sorted(known.profiles.items())
    if out.is_json:
        out.document({"profiles": [_fields(name, profile, known.default) for name, profile in named]})
    elif not named:
        out.say("there are no profiles; codeq profile add NAME --url URL")
    else:
        rows = [("*" if name == known.default else "", name, p.url, p.token_from) for name, p in named]
        out.rows(("", "name", "url", "token"), rows)


@local(app, "show", example="codeq profile show prod")
def show(
    out: Output,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The one in use, if not said.")] = None,
) -> None:
    """Show a profile, but not its token."""
    _, known = _known()
    chosen = name or os.environ.get("CODEQ_PROFILE") or known.default
    if not chosen:
        raise Misuse("no profile is in use; say which")
    profile = known.named(chosen)
    if out.is_json:
        out.document(_fields(chosen, profile, known.default))
    else:
        out.show(table(("", ""), (("name", chosen), ("url", profile.url), ("token", profile.token_from))))


@local(app, "use", example="codeq profile use prod")
def use(out: Output, name: Name) -> None:
    """Use a profile from now on, where no flag and no variable says otherwise."""
    file, known = _known()
    profile = known.named(name)
    profile_file.save(file, msgspec.structs.replace(known, default=name))
    if out.is_json:
        out.document(_fields(name, profile, name))
    else:
        out.say(f"{name} ({profile.url}) is used from now on")


@local(app, "remove", example="codeq profile remove prod")
def remove(out: Output, name: Name) -> None:
    """Forget a profile, with the token if it is kept in it."""
    file, known = _known()
    profile = known.named(name)
    left = {other: kept for other, kept in known.profiles.items() if other != name}
    default = None if known.default == name else known.default
    profile_file.save(file, profile_file.Profiles(default=default, profiles=left))
    if out.is_json:
        out.document(_fields(name, profile, default))
    else:
        out.say(f"{name} is forgotten")


def _known() -> tuple[Path, profile_file.Profiles]:
    file = profile_file.location()
    return file, profile_file.load(file)


def _fields(name: str, profile: Profile, default: str | None) -> dict[str, Any]:
    return {"name": name, "url": profile.url, "token": profile.token_from, "default": name == default}
