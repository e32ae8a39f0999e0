"""Compare the CPU time per task of two checkouts of codeQ, in one run: `python benchmarks/compare.py OLD NEW`.

Each checkout has its own `.venv`. Both run at once, and short rounds of the same number of tasks alternate between
them, so that what else the machine does hits both. CPU time is that of the measured process, to the nanosecond; the
least of many rounds is what the code costs when nothing disturbs it; on a busy machine it moved by ten per cent.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder: it would hide Python's own `http` behind ours

import msgspec
import typer
import uvloop
from benchmarks.compare_engine import EngineRound
from benchmarks.http import PAYLOAD_BYTES, serving
from benchmarks.http_load import HOST, Connection, Load, Requests, Target, connect
from benchmarks.sdk_calls import SdkRound
from rich.console import Console
from rich.table import Table

ENGINE, CALLS = (Path(__file__).with_name(name) for name in ("compare_engine.py", "sdk_calls.py"))
MEMORY = Path("/dev/shm")
"""What the kernel spends on fsync is the same for both, and varies by more than what is compared."""
_ANSWERS_S = 300.0


class Setting(msgspec.Struct, frozen=True):
    name: str
    tasks: int
    """In a round: some 20 to 40 ms of CPU time, so short that now and then nothing disturbs it."""
    batch: int = 1
    callers: int = 1
    """Connections, or coroutines."""
    is_cycle: bool = True
    is_packed: bool = False
    durability: str = "fsync"
    call: str = ""
    """What a program does with the SDK."""


HTTP = [
    Setting("HTTP: healthz", 1_000, callers=8, is_cycle=False),
    Setting("HTTP: creates, 1 connection", 128, is_cycle=False),
    Setting("HTTP: creates, 32 connections", 640, callers=32, is_cycle=False),
    Setting("HTTP: cycles one by one, 1 connection", 64),
    Setting("HTTP: cycles one by one, 32 connections", 128, callers=32),
    Setting("HTTP: cycles in batches of 16", 512, batch=16, callers=8),
    Setting("HTTP: cycles in batches of 128", 1_024, batch=128, callers=8),
    Setting("HTTP: batches of 16, MessagePack", 512, batch=16, callers=8, is_packed=True),
    Setting("HTTP: batches of 128, MessagePack", 1_024, batch=128, callers=8, is_packed=True),
]
ENGINES = [
    Setting("engine: cycles one by one", 128, durability="process"),
    Setting("engine: one by one, 8 callers, fsync", 128, callers=8),
    Setting("engine: batches of 16", 512, batch=16, durability="process"),
    Setting("engine: batches of 16, 8 callers, fsync", 512, batch=16, callers=8),
    Setting("engine: batches of 128", 1_024, batch=128, durability="process"),
    Setting("engine: batches of 128, 8 callers, fsync", 1_024, batch=128, callers=8),
]
SDK = [
    Setting(f"SDK: {call}", tasks, call=call)
    for call, tasks in (
        ("enqueue", 200), ("typed enqueue", 200), ("batcher", 2_000), ("typed batcher", 2_000),
        ("async batcher", 2_000), ("threads", 1_000), ("typed threads", 1_000), ("async", 1_000),
    )
]  # fmt: skip
"""Each checkout's program against its own server. Of the worker, starting and ending it counts too."""

Round = Callable[[], Awaitable[float]]
"""Does the tasks of one round; returns the CPU time per task in microseconds."""


def cpu_s(pid: int) -> float:
    """Returns the CPU time of a process and all its threads: Linux numbers the clock of each process like this."""
    return time.clock_gettime((~pid << 3) | 2)


class HttpCalls:
    """One setting against one server: connections that stay open from round to round."""

    def __init__(self, target: Target, setting: Setting, command: str) -> None:
        self._target = target
        self._setting = setting
        self._requests = Requests(
            Load(
                target=target,
                command=command,
                is_cycle=setting.is_cycle,
                batch=setting.batch,
                connections=setting.callers,
                is_packed=setting.is_packed,
                payload_bytes=PAYLOAD_BYTES,
                warm_s=0,
                seconds=0,
                tasks_max=0,
            )
        )
        self._healthz = f"GET /healthz HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode() if "healthz" in setting.name else b""
        self._connections: Sequence[Connection] = ()
        self._verbs: dict[Connection, str] = {}
        self._left = 0
        self._done: asyncio.Future[None]

    async def round(self) -> float:
        if not self._connections:
            self._connections = await connect(self._target, self._setting.callers, self._answered)
        self._left = self._setting.tasks // self._setting.batch
        self._done = asyncio.get_running_loop().create_future()
        before_s = cpu_s(self._target.pid)
        for connection in self._connections:
            self._next_task(connection)
        await asyncio.wait_for(self._done, _ANSWERS_S)
        return 1e6 * (cpu_s(self._target.pid) - before_s) / self._setting.tasks

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _next_task(self, connection: Connection) -> None:
        if self._left:
            self._left -= 1
            self._verbs[connection] = "enqueue"
            connection.send(self._healthz or self._requests.enqueue())
        elif not self._verbs and not self._done.done():
            self._done.set_result(None)

    def _answered(self, connection: Connection, status: int, body: bytes) -> None:
        verb = self._verbs.pop(connection)
        if self._requests.is_refusal(status, body):
            self._done.set_exception(RuntimeError(f"{verb} was answered with {status}: {body[:300]!r}"))
        elif verb == "result" or not self._setting.is_cycle:
            self._next_task(connection)
        else:
            is_claimed = verb == "claim"
            self._verbs[connection] = "result" if is_claimed else "claim"
            requests = self._requests
            connection.send(requests.result(body, self._setting.batch) if is_claimed else requests.claim)


class RoundProcess:
    """A process that runs with a checkout's own Python, and does one round per line."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.pid = process.pid

    def do(self, job: msgspec.Struct) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the measured process has failed; see its message above")
        return float(answer)


class EngineProcess(RoundProcess):
    """The embedded queue of one checkout."""

    def __init__(self, process: "subprocess.Popen[bytes]", setting: Setting) -> None:
        super().__init__(process)
        self._job = EngineRound(
            tasks=setting.tasks, batch=setting.batch, callers=setting.callers, payload_bytes=PAYLOAD_BYTES
        )

    async def round(self) -> float:
        return self.do(self._job)


class SdkProcess(RoundProcess):
    """A program of one checkout, against that checkout's server."""

    def __init__(self, process: "subprocess.Popen[bytes]", setting: Setting) -> None:
        super().__init__(process)
        self._setting = setting

    async def round(self) -> float:
        self.prepare(self._setting.tasks)
        return self.work(self._setting.tasks)

    def prepare(self, tasks: int) -> None:
        self.do(SdkRound(call=self._setting.call, tasks=tasks, is_preparation=True))

    def work(self, tasks: int) -> float:
        """Returns the CPU time per task in microseconds, or NaN if this version has no such call."""
        return self.do(SdkRound(call=self._setting.call, tasks=tasks))


@contextmanager
def engine(tree: Path, home: Path, setting: Setting, *, program: Path | None = None) -> Iterator[EngineProcess]:
    """`program` is the Python to run, if not the checkout's own."""
    command = [str(program or tree / ".venv/bin/python"), str(ENGINE), str(home), setting.durability]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield EngineProcess(process, setting)
    finally:
        process.kill()
        process.wait()


@contextmanager
def sdk(
    tree: Path, url: str, setting: Setting, *, program: Path | None = None, slower: int = 1
) -> Iterator[SdkProcess]:
    """`program` is the Python to run, if not the checkout's own, and `slower` how many times slower it is."""
    command = [str(program or tree / ".venv/bin/python"), str(CALLS), url, str(slower)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield SdkProcess(process, setting)
    finally:
        process.kill()
        process.wait()


async def alternate(rounds: Sequence[Round], number: int) -> list[list[float]]:
    """Runs the rounds in turn, and each turn in the other order; the first two turns warm up and do not count."""
    found: list[list[float]] = [[] for _ in rounds]
    for turn in range(number + 2):
        for side in range(len(rounds)) if turn % 2 else reversed(range(len(rounds))):
            us = await rounds[side]()
            if turn > 1:
                found[side].append(us)
    return found


class Row(msgspec.Struct, frozen=True):
    setting: Setting
    old_us: list[float]
    new_us: list[float]

    def cells(self) -> list[str]:
        pairs = statistics.median(new / old for new, old in zip(self.new_us, self.old_us, strict=True))
        return [self.setting.name, *self._at(0.0), *self._at(0.1), _change(pairs)]

    def _at(self, part: float) -> list[str]:
        old, new = (sorted(us)[int(part * len(us))] for us in (self.old_us, self.new_us))
        return [f"{old:.1f}", f"{new:.1f}", _change(new / old)]


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


async def measure_http(trees: Sequence[Path], home: Path, settings: Sequence[Setting], number: int) -> list[Row]:
    rows: list[Row] = []
    with ExitStack() as stack:
        targets = [
            stack.enter_context(serving(home / f"http-{side}", program=tree / ".venv/bin/codeq"))
            for side, tree in enumerate(trees)
        ]
        for setting in settings:
            calls = [HttpCalls(target, setting, f"compare-{len(rows)}") for target in targets]
            rows.append(Row(setting, *await alternate([each.round for each in calls], number)))
            for each in calls:
                each.close()
    return rows


async def measure_engine(trees: Sequence[Path], home: Path, settings: Sequence[Setting], number: int) -> list[Row]:
    rows: list[Row] = []
    for setting in settings:
        with ExitStack() as stack:
            processes = [
                stack.enter_context(engine(tree, home / f"engine-{len(rows)}-{side}", setting))
                for side, tree in enumerate(trees)
            ]
            rows.append(Row(setting, *await alternate([each.round for each in processes], number)))
    return rows


async def measure_sdk(trees: Sequence[Path], home: Path, settings: Sequence[Setting], number: int) -> list[Row]:
    rows: list[Row] = []
    with ExitStack() as stack:
        targets = [
            stack.enter_context(serving(home / f"sdk-{side}", program=tree / ".venv/bin/codeq"))
            for side, tree in enumerate(trees)
        ]
        for setting in settings:
            with ExitStack() as each:
                programs = [
                    each.enter_context(sdk(tree, f"http://{HOST}:{target.port}", setting))
                    for tree, target in zip(trees, targets, strict=True)
                ]
                rows.append(Row(setting, *await alternate([program.round for program in programs], number)))
    return rows


def show(console: Console, rows: Sequence[Row]) -> None:
    table = Table(title="CPU time per task in microseconds", title_justify="left")
    table.add_column("")
    for name in ("old, least", "new", "change", "old, 10 %", "new", "change", "median of pairs"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row.cells())
    console.print(table)


def main(
    old: Path,
    new: Path,
    *,
    only: Annotated[str, typer.Option(help="Only settings whose name contains this.")] = "",
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds of each side that count.")] = 150,
    directory: Annotated[
        Path, typer.Option("--dir", help="Where the data is; in memory, fsync costs nothing.")
    ] = MEMORY,
    json: Annotated[Path | None, typer.Option(help="Where to write the figures.")] = None,
) -> None:
    """Compare two checkouts, each with a `.venv` of its own. Takes about three minutes if nothing else runs."""
    trees = [old.resolve(), new.resolve()]
    with tempfile.TemporaryDirectory(prefix="codeq-compare-", dir=directory) as folder:
        home = Path(folder)
        chosen_http = [setting for setting in HTTP if only in setting.name]
        chosen_engine = [setting for setting in ENGINES if only in setting.name]
        chosen_sdk = [setting for setting in SDK if only in setting.name]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rows = runner.run(measure_http(trees, home, chosen_http, rounds)) if chosen_http else []
            rows += runner.run(measure_engine(trees, home, chosen_engine, rounds))
            rows += runner.run(measure_sdk(trees, home, chosen_sdk, rounds)) if chosen_sdk else []
    show(Console() if sys.stdout.isatty() else Console(width=150), rows)
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2))


if __name__ == "__main__":
    typer.run(main)
