"""The file with the profiles: which servers this user knows, and where their tokens are kept."""

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from codeq.cli.errors import Missing
from codeq.domain.errors import InvalidRequest

_HEADING = "# Written by `codeq profile`; comments are not kept. Tokens in here are secrets.\n"


class Profile(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A server. At most one of the last three says where the token is."""

    url: str
    token: str | None = None
    token_file: str | None = None
    token_env: str | None = None

    @property
    def token_from(self) -> str:
        """Where the token comes from, without telling it."""
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
            raise Missing(f"there is no profile {name!r}; there is: {known}")
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


def save(file: Path, known: Profiles) -> None:
    """Replace the file as a whole, readable by its owner alone from the first byte on."""
    text = _written(known)
    if msgspec.convert(tomllib.loads(text), Profiles) != known:
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


def _written(known: Profiles) -> str:
    lines = [_HEADING]
    if known.default:
        lines.append(f"default = {_quoted(known.default)}\n")
    for name, profile in sorted(known.profiles.items()):
        fields: dict[str, Any] = msgspec.to_builtins(profile)
        lines.append(f"\n[profiles.{_quoted(name)}]\n")
        lines += [f"{field} = {_quoted(value)}\n" for field, value in fields.items()]
    return "".join(lines)


def _quoted(text: str) -> str:
    """A TOML string. What JSON escapes, TOML reads the same way, but for one control sign that JSON leaves bare."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
