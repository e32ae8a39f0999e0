"""Turns the code blocks of a page into programs that can be run.

The Python blocks of a page are one program, in their order. A block whose first line is `# name.py` is a file of its
own: it is written, and run as a program at its place. `<!-- not run -->` before a block leaves it out, as does a fence
that does not say `python`.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^(?P<mark><!-- not run.*?-->\n+)?```(?P<kind>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")

# A page shows `worker.run()`, which would never return: here it returns when there is nothing left to do.
_UNTIL_IDLE = """
from codeq.sdk.worker.worker import Worker
run_for_ever = Worker.run
Worker.run = lambda self, queue=None, **_: run_for_ever(self, queue, until_idle=True)
"""


def blocks(page: str, kind: str) -> list[str]:
    found = _BLOCK.finditer((ROOT / page).read_text())
    return [block["text"] for block in found if block["kind"] == kind and not block["mark"]]


def program(page: str, folder: Path) -> str:
    """The page as one program. Its files are written into the folder."""
    parts = []
    for text in blocks(page, "python"):
        named = _FILE.match(text)
        if named:
            (folder / named[1]).write_text(text)
            parts.append(f"__import__('subprocess').run([{sys.executable!r}, {named[1]!r}], check=True)\n")
        else:
            parts.append(text)
    (folder / "sitecustomize.py").write_text(_UNTIL_IDLE)
    return "\n".join(parts)


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """Variables for a program of a page: `codeq` is the one under test, and workers end when they are idle."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    command = bin_folder / "codeq"
    command.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from codeq.cli.main import app; app()' \"$@\"\n")
    command.chmod(0o755)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("CODEQ_", "OTEL_"))}
    paths = [str(folder), *[path for path in sys.path if path.endswith("src")], kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "PATH": os.pathsep.join([str(bin_folder), str(Path(sys.executable).parent), kept.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "NO_COLOR": "1",
        **extra,
    }
