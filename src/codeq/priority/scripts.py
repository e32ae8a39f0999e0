"""The Lua scripts, one per operation, each run whole or not at all. Their contracts are at the top of the files."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: bytes
    sha: str


@cache
def load(name: str) -> Script:
    """Returns the script of `lua/<name>.lua`, behind what all of them share."""
    folder = files("codeq.priority") / "lua"
    source = (folder / "_record.lua").read_bytes() + b"\n" + (folder / f"{name}.lua").read_bytes()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())
