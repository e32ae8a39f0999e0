"""Measure the in-process engine against the limit of this machine, in one run: `make bench`.

It asserts nothing about speed. It prints tables, and writes all figures as JSON to compare runs by.
"""

import asyncio
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import claims, cycles, machine, mover, startup, tables

RESULTS = Path(__file__).resolve().parent / "results"


class Plan(msgspec.Struct, frozen=True):
    """How much to measure."""

    mode: str
    repetition_s: float
    served: list[int]
    claims: dict[int, int]
    """Per limit: how many claims to time."""
    pending: int
    future: int
    mover_turns: int


_CLAIMS = {1: 3072, 16: 768}
QUICK = Plan("quick", 0.1, [1_000, 10_000], {1: 512, 16: 128}, 20_000, 10_000, 20)
DEFAULT = Plan("default", 0.5, [1_000, 10_000, 100_000, 200_000], _CLAIMS, 200_000, 100_000, 100)
FULL = Plan("full", 2.0, [1_000, 10_000, 100_000, 1_000_000], _CLAIMS, 1_000_000, 100_000, 200)


class Run:
    """One run of the benchmark: measures part by part, shows each part as soon as it is done, and keeps its figures."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        self._plan = plan
        self._directory = directory
        self._console = console
        self.figures: dict[str, Any] = {"plan": plan, "at": datetime.now(UTC)}

    def measure(self) -> None:
        started_s = time.perf_counter()
        self._machine()
        self._cycles()
        asyncio.run(self._claims())
        self._openings()
        asyncio.run(self._mover())
        calibration_s = machine.calibrate()
        took_s = time.perf_counter() - started_s
        self.figures |= {"calibration_after_s": calibration_s, "took_s": took_s}
        self._console.print(f"calibration at the end: {calibration_s:.2f} s; the whole run took {took_s:.0f} s")

    def _machine(self) -> None:
        described, calibration_s = machine.describe(self._directory), machine.calibrate()
        self.figures |= {"machine": described, "calibration_s": calibration_s}
        tables.heading(self._console, described, calibration_s=calibration_s, mode=self._plan.mode)

    def _cycles(self) -> None:
        settings = cycles.settings(quick=self._plan is QUICK)
        rows = []
        with self._progress() as progress:
            step = progress.add_task("full cycles", total=len(settings))
            for setting in settings:
                progress.update(step, description=f"full cycles: {_named(setting)}")
                rows.append(cycles.measure(setting, self._directory, seconds=self._plan.repetition_s))
                progress.advance(step)
        self.figures["cycles"] = rows
        tables.cycles(self._console, rows)

    async def _claims(self) -> None:
        backlogs = (claims.SHALLOW_BACKLOG, claims.DEEP_BACKLOG)
        points: list[claims.Point] = []
        with self._progress() as progress:
            step = progress.add_task("claim latency", total=len(backlogs) * len(self._plan.served))
            for backlog in backlogs:
                series = await claims.Series.start(self._directory, backlog)
                for served in self._plan.served:
                    progress.update(step, description=f"claim latency: backlog {backlog:,}, {served:,} served")
                    points += await series.measure(served, self._plan.claims)
                    progress.advance(step)
                await series.close()
        points.sort(key=lambda point: (point.backlog, point.limit, point.served))
        self.figures["claims"] = points
        tables.claims(self._console, points)

    def _openings(self) -> None:
        found: list[startup.Opening] = []
        with self._progress() as progress:
            step = progress.add_task("opening", total=2)
            for pending in (0, self._plan.pending):
                progress.update(step, description=f"opening: {pending:,} pending")
                home = self._directory / f"pending-{pending}"
                found += startup.measure(home, pending)
                shutil.rmtree(home)
                progress.advance(step)
        self.figures["openings"] = found
        tables.openings(self._console, found)

    async def _mover(self) -> None:
        with self._progress() as progress:
            step = progress.add_task(f"mover: {self._plan.future:,} future tasks", total=1)
            none, many = await mover.measure(self._directory, self._plan.future, turns=self._plan.mover_turns)
            progress.advance(step)
        self.figures["mover"] = [none, many]
        tables.promotions(self._console, none, many)

    def _progress(self) -> Progress:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        # A slow refresh: the bar is drawn by a thread that takes the interpreter away from what is measured.
        return Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True, refresh_per_second=1)


def main(
    *,
    full: Annotated[bool, typer.Option("--full", help="1 M tasks and longer repetitions; about ten minutes.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smoke test of about 20 s; its figures mean little.")
    ] = False,
    json: Annotated[Path, typer.Option(help="Where to write the figures.")] = RESULTS / "engine.json",
    directory: Annotated[Path, typer.Option("--dir", help="A folder on the disk to measure.")] = RESULTS,
) -> None:
    """Measure codeQ's engine in this process, beside raw RocksDB doing the same writes. Takes about two minutes."""
    if full and quick:
        raise typer.BadParameter("--full and --quick exclude each other")
    console = Console() if sys.stdout.isatty() else Console(width=150)
    directory.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="tmp-", dir=directory)).resolve()
    try:
        run = Run(QUICK if quick else FULL if full else DEFAULT, home, console)
        run.measure()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    json.parent.mkdir(parents=True, exist_ok=True)
    json.write_bytes(msgspec.json.format(msgspec.json.encode(run.figures), indent=2))
    console.print(f"figures: {json}")


def _named(setting: cycles.Setting) -> str:
    return f"{setting.durability}, {setting.payload_bytes} B, batch {setting.batch}, {setting.callers} callers"


if __name__ == "__main__":
    typer.run(main)
