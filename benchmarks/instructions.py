"""Compare the instructions per task of two checkouts of codeQ: `python benchmarks/instructions.py OLD NEW`.

The measured process runs in Valgrind's callgrind, so the figures do not depend on what else the machine does. It runs
some fifty times slower there, so its timers do, too. Each checkout has its own `.venv`. Needs `valgrind`; takes about
twelve minutes.
"""

import asyncio
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder: it would hide Python's own `http` behind ours

import msgspec
import typer
import uvloop
from benchmarks.compare import ENGINES, HTTP, MEMORY, SDK, HttpCalls, Setting, cpu_s, engine, sdk
from benchmarks.http import serving
from benchmarks.http_load import HOST
from rich.console import Console
from rich.table import Table

_SLOWER = 50
_START = f"""
import asyncio, sys
asyncio.sleep = lambda seconds, *rest, sleep=asyncio.sleep: sleep(seconds * {_SLOWER}, *rest)
try:
    from codeq.server import loop_monitor
    loop_monitor.TICK_S *= {_SLOWER}
except ImportError:
    pass
from codeq.cli.main import app
sys.exit(app())
"""
"""Starts the command with slower timers: those of the sweepers, and that of the loop's monitor, if there is one."""
_TOTAL = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
_WARM_ROUNDS = 2
_LONGER = 8
"""Rounds of the engine are so much longer than those whose time is compared: what precedes each one counts here."""
_IDLE_S = 1.0
_IDLE_CPU_S = 0.02
"""A process that uses less than this in `_IDLE_S` has finished what it does by itself."""


class Counter:
    """Counts the instructions of a process that runs in callgrind."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid = pid
        self._folder = folder
        self._dumps = 0

    def start(self) -> None:
        self._control("--instr=on")

    def stop(self, name: str) -> int:
        """Returns the instructions since `start`."""
        self._control("--instr=off")
        self._control(f"--dump={name}")
        self._dumps += 1
        dump = self._folder / f"callgrind.out.{self._pid}.{self._dumps}"
        found = _TOTAL.findall(dump.read_text())
        return int(found[-1])

    def _control(self, what: str) -> None:
        subprocess.run(["callgrind_control", what, str(self._pid)], check=True, capture_output=True)


def in_callgrind(tree: Path, folder: Path) -> Path:
    """Writes a program that runs the Python of this checkout in callgrind; it counts nothing until it is told to."""
    folder.mkdir(parents=True)
    program = folder / "python"
    options = f"--tool=callgrind --instr-atstart=no --callgrind-out-file={folder}/callgrind.out.%p"
    program.write_text(f'#!/bin/sh\nexec valgrind -q {options} {tree}/.venv/bin/python "$@"\n')
    program.chmod(0o755)
    (folder / "start.py").write_text(_START)
    codeq = folder / "codeq"
    codeq.write_text(f'#!/bin/sh\nexec {program} {folder}/start.py "$@"\n')
    codeq.chmod(0o755)
    return folder


async def count_http(tree: Path, home: Path, settings: Sequence[Setting], rounds: int) -> dict[str, float]:
    """Starts a server for each setting: in one for all, RocksDB's flush of a memtable counts for whoever it meets."""
    found: dict[str, float] = {}
    programs = in_callgrind(tree, home)
    for number, setting in enumerate(settings):
        with serving(home / f"http-{number}", program=programs / "codeq") as target:
            counter = Counter(target.pid, programs)
            calls = HttpCalls(target, setting, "compare")
            for _ in range(_WARM_ROUNDS):
                await calls.round()
            counter.start()
            for _ in range(rounds):
                await calls.round()
            found[setting.name] = counter.stop(setting.name) / rounds / setting.tasks
            calls.close()
    return found


async def count_engine(tree: Path, home: Path, settings: Sequence[Setting], rounds: int) -> dict[str, float]:
    found: dict[str, float] = {}
    programs = in_callgrind(tree, home)
    for number, short in enumerate(settings):
        setting = msgspec.structs.replace(short, tasks=_LONGER * short.tasks)
        with ExitStack() as stack:
            process = stack.enter_context(engine(tree, home / f"{number}", setting, program=programs / "python"))
            counter = Counter(process.pid, programs)
            for _ in range(_WARM_ROUNDS):
                await process.round()
            await _idle(process.pid)
            counter.start()
            for _ in range(rounds):
                await process.round()
            await _idle(process.pid)
            found[setting.name] = counter.stop(setting.name) / rounds / setting.tasks
    return found


async def _idle(pid: int) -> None:
    """Waits until RocksDB has flushed and compacted what the rounds have filled. Else the end of the count would cut
    off more of it for one checkout than for the other: a tenth of all, if a buffer is full a little earlier."""
    used_s = -1.0
    while cpu_s(pid) - used_s > _IDLE_CPU_S:
        used_s = cpu_s(pid)
        await asyncio.sleep(_IDLE_S)


async def count_sdk(tree: Path, home: Path, settings: Sequence[Setting], rounds: int) -> dict[str, float]:
    """Counts what the program does, with the server outside of callgrind. From rounds of two lengths, so that what
    starts and ends a worker or a batcher does not count."""
    found: dict[str, float] = {}
    programs = in_callgrind(tree, home)
    with serving(home / "server", program=tree / ".venv/bin/codeq") as target:
        for setting in settings:
            url = f"http://{HOST}:{target.port}"
            total, tasks = [0.0, 0.0], [setting.tasks, 3 * setting.tasks]
            with ExitStack() as stack:
                program = stack.enter_context(sdk(tree, url, setting, program=programs / "python", slower=_SLOWER))
                counter = Counter(program.pid, programs)
                for turn in range(rounds + 1):  # the first one warms up
                    for length in range(2):
                        program.prepare(tasks[length])
                        counter.start()
                        is_known = not math.isnan(program.work(tasks[length]))
                        counted = counter.stop(setting.name)
                        total[length] += counted if turn else 0
                        if not is_known:
                            total = [math.nan, math.nan]
            found[setting.name] = (total[1] - total[0]) / rounds / (tasks[1] - tasks[0])
    return found


def show(console: Console, counts: Sequence[dict[str, float]]) -> None:
    table = Table(title="Instructions per task, in thousands", title_justify="left")
    for name in ("", "old", "new", "change"):
        table.add_column(name, justify="right" if name else "left")
    old, new = counts
    for name in old:
        table.add_row(name, f"{old[name] / 1000:.1f}", f"{new[name] / 1000:.1f}", f"{new[name] / old[name] - 1:+.1%}")
    console.print(table)


def main(
    old: Path,
    new: Path,
    *,
    only: Annotated[str, typer.Option(help="Only settings whose name contains this.")] = "",
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds that are counted.")] = 4,
    json: Annotated[Path | None, typer.Option(help="Where to write the figures.")] = None,
) -> None:
    """Compare two checkouts, each with a `.venv` of its own."""
    counts: list[dict[str, float]] = []
    chosen_http = [setting for setting in HTTP if only in setting.name]
    chosen_engine = [setting for setting in ENGINES if only in setting.name]
    chosen_sdk = [setting for setting in SDK if only in setting.name]
    with (
        tempfile.TemporaryDirectory(prefix="codeq-instructions-", dir=MEMORY) as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        for side, tree in enumerate((old.resolve(), new.resolve())):
            found = runner.run(count_http(tree, Path(folder, f"http-{side}"), chosen_http, rounds))
            found |= runner.run(count_engine(tree, Path(folder, f"engine-{side}"), chosen_engine, rounds))
            counts.append(found | runner.run(count_sdk(tree, Path(folder, f"sdk-{side}"), chosen_sdk, rounds)))
    show(Console() if sys.stdout.isatty() else Console(width=150), counts)
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(counts), indent=2))


if __name__ == "__main__":
    typer.run(main)
