"""Measure a real `codeq serve` over HTTP beside the same engine in process, in one run: `python benchmarks/http.py`.

It asserts nothing about speed. It prints tables, and writes all figures as JSON to compare runs by.
"""
# ruff: noqa: A005 - it is run as a script, and never imported by its short name

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder: it would hide Python's own `http` behind this file

import asyncio
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

import msgspec
import typer
import uvloop
from benchmarks import machine
from benchmarks.cycles import payloads
from benchmarks.http_load import HOST, POLL_WAIT_S, Load, Loaded, Meter, Polled, Polls, Target, Usage
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import codeq
from codeq import AsyncQueue, NewTask

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAYLOAD_BYTES = 200
TASKS_MAX = 500_000
"""Per measurement, whatever its time: bounds the disk and the memory that a run takes."""
ENQUEUES_GOAL, RATIO_GOAL, RSS_GOAL_MB, WAKE_GOAL_MS = 6_000, 0.5, 400.0, 20.0
_STARTING_S, _STOPPING_S, _STRAGGLING_S = 120.0, 15.0, 60.0
_FILES_BESIDE_POLLS = 200
_AT = re.compile(rf"at http://{re.escape(HOST)}:(\d+)")


class Plan(msgspec.Struct, frozen=True):
    """How much to measure."""

    mode: str
    turns: int
    warm_s: float
    seconds: float
    polls: int
    rounds: int
    idle_s: float


QUICK = Plan("quick", turns=1, warm_s=0.1, seconds=0.5, polls=1_000, rounds=20, idle_s=0.5)
DEFAULT = Plan("default", turns=3, warm_s=0.3, seconds=1.1, polls=10_000, rounds=50, idle_s=2.0)


class Setting(msgspec.Struct, frozen=True):
    is_cycle: bool
    batch: int
    connections: int
    """Over HTTP; as many coroutines in process."""

    @property
    def name(self) -> str:
        return "full cycles" if self.is_cycle else "enqueues"


SETTINGS = [
    *(Setting(is_cycle, 1, connections) for is_cycle in (False, True) for connections in (1, 32, 256)),
    *(Setting(True, batch, 8) for batch in (16, 128)),
]


class Row(msgspec.Struct, frozen=True):
    """One setting in one format. `ratio` is HTTP over in process, the median over the turns; 1 would mean HTTP is free.

    The machine's other load spoils CPU time per task less than it spoils rates, so that is there too.
    """

    setting: Setting
    is_packed: bool
    http_per_s: float
    in_process_per_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    server_us_per_task: float
    in_process_us_per_task: float
    turns: list[Loaded]
    in_process: list[Loaded]


class Generator:
    """The load generator's process: takes a job, answers what it found."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def started(cls) -> AsyncIterator["Generator"]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.http_load", cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            yield cls(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def load(self, job: Load) -> Loaded:
        return msgspec.json.decode(await self._done(job, job.warm_s + job.seconds), type=Loaded)

    async def poll(self, job: Polls) -> Polled:
        return msgspec.json.decode(await self._done(job, 2 * POLL_WAIT_S), type=Polled)

    async def _done(self, job: Load | Polls, seconds: float) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        answer = await asyncio.wait_for(self._process.stdout.readline(), seconds + _STRAGGLING_S)
        if not answer:
            raise RuntimeError("the load generator has failed; see its message above")
        return answer


@contextmanager
def serving(home: Path, store: str | None = None, *, program: Path | None = None) -> Iterator[Target]:
    """A real server in development mode on a port of its own, stopped at the end whatever happens.

    Its tasks are in its folder, or in the Redis at this address. `program` is the `codeq` to run, if not the one beside
    this Python.
    """
    home.mkdir()
    out = home / "server.out"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CODEQ_")}
    codeq_command = str(program or Path(sys.executable).with_name("codeq"))
    where = ["--data", str(home / "data")] if store is None else ["--store", store]
    command = [codeq_command, "serve", "--dev", *where, "--host", HOST, "--port", "0"]
    with out.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=home)
    try:
        yield Target(_port(process, out), process.pid, "dev-token")
    finally:
        process.terminate()
        try:
            process.wait(_STOPPING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], out: Path) -> int:
    deadline_s = time.monotonic() + _STARTING_S
    while time.monotonic() < deadline_s and process.poll() is None:
        time.sleep(0.05)
        found = _AT.search(out.read_text())
        if found:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, int(found[1]))) == 0:
                    return int(found[1])
    raise RuntimeError(f"the server did not start: {out.read_text()[-2000:]}")


async def in_process(queue: AsyncQueue, setting: Setting, plan: Plan, command: str) -> Loaded:
    """What as many coroutines reach on the engine itself with the same calls, payloads and durability."""
    batch_of_tasks = [NewTask(command=command, payload=payload) for payload in payloads(PAYLOAD_BYTES, setting.batch)]
    tasks = 0
    stopping = asyncio.Event()

    async def go_round() -> None:
        nonlocal tasks
        while not stopping.is_set():
            done = len(await queue.enqueue_many(batch_of_tasks))
            if setting.is_cycle:
                done = len(await queue.complete_many(await queue.claim(command, limit=setting.batch)))
            if done != setting.batch:
                raise RuntimeError(f"a round of {setting.batch} tasks got through {done} of them")
            tasks += setting.batch
            if tasks >= TASKS_MAX:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(setting.connections):
            group.create_task(go_round())
        await asyncio.sleep(plan.warm_s)
        warm, meter = tasks, Meter(os.getpid())
        await asyncio.sleep(plan.seconds)
        usage, tasks_done = meter.stop(), tasks - warm
        stopping.set()
    return Loaded(tasks_done, tasks_done / usage.elapsed_s, usage, {})


class Run:
    """One run of the benchmark: measures part by part, shows each part as soon as it is done, and keeps its figures."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        self._plan = plan
        self._directory = directory
        self._console = console
        self._commands = 0
        self.figures: dict[str, Any] = {"plan": plan, "at": datetime.now(UTC)}

    async def measure(self) -> None:
        started_s = time.perf_counter()
        self._machine()
        async with Generator.started() as generator:
            with serving(self._directory / "load") as target:
                await self._load(generator, target)
            with serving(self._directory / "polls") as target:
                await self._polls(generator, target)
        calibration_s = machine.calibrate()
        took_s = time.perf_counter() - started_s
        self.figures |= {"calibration_after_s": calibration_s, "took_s": took_s}
        self._console.print(f"calibration at the end: {calibration_s:.2f} s; the whole run took {took_s:.0f} s")

    def _machine(self) -> None:
        described, calibration_s = machine.describe(self._directory), machine.calibrate()
        self.figures |= {"machine": described, "calibration_s": calibration_s}
        show_heading(self._console, described, calibration_s=calibration_s, mode=self._plan.mode)

    async def _load(self, generator: Generator, target: Target) -> None:
        rows: list[Row] = []
        with self._progress() as progress:
            step = progress.add_task("load", total=len(SETTINGS))
            async with await codeq.open_async(self._directory / "in-process") as queue:
                for setting in SETTINGS:
                    progress.update(step, description=f"{setting.name}, {setting.connections} x {setting.batch}")
                    rows += await self._rows(generator, target, queue, setting=setting)
                    progress.advance(step)
        self.figures["load"] = rows
        show_load(self._console, rows)

    async def _rows(
        self, generator: Generator, target: Target, queue: AsyncQueue, *, setting: Setting
    ) -> tuple[Row, Row]:
        """In turns, so that both formats and the engine see the same machine; each on a command of its own."""
        plain: list[Loaded] = []
        packed: list[Loaded] = []
        bare: list[Loaded] = []
        for _ in range(self._plan.turns):
            plain.append(await generator.load(self._job(target, setting, is_packed=False)))
            bare.append(await in_process(queue, setting, self._plan, self._command()))
            packed.append(await generator.load(self._job(target, setting, is_packed=True)))
        return _row(setting, plain, bare, is_packed=False), _row(setting, packed, bare, is_packed=True)

    def _job(self, target: Target, setting: Setting, *, is_packed: bool) -> Load:
        return Load(
            target=target,
            command=self._command(),
            is_cycle=setting.is_cycle,
            batch=setting.batch,
            connections=setting.connections,
            is_packed=is_packed,
            payload_bytes=PAYLOAD_BYTES,
            warm_s=self._plan.warm_s,
            seconds=self._plan.seconds,
            tasks_max=TASKS_MAX,
        )

    def _command(self) -> str:
        self._commands += 1
        return f"bench-{self._commands}"

    async def _polls(self, generator: Generator, target: Target) -> None:
        polls = min(self._plan.polls, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _FILES_BESIDE_POLLS)
        job = Polls(target, self._command(), polls, self._plan.rounds, self._plan.idle_s)
        with self._progress() as progress:
            step = progress.add_task(f"{polls:,} idle long polls", total=1)
            polled = await generator.poll(job)
            progress.advance(step)
        self.figures["polls"] = polled
        show_polls(self._console, polled)

    def _progress(self) -> Progress:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        # A slow refresh: the bar is drawn by a thread that takes the interpreter away from what is measured.
        return Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True, refresh_per_second=1)


def _row(setting: Setting, http: list[Loaded], bare: list[Loaded], *, is_packed: bool) -> Row:
    ratios = sorted(ours.per_s / theirs.per_s for ours, theirs in zip(http, bare, strict=True))
    return Row(
        setting=setting,
        is_packed=is_packed,
        http_per_s=_median([turn.per_s for turn in http]),
        in_process_per_s=_median([turn.per_s for turn in bare]),
        ratio=_median(ratios),
        ratio_low=ratios[0],
        ratio_high=ratios[-1],
        server_us_per_task=_us_per_task(http),
        in_process_us_per_task=_us_per_task(bare),
        turns=http,
        in_process=bare,
    )


def _us_per_task(turns: Sequence[Loaded]) -> float:
    cpu_s = sum(turn.usage.measured * turn.usage.elapsed_s for turn in turns)
    return 1e6 * cpu_s / max(1, sum(turn.tasks for turn in turns))


def _median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def show_heading(console: Console, described: machine.Machine, *, calibration_s: float, mode: str) -> None:
    console.print(
        Panel(
            f"{described.cores} cores, {described.memory_gb} GB, {described.system}, Python {described.python}\n"
            f"disk: {described.file_system}, 4 KB forced to disk in {described.fsync_ms:.2f} ms (median)\n"
            f"calibration: 10 M loop iterations in {calibration_s:.2f} s (to compare runs by)\n"
            "every acknowledged call is forced to disk (fsync); server and load generator share the cores",
            title=f"codeQ over HTTP, one server process, one shard ({mode})",
            title_align="left",
        )
    )
    if described.file_system in ("tmpfs", "ramfs"):
        console.print("[yellow]This directory is in memory: the figures mean nothing. Give a disk with --dir.[/]")


def show_load(console: Console, rows: Sequence[Row]) -> None:
    table = _table(
        f"1-2. Tasks per second over HTTP and in process ({PAYLOAD_BYTES} B; goals: {ENQUEUES_GOAL:,} single enqueues "
        f"at 32 connections, batches of 128 at {RATIO_GOAL} of in process)",
        ["", "batch", "conns", "format", "HTTP/s", "in proc/s", "ratio", "(low-high)", "p50/p99 ms: enqueue", "claim",
         "result", "CPU us/task: server", "in proc", "cores: server", "gen", "others"],
    )  # fmt: skip
    before = None
    for row in rows:
        setting = row.setting
        if before not in (None, setting):
            table.add_section()
        before = setting
        rate, ratio = f"{row.http_per_s:,.0f}", f"{row.ratio:.2f}"
        if (setting.is_cycle, setting.connections) == (False, 32):
            rate = _coloured(rate, good=row.http_per_s >= ENQUEUES_GOAL)
        if setting.batch == 128:
            ratio = _coloured(ratio, good=row.ratio >= RATIO_GOAL)
        table.add_row(
            setting.name, str(setting.batch), str(setting.connections), "msgpack" if row.is_packed else "JSON", rate,
            f"{row.in_process_per_s:,.0f}", ratio, f"{row.ratio_low:.2f}-{row.ratio_high:.2f}",
            *(_latency(row, verb) for verb in ("enqueue", "claim", "result")),
            f"{row.server_us_per_task:.0f}", f"{row.in_process_us_per_task:.0f}",
            *_cores([turn.usage for turn in row.turns]),
        )  # fmt: skip
    console.print(table)
    console.print(
        "[dim]In process: as many coroutines as connections, same calls, same payloads, fsync. Medians of alternating "
        "turns. Latency is per call, a batch being one. CPU time per task is what the machine's other load "
        "spoils least. Cores are CPU seconds per second: where generator and others leave the server less than one, "
        "the machine was the bottleneck, not the server.[/]"
    )


def show_polls(console: Console, polled: Polled) -> None:
    table = _table(
        f"3. {polled.polls:,} idle long polls (goals: under {RSS_GOAL_MB:.0f} MB, woken in {WAKE_GOAL_MS:.0f} ms)",
        ["opened in s", "RSS MB: before", "polling", "closed again", "KB/poll", "cores idle: server", "others",
         "woke exactly one", "expired", "refused", "wake ms: p50", "p99"],
    )  # fmt: skip
    exact = f"{polled.woke_exactly_one} of {polled.rounds}"
    wake_ms = machine.percentile(polled.wake_ms, 0.5) if polled.wake_ms else float("nan")
    worst_ms = machine.percentile(polled.wake_ms, 0.99) if polled.wake_ms else float("nan")
    table.add_row(
        f"{polled.opening_s:.1f}", f"{polled.rss_before_mb:.0f}",
        _coloured(f"{polled.rss_polling_mb:.0f}", good=polled.rss_polling_mb < RSS_GOAL_MB),
        f"{polled.rss_after_mb:.0f}", f"{(polled.rss_polling_mb - polled.rss_before_mb) * 1024 / polled.polls:.1f}",
        f"{polled.idle.measured:.2f}", f"{polled.idle.others:.2f}",
        _coloured(exact, good=polled.woke_exactly_one == polled.rounds), str(polled.expired),
        _coloured(str(polled.refused), good=not polled.refused),
        _coloured(f"{wake_ms:.1f}", good=wake_ms < WAKE_GOAL_MS), f"{worst_ms:.1f}",
    )  # fmt: skip
    console.print(table)
    console.print("[dim]From the enqueue's sending to the claim's answer, one task at a time, fsync included.[/]")
    if polled.first_refusal:
        console.print(f"[red]The first poll that was refused got[/] {escape(polled.first_refusal)}")


def _latency(row: Row, verb: str) -> str:
    found = [turn.latencies[verb] for turn in row.turns if verb in turn.latencies]
    if not found:
        return "-"
    return f"{_median([one.p50_ms for one in found]):.1f}/{_median([one.p99_ms for one in found]):.1f}"


def _cores(usages: Sequence[Usage]) -> list[str]:
    shares = [(usage.measured, usage.generator, usage.others) for usage in usages]
    return [f"{_median(values):.2f}" for values in zip(*shares, strict=True)]


def _coloured(text: str, *, good: bool) -> str:
    return f"[{'green' if good else 'red'}]{text}[/]"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    return table


def main(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smoke test of about 25 s; its figures mean little.")
    ] = False,
    json: Annotated[Path, typer.Option(help="Where to write the figures.")] = RESULTS / "http.json",
    directory: Annotated[Path, typer.Option("--dir", help="A folder on the disk to measure.")] = RESULTS,
) -> None:
    """Measure `codeq serve` over loopback, beside its engine in process. Takes two to three minutes."""
    console = Console() if sys.stdout.isatty() else Console(width=190)
    signal.signal(signal.SIGTERM, _stop)  # so that the server is ended and the data removed then, too
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the server and the generator inherit it
    directory.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="tmp-", dir=directory)).resolve()
    try:
        run = Run(QUICK if quick else DEFAULT, home, console)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the server's own loop, so as to compare
            runner.run(run.measure())
    finally:
        shutil.rmtree(home, ignore_errors=True)
    json.parent.mkdir(parents=True, exist_ok=True)
    json.write_bytes(msgspec.json.format(msgspec.json.encode(run.figures), indent=2))
    console.print(f"figures: {json}")


def _stop(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    typer.run(main)
