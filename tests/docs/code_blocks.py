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

# A file that works until it is stopped is stopped as a reader does it: with Ctrl-C, once everything is done.
_RUN_FILE = """
def _run_file(name):
    import signal, subprocess, sys, time
    import codeq
    process = subprocess.Popen([sys.executable, name])
    if "worker.run()" in open(name).read():
        client = codeq.Client()
        while process.poll() is None and process.pid not in [worker.pid for worker in client.workers()]:
            time.sleep(0.05)
        while process.poll() is None and any(of.pending or of.in_progress for of in client.queues().values()):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0, name
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
            parts.append(f"_run_file({named[1]!r})\n")
        else:
            parts.append(text)
    return "\n".join([_RUN_FILE, *parts])


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """Variables for a program of a page: `codeq` is the one under test."""
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
