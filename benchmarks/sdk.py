"""Measure what a program sees: an SDK producer, a server and an SDK worker, each a process: `python benchmarks/sdk.py`.

With fsync and default settings. It asserts nothing about speed. It prints a table beside what peers reached on the same
kind of machine, and the same work done by the engine in process in the same run, and writes all figures as JSON.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder: its `http` would hide Python's own

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from benchmarks import hops, machine
from benchmarks.cycles import payloads
from benchmarks.http import serving
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import codeq

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAYLOAD_BYTES = 200
CONCURRENCIES = (1, 16, 128)
IDLE_TURNS, IDLE_TASKS, IDLE_FIRST, IDLE_PAUSE_S = 8, 50, 20, 0.005
"""Turns of so many tasks, one at a time: with a pause before each, as on an idle machine, and one right after another;
and beside them as many passes through the same hops without a queue. Some come before, to warm up."""
WAIT_S = 120.0
BURN_GOAL, BATCHER_GOAL, IDLE_GOAL_MS = 15_000, 30_000, 2.0
PEERS = "burn-down/s: Celery 1.1-1.9 k, Dramatiq 4.1 k, Huey 4.8 k, beanstalkd with fsync 5.0 k, without 20 k"


class Flow(msgspec.Struct, frozen=True):
    """Producer and worker at the same time."""

    concurrency: int
    tasks_per_s: float
    p50_ms: float
    p99_ms: float
    """From the server's acknowledgement of the enqueue to its acknowledgement of the result."""


class Figures(msgspec.Struct):
    tasks: int
    calibration_s: float
    one_by_one_per_s: float = 0
    batcher_per_s: float = 0
    async_batcher_per_s: float = 0
    burn_down_per_s: dict[str, float] = {}
    engine_burn_down_per_s: float = 0
    engine_enqueue_per_s: float = 0
    flows: list[Flow] = []
    idle_p50_ms: float = 0
    idle_p99_ms: float = 0
    awake_p50_ms: float = 0
    """One right after another: the processors have not gone to sleep in between."""
    hops_p50_ms: float = 0
    """With the pause, as `idle_p50_ms`."""


class Run:
    def __init__(self, url: str, tasks: int) -> None:
        self.url = url
        self.tasks = tasks
        self.client = codeq.Client(url, "dev-token")
        self.payloads = payloads(PAYLOAD_BYTES, 1000)

    def one_by_one(self) -> float:
        count = min(self.tasks, 5000)
        return _rate(count, lambda: [self.client.enqueue("single", self.payloads[n % 1000]) for n in range(count)])

    def batched(self, command: str) -> float:
        def go() -> None:
            with self.client.batcher() as batcher:
                for number in range(self.tasks):
                    batcher.enqueue(command, number)

        return _rate(self.tasks, go)

    def batched_async(self, command: str) -> float:
        async def go() -> None:
            async with codeq.AsyncClient(self.url, "dev-token") as client, client.batcher() as batcher:
                for number in range(self.tasks):
                    await batcher.enqueue(command, number)

        return _rate(self.tasks, lambda: asyncio.run(go()))

    def burn_down(self, command: str) -> float:
        """From the first task that is claimed to the last that is done; the worker's start is not counted."""
        self.client.pause(command)
        self.batched(command)
        with self.worker(16):
            self.client.enqueue("stamp", time.time_ns())
            self.drained("stamp")
            self.client.resume(command)
            started_s = time.perf_counter()
            self.drained(command)
            return self.tasks / (time.perf_counter() - started_s)

    def flow(self, concurrency: int) -> Flow:
        begin = self.client.events(offset=1 << 62, limit=1).end_offset
        with self.worker(concurrency):
            self.client.enqueue("stamp", time.time_ns())
            self.drained("stamp")
            started_s = time.perf_counter()
            self.batched("noop")
            self.drained("noop")
            took_s = time.perf_counter() - started_s
        waits_ms = self._waits_ms(begin)
        return Flow(
            concurrency, self.tasks / took_s, machine.percentile(waits_ms, 0.5), machine.percentile(waits_ms, 0.99)
        )

    def idle(self, directory: Path) -> tuple[list[float], list[float], list[float]]:
        """Milliseconds from the call of enqueue to the first line of the handler, with and without a pause before it;
        and what the way there takes without a queue."""
        found: tuple[list[float], list[float], list[float]] = ([], [], [])
        with self.worker(16), hops.chain(directory) as hop:
            ways = ((self._stamp_ms, IDLE_PAUSE_S), (self._stamp_ms, 0), (hop.pass_ms, IDLE_PAUSE_S))
            for way, pause_s in ways:
                _times(way, IDLE_FIRST, pause_s)
            for _ in range(IDLE_TURNS):
                for times_ms, (way, pause_s) in zip(found, ways, strict=True):
                    times_ms.extend(_times(way, IDLE_TASKS, pause_s))
        return found

    def _stamp_ms(self) -> float:
        task = self.client.enqueue("stamp", time.time_ns())
        return float(self.client.wait(task.id, WAIT_S)) / 1e6

    def drained(self, command: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            info = self.client.queues().get(command)
            if info is None or info.pending + info.in_progress == 0:
                return
            time.sleep(0.01)
        raise RuntimeError(f"the tasks of {command} were not done in {WAIT_S} s")

    @contextmanager
    def worker(self, concurrency: int) -> Iterator[None]:
        environment = {**os.environ, "CONCURRENCY": str(concurrency)}
        process = subprocess.Popen([sys.executable, ROOT / "benchmarks" / "sdk_worker.py", self.url], env=environment)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)

    def _waits_ms(self, offset: int) -> list[float]:
        begun: dict[str, datetime] = {}
        waits_ms = []
        while True:
            page = self.client.events(offset=offset, limit=10_000)
            for event in page.events:
                if event.command == "noop" and event.move == "enqueue":
                    begun[event.task_id] = datetime.fromisoformat(event.at)
                elif event.command == "noop" and event.move == "complete":
                    waited = datetime.fromisoformat(event.at) - begun[event.task_id]
                    waits_ms.append(waited.total_seconds() * 1000)
            if page.next_offset >= page.end_offset:
                return waits_ms
            offset = page.next_offset


async def in_process(directory: Path, tasks: int) -> tuple[float, float]:
    """Enqueues and burn-down of the engine alone, in batches of 500 with fsync: what no client can exceed."""
    new_tasks = codeq.new_tasks("noop", range(500))
    async with await codeq.open_async(directory) as queue:
        started_s = time.perf_counter()
        for _ in range(tasks // 500):
            await queue.enqueue_many(new_tasks)
        enqueued_s = time.perf_counter()
        while jobs := await queue.claim("noop", limit=500):
            await queue.complete_many(jobs)
        return tasks / (enqueued_s - started_s), tasks / (time.perf_counter() - enqueued_s)


def _times(way: Callable[[], float], count: int, pause_s: float) -> list[float]:
    found = []
    for _ in range(count):
        time.sleep(pause_s)
        found.append(way())
    return found


def _rate(count: int, work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return count / (time.perf_counter() - started_s)


def main(
    tasks: Annotated[int, typer.Option(help="How many tasks per measurement.")] = 20_000,
    directory: Annotated[Path | None, typer.Option("--dir", help="Where to write; must be on a disk.")] = None,
) -> None:
    """Measure the SDK against a real server, and print what was found."""
    console = Console()
    home = Path(tempfile.mkdtemp(prefix="codeq-sdk-", dir=directory))
    figures = Figures(tasks, machine.calibrate())
    try:
        figures.engine_enqueue_per_s, figures.engine_burn_down_per_s = asyncio.run(in_process(home / "engine", tasks))
        with serving(home / "server") as target:
            run = Run(f"http://127.0.0.1:{target.port}", tasks)
            with console.status("measuring"):
                figures.one_by_one_per_s = run.one_by_one()
                figures.batcher_per_s = run.batched("many")
                figures.async_batcher_per_s = run.batched_async("more")
                for command, name in (("noop", "in threads"), ("anoop", "async")):
                    figures.burn_down_per_s[name] = run.burn_down(command)
                figures.flows = [run.flow(concurrency) for concurrency in CONCURRENCIES]
                idle_ms, awake_ms, hops_ms = run.idle(home / "hops")
        figures.idle_p50_ms, figures.idle_p99_ms = (machine.percentile(idle_ms, share) for share in (0.5, 0.99))
        figures.awake_p50_ms, figures.hops_p50_ms = (machine.percentile(ms, 0.5) for ms in (awake_ms, hops_ms))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    show(console, figures)
    RESULTS.mkdir(exist_ok=True)
    out = RESULTS / f"sdk-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    out.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    console.print(f"all figures: {out.relative_to(ROOT)}")


def show(console: Console, figures: Figures) -> None:
    console.print(
        Panel(
            f"{figures.tasks} tasks, handlers that do nothing, fsync on, defaults everywhere; one server, one worker "
            f"process\ncalibration: 10 M loop iterations in {figures.calibration_s:.2f} s\n{PEERS}",
            title="codeQ SDK",
            title_align="left",
        )
    )
    table = Table("what", "figure", "goal", "of the engine alone", box=None)
    enqueue, burn = figures.engine_enqueue_per_s, figures.engine_burn_down_per_s
    table.add_row("enqueue one by one", f"{figures.one_by_one_per_s:,.0f}/s", "", "")
    for name, value in (("batcher", figures.batcher_per_s), ("async batcher", figures.async_batcher_per_s)):
        table.add_row(f"enqueue, {name}", f"{value:,.0f}/s", f"{BATCHER_GOAL:,}/s", f"{value / enqueue:.2f}")
    for name, value in figures.burn_down_per_s.items():
        table.add_row(f"burn-down, {name}", f"{value:,.0f}/s", f"{BURN_GOAL:,}/s", f"{value / burn:.2f}")
    for flow in figures.flows:
        latency = f"p50 {flow.p50_ms:.0f} ms, p99 {flow.p99_ms:.0f} ms"
        table.add_row(f"end to end, concurrency {flow.concurrency}", f"{flow.tasks_per_s:,.0f}/s, {latency}", "", "")
    idle = f"p50 {figures.idle_p50_ms:.2f} ms, p99 {figures.idle_p99_ms:.2f} ms"
    table.add_row("enqueue to handler, idle", idle, f"p50 {IDLE_GOAL_MS:g} ms", "")
    table.add_row("  one right after another", f"p50 {figures.awake_p50_ms:.2f} ms", "", "")
    table.add_row("  the hops and fsync alone", f"p50 {figures.hops_p50_ms:.2f} ms", "", "")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
