"""Measure `codeq.priority` beside the story's own two-command design and a plain list: `python benchmarks/priority.py`.

All three send their commands over the same kind of connection, so that the designs are compared and not the clients.
Their turns alternate. It asserts nothing about speed: it prints tables, and writes all figures as JSON.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from benchmarks.machine import calibrate, percentile
from rich.console import Console
from rich.table import Table
from tests.redis_servers import RedisNode, start_node

from codeq.priority import PriorityQueue, TaskPriority
from codeq.priority.connection import RedisConnection
from codeq.priority.tasks import score

RESULTS = Path(__file__).resolve().parent / "results"
TURNS, CYCLES = 5, 1000
DEPTHS = (1_000, 10_000, 100_000, 1_000_000)
DEPTH_CYCLES = 500
RATE_PER_S, P95_GOAL_S, P99_GOAL_S = 100, 1.0, 2.0
_CHUNK = 1000

Cycle = Callable[[str, int], Awaitable[None]]
Figures = dict[str, Any]


class Designs:
    """One cycle of each design: a task goes in, a worker takes it, it is done."""

    def __init__(self, url: str) -> None:
        self._queue = PriorityQueue(url, prefix="ours:")
        self._connection = RedisConnection(url, has_hash_tag=False)

    async def ours(self, task_id: str, priority: int) -> None:
        """Everything that this package promises: order, lock, record of flight, recovery, true delays."""
        await self._queue.enqueue(task_id, priority)
        task = await self._queue.dequeue()
        if task:
            await self._queue.complete(task)

    async def story(self, task_id: str, priority: int) -> None:
        """Loses the task if the worker dies between the second and the third command, or after it."""
        send = self._connection.send
        await send("ZADD", "task:queue", score(priority, time.time_ns() // 1_000_000), task_id, key="task:queue")
        popped = await send("ZPOPMIN", "task:queue", key="task:queue")
        if popped:
            lock = f"task:lock:{popped[0].decode()}"
            await send("SET", lock, "worker", "NX", "EX", 300, key=lock)
            await send("DEL", lock, key=lock)

    async def plain_list(self, task_id: str, _priority: int) -> None:
        """No priorities, no locks; a task is lost if its worker dies."""
        await self._connection.send("LPUSH", "list", task_id, key="list")
        await self._connection.send("RPOP", "list", key="list")

    async def close(self) -> None:
        await self._queue.close()
        await self._connection.close()


def main(
    *, quick: Annotated[bool, typer.Option(help="fewer turns, at most 100,000 queued, ten seconds of load")] = False
) -> None:
    console = Console()
    with tempfile.TemporaryDirectory() as folder, start_node(Path(folder)) as node:
        figures = asyncio.run(measure(node, quick=quick, console=console))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"priority-{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    path.write_text(json.dumps(figures, indent=1))
    console.print(f"All figures: {path}")


async def measure(node: RedisNode, *, quick: bool, console: Console) -> Figures:
    figures: Figures = {"calibration_s": calibrate(), "redis": node.command("INFO", "server")["redis_version"]}
    console.print(f"Redis {figures['redis']} without persistence; 10 M loop turns in {figures['calibration_s']:.2f} s")
    figures["cycles"] = await compare(node, turns=2 if quick else TURNS)
    show_cycles(console, figures["cycles"])
    figures["depths"] = [await at_depth(node, depth) for depth in (DEPTHS[:-1] if quick else DEPTHS)]
    show_depths(console, figures["depths"])
    figures["latency"] = await latency(node, seconds=10 if quick else 30)
    show_latency(console, figures["latency"])
    return figures


async def compare(node: RedisNode, *, turns: int) -> list[Figures]:
    designs = Designs(node.url)
    ways: dict[str, Cycle] = {
        "codeq.priority": designs.ours,
        "the story's two commands": designs.story,
        "plain list": designs.plain_list,
    }
    rows = []
    for callers in (1, 16):
        turned: dict[str, list[Figures]] = {name: [] for name in ways}
        for _ in range(turns + 1):
            for name, way in ways.items():
                turned[name].append(await turn(node, way, callers=callers))
        for name, found in turned.items():
            medians = {key: statistics.median(figures[key] for figures in found[1:]) for key in found[0]}
            rows.append({"design": name, "callers": callers, **medians})
    await designs.close()
    return rows


async def turn(node: RedisNode, way: Cycle, *, callers: int, cycles: int = CYCLES) -> Figures:
    numbers = iter(range(cycles))

    async def call() -> None:
        for number in numbers:
            await way(f"task-{number}", TaskPriority.HIGH if number % 2 else TaskPriority.NORMAL)

    redis_s, client_s, started_s = redis_cpu_s(node), time.process_time(), time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return {
        "per_s": cycles / (time.perf_counter() - started_s),
        "client_us": (time.process_time() - client_s) / cycles * 1e6,
        "redis_us": (redis_cpu_s(node) - redis_s) / cycles * 1e6,
    }


async def at_depth(node: RedisNode, depth: int) -> Figures:
    """Cycles while so many other tasks are queued: each takes the head and adds one at the end."""
    node.command("FLUSHALL")
    async with PriorityQueue(node.url) as queue:
        fill(node, queue, depth)
        latencies: list[float] = []

        async def cycle(task_id: str, _priority: int) -> None:
            before_s = time.perf_counter()
            await queue.enqueue(task_id)
            task = await queue.dequeue()
            if task:
                await queue.complete(task)
            latencies.append(time.perf_counter() - before_s)

        await turn(node, cycle, callers=1, cycles=50)  # scripts loaded, connected
        latencies.clear()
        figures = await turn(node, cycle, callers=1, cycles=DEPTH_CYCLES)
        memory = node.command("INFO", "memory")["used_memory"]
    return {"depth": depth, **figures, "p50_ms": percentile(latencies, 0.5) * 1000, "bytes": memory / depth}


def fill(node: RedisNode, queue: PriorityQueue, depth: int) -> None:
    """Writes what `depth` enqueues would have written, one task per millisecond, without a call for each."""
    since_ms = time.time_ns() // 1_000_000 - depth - 60_000
    for first in range(0, depth, _CHUNK):
        places = range(first, min(depth, first + _CHUNK))
        scores = [score(TaskPriority.NORMAL, since_ms + place) for place in places]
        pairs = [(f"waiting-{place}", where) for place, where in zip(places, scores, strict=True)]
        node.command("ZADD", queue.keys.queue, *(word for task_id, where in pairs for word in (where, task_id)))
        records = [(task_id, f"{place} 0 0 {where}") for place, (task_id, where) in zip(places, pairs, strict=True)]
        node.command("HSET", queue.keys.records, *(word for pair in records for word in pair))
    node.command("SET", queue.keys.sequence, depth)


async def latency(node: RedisNode, *, seconds: int) -> Figures:
    """From the call of enqueue to the task in a worker's hands, at the story's rate, with four workers that wait."""
    node.command("FLUSHALL")
    sent_s: dict[str, float] = {}
    taken_ms: list[float] = []
    total = RATE_PER_S * seconds

    async def work() -> None:
        async with PriorityQueue(node.url) as queue:
            while len(taken_ms) < total:
                task = await queue.dequeue(wait=0.5)
                if task:
                    taken_ms.append((time.perf_counter() - sent_s[task.task_id]) * 1000)
                    await queue.complete(task)

    async def produce(queue: PriorityQueue, number: int) -> None:
        sent_s[str(number)] = time.perf_counter()
        await queue.enqueue(str(number), TaskPriority.HIGH if number % 3 == 0 else TaskPriority.NORMAL)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    async with PriorityQueue(node.url) as producer, asyncio.TaskGroup() as calls:
        started_s = time.perf_counter()
        for number in range(total):  # on time, also if earlier calls have not been answered
            await asyncio.sleep(max(0.0, started_s + number / RATE_PER_S - time.perf_counter()))
            calls.create_task(produce(producer, number))
    await asyncio.gather(*workers)
    taken_ms = taken_ms[RATE_PER_S:]  # the first second connects and loads the scripts
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    figures = {f"{name}_ms": percentile(taken_ms, share) for name, share in shares.items()}
    return {"tasks": total, "per_s": RATE_PER_S, **figures, "worst_ms": max(taken_ms)}


def redis_cpu_s(node: RedisNode) -> float:
    cpu = node.command("INFO", "cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def show_cycles(console: Console, rows: list[Figures]) -> None:
    table = Table("design", "callers", "cycles/s", "client CPU us", "Redis CPU us", box=None)
    table.title = "1. Enqueue + dequeue + complete, medians of alternating turns"
    for row in rows:
        table.add_row(
            row["design"],
            str(row["callers"]),
            f"{row['per_s']:,.0f}",
            f"{row['client_us']:.0f}",
            f"{row['redis_us']:.0f}",
        )
    console.print(table)


def show_depths(console: Console, rows: list[Figures]) -> None:
    table = Table("queued", "Redis CPU us per cycle", "x first", "p50 ms", "x first", "bytes per task", box=None)
    table.title = "2. The same with many tasks queued"
    for row in rows:
        table.add_row(
            f"{row['depth']:,}",
            f"{row['redis_us']:.0f}",
            f"{row['redis_us'] / rows[0]['redis_us']:.2f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p50_ms'] / rows[0]['p50_ms']:.2f}",
            f"{row['bytes']:.0f}",
        )
    console.print(table)


def show_latency(console: Console, figures: Figures) -> None:
    console.print(
        f"3. {figures['tasks']:,} tasks at {figures['per_s']}/s, from enqueue to a waiting worker: "
        f"p50 {figures['p50_ms']:.1f} ms, p95 {figures['p95_ms']:.1f} ms (goal {P95_GOAL_S:.0f} s), "
        f"p99 {figures['p99_ms']:.1f} ms (goal {P99_GOAL_S:.0f} s), worst {figures['worst_ms']:.1f} ms"
    )


if __name__ == "__main__":
    typer.run(main)
