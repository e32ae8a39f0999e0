"""Type checkers see the types of tasks from the declaration to the result, and report what does not fit."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("typed_program.txt")
SOURCE = Path(__file__).parents[2] / "src"
_MYPY = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--no-pretty"]
_PYRIGHT = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
_MODULE = re.compile(r"\b(?:\w+\.)+(?=\w)")


def checked(command: list[str], folder: Path) -> list[str]:
    """What the checker says of the program, in a folder of its own, as in a user's project."""
    (folder / "program.py").write_text(PROGRAM.read_text())
    (folder / "pyrightconfig.json").write_text(
        f'{{"typeCheckingMode": "strict", "extraPaths": ["{SOURCE}"], "reportUnusedVariable": false, "include": ["."]}}'
    )
    (folder / "mypy.ini").write_text(f"[mypy]\nmypy_path = {SOURCE}\ncache_dir = {folder}/cache\n")
    done = subprocess.run(
        [*command, "program.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )
    return [re.sub(r"^.*program\.py:", "", line).strip() for line in done.stdout.splitlines() if "program.py:" in line]


def marked(kind: str) -> dict[int, str]:
    lines = enumerate(PROGRAM.read_text().splitlines(), 1)
    return {number: text.partition(f"# {kind}")[2].strip(": ") for number, text in lines if f"  # {kind}" in text}


@pytest.mark.slow
@pytest.mark.parametrize("command", [_MYPY, _PYRIGHT], ids=["mypy", "pyright"])
def test_a_checker_infers_every_type_and_reports_every_mistake(command: list[str], tmp_path: Path) -> None:
    said = checked(command, tmp_path)
    inferred = {}
    for line in said:
        found = re.search(r'^(\d+).*(?:Revealed type is|is) "(.+)"$', line)
        if found and ("Revealed" in line or "Type of" in line):
            inferred[int(found[1])] = _MODULE.sub("", found[2])
    assert inferred == marked("expect")
    reported = {int(line.partition(":")[0]) for line in said if re.search(r"\berror\b", line)}
    assert reported == set(marked("error"))
