"""Measure the Redis engine beside raw Redis, beside RocksDB and over HTTP, in one run: `python benchmarks/redis.py`.

It asserts nothing about speed. It prints tables with the ratio that each figure should reach, and writes all figures as
JSON. What is compared takes turns, so that other load hits both; a ratio is the median over the turns.

On a machine that others use too, rates say little. So each ratio of rates is there a second time, by CPU time: how many
cycles the busier of the two processes, this one and Redis, has time for in a second, from the turn with the least. That
leaves out what waits for a disk or the network. The event loop is that of the server (uvloop), and so is the setting of
the garbage collector.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder: it would hide the library `redis` behind this file

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import msgspec
import typer
import uvloop
from benchmarks import machine, redis_flatness
from benchmarks.http import TASKS_MAX, Generator, serving
from benchmarks.http_load import Load, Loaded, Target
from benchmarks.redis_cycles import PAYLOAD_BYTES, Setting, Turn, engine_turn, raw_turn, redis_queue
from rich.console import Console
from rich.table import Table
from tests.redis_servers import RedisNode, start_node

import codeq
from codeq.server.garbage import tune_garbage_collector

RESULTS = Path(__file__).resolve().parent / "results"
SETTINGS = [Setting(1, 1), Setting(1, 8), Setting(1, 64), Setting(16, 8), Setting(128, 8)]
DEMANDS: dict[tuple[str, str], list[float | None]] = {
    ("everysec", "raw per task"): [0.25, 0.4, None, 1.5, 1.1],
    ("everysec", "RocksDB"): [1.5, 0.85, 0.8, 0.8, 0.65],
    ("always", "RocksDB"): [0.6, 0.5, 0.65, 0.55, 0.55],
    ("1 replica", "RocksDB server"): [None, 1.2, 0.95, 0.8, 0.85],
    ("2 replicas", "1 replica"): [None, 1.0, 0.95, 0.95, 0.95],
}
"""What each ratio of rates should reach at least, per setting."""
PARTS = ("in-process", "http", "flatness")
CPU_DEMANDS = {16: 1.6, 128: 2.0}
"""Redis CPU per cycle over raw per batch, at most, per batch."""
_AOF = {"no AOF": {}, "everysec": {"appendfsync": "everysec"}, "always": {"appendfsync": "always"}}

Turns = dict[str, list[Turn]]
Measure = Callable[[], Awaitable[Turn]]


class Plan(msgspec.Struct, frozen=True):
    """How much to measure."""

    mode: str
    turns: int
    seconds: float
    sizes: dict[str, list[int]]
    """Per kind of stored tasks: how many."""


QUICK = Plan("quick", 1, 0.15, {kind: [1_000, 3_000] for kind in ("in progress", "pending", "cancelled")})
DEFAULT = Plan(
    "default", 5, 0.5,
    {"in progress": [1_000, 10_000, 100_000], "pending": [1_000, 100_000, 1_000_000], "cancelled": [1_000, 50_000]},
)  # fmt: skip


class Run:
    """One run: measures part by part, shows each part as soon as it is done, and keeps its figures."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        self._plan = plan
        self._directory = directory
        self._console = console
        self.figures: dict[str, Any] = {"plan": plan, "at": datetime.now(UTC)}

    async def measure(self, parts: Sequence[str]) -> None:
        started_s = time.perf_counter()
        self.figures |= {"machine": machine.describe(self._directory), "calibration_s": machine.calibrate()}
        self._console.print(f"calibration: {self.figures['calibration_s']:.2f} s for 10 M loop iterations")
        measures = {"in-process": self._in_process, "http": self._http, "flatness": self._flatness}
        for part in parts:
            await measures[part]()
        self.figures |= {"calibration_after_s": machine.calibrate(), "took_s": time.perf_counter() - started_s}
        self._console.print(f"calibration at the end: {self.figures['calibration_after_s']:.2f} s")

    async def _in_process(self) -> None:
        found: dict[str, Turns] = {}
        for setting in SETTINGS:
            async with AsyncExitStack() as stack:
                measures = await self._measures(stack, setting)
                turns: Turns = {name: [] for name in measures}
                found[str(setting)] = turns
                for _ in range(self._plan.turns):
                    for name, measure in measures.items():
                        turns[name].append(await measure())
        self.figures["in_process"] = found
        _show_rates(self._console, found, "1. Full cycles per second in process, as ratios (demanded)", per_cycle=True)
        _show_costs(self._console, found)

    async def _measures(self, stack: AsyncExitStack, setting: Setting) -> dict[str, Measure]:
        """What takes turns: raw commands, the engine with each AOF policy, and RocksDB with fsync."""
        nodes = {name: self._node(stack, name) for name in _AOF}
        seconds, measures = self._plan.seconds, dict[str, Measure]()
        for name, node in nodes.items():
            queue = await stack.enter_async_context(redis_queue(node.url))
            measures[name] = partial(engine_turn, queue, setting, seconds, url=node.url)
        url = nodes["no AOF"].url
        measures["raw per task"] = partial(raw_turn, url, setting, seconds, is_per_task=True)
        measures["raw per batch"] = partial(raw_turn, url, setting, seconds, is_per_task=False)
        home = self._directory / f"rocksdb-{setting.batch}-{setting.callers}"
        rocks = await stack.enter_async_context(await codeq.open_async(home))
        measures["RocksDB"] = partial(engine_turn, rocks, setting, seconds)
        return measures

    def _node(self, stack: AsyncExitStack, name: str) -> RedisNode:
        folder = Path(tempfile.mkdtemp(prefix="redis-", dir=self._directory))
        options = {"appendonly": "yes", **_AOF[name]} if _AOF[name] else {}
        return stack.enter_context(start_node(folder, **options))

    async def _http(self) -> None:
        found: dict[str, Turns] = {}
        async with AsyncExitStack() as stack:
            generators = [await stack.enter_async_context(Generator.started()) for _ in range(2)]
            node = self._node(stack, "everysec")
            rocks = stack.enter_context(serving(self._directory / "server"))
            replicas = [stack.enter_context(serving(self._directory / f"replica-{n}", node.url)) for n in range(2)]
            for setting in SETTINGS[1:]:
                turns: Turns = {"RocksDB server": [], "1 replica": [], "2 replicas": []}
                found[str(setting)] = turns
                for number in range(self._plan.turns):
                    command = f"bench-{setting.batch}-{setting.callers}-{number}"
                    for name, targets in (
                        ("RocksDB server", [rocks]), ("1 replica", replicas[:1]), ("2 replicas", replicas),
                    ):  # fmt: skip
                        turns[name].append(
                            await self._load(generators, targets, setting, command=f"{command}-{len(targets)}")
                        )
        self.figures["http"] = found
        _show_rates(self._console, found, "3. Full cycles per second over HTTP, AOF everysec, as ratios (demanded)")

    async def _load(
        self, generators: Sequence[Generator], targets: Sequence[Target], setting: Setting, *, command: str
    ) -> Turn:
        """Loads the servers together: each from a generator of its own, with its share of the connections."""
        loads = [
            generator.load(self._job(target, setting, command, share=len(targets)))
            for generator, target in zip(generators, targets, strict=False)
        ]
        loaded: list[Loaded] = await asyncio.gather(*loads)
        elapsed_s = statistics.fmean(each.usage.elapsed_s for each in loaded)
        cpu_s = sum(each.usage.measured * each.usage.elapsed_s for each in loaded)
        return Turn(sum(each.tasks for each in loaded), elapsed_s, cpu_s)

    def _job(self, target: Target, setting: Setting, command: str, *, share: int) -> Load:
        return Load(
            target=target, command=command, is_cycle=True, batch=setting.batch,
            connections=max(1, setting.callers // share), is_packed=True, payload_bytes=PAYLOAD_BYTES, warm_s=0.2,
            seconds=2 * self._plan.seconds, tasks_max=TASKS_MAX,
        )  # fmt: skip

    async def _flatness(self) -> None:
        points: list[redis_flatness.Point] = []
        async with AsyncExitStack() as stack:
            node = self._node(stack, "no AOF")
            measured = redis_flatness.measure(node.url, self._plan.sizes, 2 * self._plan.seconds)
            points.extend([point async for point in measured])
        self.figures["flatness"] = points
        _show_flatness(self._console, points)


def _show_rates(console: Console, found: dict[str, Turns], title: str, *, per_cycle: bool = False) -> None:
    table = _table(title, ["ratio", *found])
    for (ours, theirs), demands in DEMANDS.items():
        if not all(ours in turns and theirs in turns for turns in found.values()):
            continue
        by_setting = dict(zip(map(str, SETTINGS), demands, strict=True))
        cells = [_ratio(turns[ours], turns[theirs], by_setting[setting]) for setting, turns in found.items()]
        table.add_row(f"{ours} / {theirs}", *cells)
        if per_cycle:
            by_cpu = [_cpu_ratio(turns[ours], turns[theirs], by_setting[setting]) for setting, turns in found.items()]
            table.add_row("  by CPU", *by_cpu)
    table.add_section()
    for name in next(iter(found.values())):
        rates = [f"{statistics.median(turn.per_s for turn in turns[name]):,.0f}" for turns in found.values()]
        table.add_row(f"{name}, cycles/s", *rates)
    for name in next(iter(found.values())):
        costs = [f"{_per_cycle(turns[name], 'python_cpu_s', 1e6):.0f}" for turns in found.values()]
        table.add_row(f"{name}, {'Python' if per_cycle else 'server'} CPU us/cycle", *costs)
    console.print(table)


def _show_costs(console: Console, found: dict[str, Turns]) -> None:
    columns = [
        "batch x callers", "design", "CPU us/cycle", "least", "x raw per batch (at most)", "of the least",
        "round trips", "commands",
    ]  # fmt: skip
    table = _table("2. What a cycle costs Redis", columns)
    for setting, turns in found.items():
        demand = CPU_DEMANDS.get(int(setting.split()[0]))
        for name in ("raw per batch", "raw per task", *_AOF):
            ratio = statistics.median(
                (ours.redis_cpu_s / ours.cycles) / (raw.redis_cpu_s / raw.cycles)
                for ours, raw in zip(turns[name], turns["raw per batch"], strict=True)
            )
            of_demand = f" ({demand})" if demand and name == "no AOF" else ""
            least, raw_least = _least_us(turns[name], "redis_cpu_s"), _least_us(turns["raw per batch"], "redis_cpu_s")
            table.add_row(
                setting, name, f"{_per_cycle(turns[name], 'redis_cpu_s', 1e6):.1f}", f"{least:.1f}",
                f"{ratio:.2f}{of_demand}", f"{least / raw_least:.2f}",
                f"{_per_cycle(turns[name], 'round_trips'):.3f}", f"{_per_cycle(turns[name], 'commands'):.2f}",
            )  # fmt: skip
        table.add_section()
    console.print(table)


def _show_flatness(console: Console, points: Sequence[redis_flatness.Point]) -> None:
    columns = ["stored", "tasks", "ms", "Redis CPU us", "x first", "round trips", "longest script ms"]
    table = _table(
        "4. A cycle of one task, in batches of 16, as more is stored; cancelled: one claim behind them", columns
    )
    first: dict[str, float] = {}
    for point in points:
        turn = point.turn
        cpu_us = 1e6 * turn.redis_cpu_s / turn.cycles
        table.add_row(
            point.kind, f"{point.stored:,}", f"{1000 * turn.elapsed_s / turn.cycles:.3f}", f"{cpu_us:.1f}",
            f"{cpu_us / first.setdefault(point.kind, cpu_us):.2f}", f"{turn.round_trips / turn.cycles:.2f}",
            f"{point.longest_ms:.2f}",
        )  # fmt: skip
    console.print(table)


def _ratio(ours: Sequence[Turn], theirs: Sequence[Turn], demand: float | None) -> str:
    found = statistics.median(mine.per_s / other.per_s for mine, other in zip(ours, theirs, strict=True))
    return _beside(found, demand)


def _cpu_ratio(ours: Sequence[Turn], theirs: Sequence[Turn], demand: float | None) -> str:
    busier = [max(_least_us(turns, name) for name in ("python_cpu_s", "redis_cpu_s")) for turns in (ours, theirs)]
    return _beside(busier[1] / busier[0], demand)


def _beside(found: float, demand: float | None) -> str:
    if demand is None:
        return f"{found:.2f}"
    return f"[{'green' if found >= demand else 'red'}]{found:.2f}[/] ({demand})"


def _least_us(turns: Sequence[Turn], name: str) -> float:
    return float(min(1e6 * getattr(turn, name) / turn.cycles for turn in turns))


def _per_cycle(turns: Sequence[Turn], name: str, unit: float = 1) -> float:
    return float(statistics.median(unit * getattr(turn, name) / turn.cycles for turn in turns))


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    return table


def main(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smoke test of half a minute; its figures mean little.")
    ] = False,
    part: Annotated[
        list[str] | None, typer.Option(help=f"What to measure, once or more: {', '.join(PARTS)}. By default all.")
    ] = None,
    json: Annotated[Path, typer.Option(help="Where to write the figures.")] = RESULTS / "redis.json",
    directory: Annotated[Path, typer.Option("--dir", help="A folder on the disk to measure.")] = RESULTS,
) -> None:
    """Measure codeQ on Redis beside raw Redis and beside RocksDB. Takes about five minutes."""
    console = Console() if sys.stdout.isatty() else Console(width=150)
    directory.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="tmp-", dir=directory)).resolve()
    try:
        tune_garbage_collector()
        run = Run(QUICK if quick else DEFAULT, home, console)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run.measure(part or list(PARTS)))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    json.parent.mkdir(parents=True, exist_ok=True)
    json.write_bytes(msgspec.json.format(msgspec.json.encode(run.figures), indent=2))
    console.print(f"figures: {json}")


if __name__ == "__main__":
    typer.run(main)
