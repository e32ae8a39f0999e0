"""Reads and writes the file of profiles: addresses of servers, and where their tokens are."""

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from codeq.cli.errors import LocalNotFound
from codeq.domain.errors import InvalidRequest

_HEADING = "# Written by `codeq profile`; comments are not kept. Tokens in here are secrets.\n"


class Profile(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A server's address, and at most one of a token, a file and a variable that contain it."""

    url: str
    token: str | None = None
    token_file: str | None = None
    token_env: str | None = None

    @property
    def token_from(self) -> str:
        """Where the token comes from, without the token itself."""
        if self.token:
            return "kept in the profile"
        if self.token_file:
            return f"file {self.token_file}"
        return f"variable {self.token_env}" if self.token_env else "none"


class Profiles(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    default: str | None = None
    profiles: dict[str, Profile] = {}

    def named(self, name: str) -> Profile:
        if name not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise LocalNotFound(f"there is no profile {name!r}; known profiles: {known}")
        return self.profiles[name]


def location(environ: Mapping[str, str] = os.environ) -> Path:
    home = environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "codeq" / "config.toml"


def load(file: Path) -> Profiles:
    try:
        return msgspec.convert(tomllib.loads(file.read_text()), Profiles)
    except FileNotFoundError:
        return Profiles()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as fault:
        raise InvalidRequest(f"{file} cannot be read: {fault}") from None


def save(file: Path, stored: Profiles) -> None:
    """Replaces the file atomically. It is readable by its owner only, from its creation on."""
    text = _as_toml(stored)
    if msgspec.convert(tomllib.loads(text), Profiles) != stored:
        raise InvalidRequest("the profiles cannot be written as TOML")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".config-")  # 0600 by itself
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise


def _as_toml(stored: Profiles) -> str:
    lines = [_HEADING]
    if stored.default:
        lines.append(f"default = {_quoted(stored.default)}\n")
    for name, profile in sorted(stored.profiles.items()):
        fields: dict[str, Any] = msgspec.to_builtins(profile)
        lines.append(f"\n[profiles.{_quoted(name)}]\n")
        lines += [f"{field} = {_quoted(value)}\n" for field, value in fields.items()]
    return "".join(lines)


def _quoted(text: str) -> str:
    """A TOML string. TOML reads the escapes of JSON, and needs one more control character escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
