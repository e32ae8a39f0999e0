"""The load on a server: keep-alive connections that ask, wait for the answer and ask again. A process of its own.

Requests are built beforehand and answers hardly parsed, so that the server is the bottleneck; the CPU time of both is
reported to judge whether it was. Reads one job per line and writes one report per line, until its input ends.
Start it with `python -m benchmarks.http_load`: as a script, its folder would hide Python's `http` behind ours.
"""

import asyncio
import gc
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count, cycle

import msgspec
import psutil  # type: ignore[import-untyped]
import uvloop
from benchmarks.cycles import payloads
from benchmarks.machine import percentile

from codeq.wire import paths

HOST = "127.0.0.1"
POLL_WAIT_S = 30
_DIFFERENT_REQUESTS = 64
_STRAGGLERS_S = 30.0
_CONNECT_AT_ONCE = 200
_NO_SECOND_S = 0.05
"""How long after each wake-up a second, wrong one is waited for."""
_ANSWERS_MAX_S = 10.0
_QUIET_S, _QUIET_CORES = 0.2, 0.2
_HEAD_END, _LENGTH = b"\r\n\r\n", b"content-length: "


class Target(msgspec.Struct, frozen=True):
    port: int
    pid: int
    token: str


class Load(msgspec.Struct, frozen=True, tag=True):
    """Go round on every connection: enqueue, or enqueue, claim and result."""

    target: Target
    command: str
    is_cycle: bool
    batch: int
    """1 for the calls that take a single task."""
    connections: int
    is_packed: bool
    payload_bytes: int
    warm_s: float
    seconds: float
    tasks_max: int


class Polls(msgspec.Struct, frozen=True, tag=True):
    """Hold this many claims that wait, then enqueue one task at a time."""

    target: Target
    command: str
    polls: int
    rounds: int
    idle_s: float


class Usage(msgspec.Struct, frozen=True):
    """CPU seconds per second, so 1 is one core."""

    elapsed_s: float
    measured: float
    """The server, or the engine in process."""
    generator: float
    others: float
    """Whatever else ran on this machine, and so made the figures worse."""


class Latency(msgspec.Struct, frozen=True):
    calls: int
    p50_ms: float
    p99_ms: float


class Loaded(msgspec.Struct, frozen=True):
    tasks: int
    per_s: float
    usage: Usage
    latencies: dict[str, Latency]


class Polled(msgspec.Struct, frozen=True):
    polls: int
    opening_s: float
    rss_before_mb: float
    rss_polling_mb: float
    rss_after_mb: float
    """With all connections closed again."""
    idle: Usage
    rounds: int
    woke_exactly_one: int
    expired: int
    """Polls that ran out of time meanwhile and asked again."""
    refused: int
    """Polls that got neither a task nor the answer that there is none."""
    first_refusal: str
    wake_ms: list[float]
    """From the enqueue's sending to the claim's answer."""


class Meter:
    """CPU time of a process, of this one and of the whole machine between `start` and `stop`."""

    def __init__(self, pid: int) -> None:
        self._measured = psutil.Process(pid)
        self._self = None if pid == os.getpid() else psutil.Process()
        self.start()

    def start(self) -> None:
        self._started = self._read()

    def stop(self) -> Usage:
        elapsed_s, measured, generator, busy = (
            now - then for now, then in zip(self._read(), self._started, strict=True)
        )
        others = max(0.0, busy - measured - generator)
        return Usage(elapsed_s, measured / elapsed_s, generator / elapsed_s, others / elapsed_s)

    def _read(self) -> tuple[float, float, float, float]:
        whole = psutil.cpu_times()
        idle = whole.idle + getattr(whole, "iowait", 0.0)
        own = _cpu_s(self._self) if self._self else 0.0
        return time.perf_counter(), _cpu_s(self._measured), own, sum(whole) - idle


class Requests:
    """The bytes of every call, in one format."""

    def __init__(self, job: Load) -> None:
        self._head = _head(job.target, packed=job.is_packed)
        self._is_packed = job.is_packed
        self._is_single = job.batch == 1
        codec = msgspec.msgpack if job.is_packed else msgspec.json
        self._encode = codec.encode
        self._one = (msgspec.msgpack.Decoder if job.is_packed else msgspec.json.Decoder)(_Held).decode
        self._many = (msgspec.msgpack.Decoder if job.is_packed else msgspec.json.Decoder)(_HeldTasks).decode
        self._enqueues = cycle(self._made_enqueues(job))
        wanted = {"commands": [job.command]}
        if self._is_single:
            self.claim = self._built(paths.CLAIM, self._encode(wanted))
        else:
            self.claim = self._built(paths.CLAIM_BATCH, self._encode({**wanted, "count": job.batch}))
        self._refusal = b"\xa5error" if job.is_packed else b'"error":'

    def enqueue(self) -> bytes:
        return next(self._enqueues)

    def result(self, claimed: bytes, batch: int) -> bytes:
        """The request that ends the tasks of a claim's answer."""
        ending = {"status": "COMPLETED", "result": b"null" if self._is_packed else None}
        if self._is_single:
            held = self._one(claimed)
            body = self._encode({"leaseToken": held.lease_token, **ending})
            return self._built(paths.RESULT.replace("{id}", held.id), body)
        tasks = self._many(claimed).tasks
        if len(tasks) != batch:
            raise RuntimeError(f"a claim of {batch} got {len(tasks)}")
        results = [{"taskId": held.id, "leaseToken": held.lease_token, **ending} for held in tasks]
        return self._built(paths.RESULTS_BATCH, self._encode({"results": results}))

    def is_refusal(self, status: int, body: bytes) -> bool:
        return status not in (200, 202) or (not self._is_single and self._refusal in body)

    def _made_enqueues(self, job: Load) -> list[bytes]:
        number = max(_DIFFERENT_REQUESTS, 2 * job.batch)
        made = [payload if job.is_packed else msgspec.Raw(payload) for payload in payloads(job.payload_bytes, number)]
        tasks = [{"command": job.command, "payload": payload} for payload in made]
        if self._is_single:
            return [self._built(paths.TASKS, self._encode(task)) for task in tasks]
        batches = [tasks[start : start + job.batch] for start in range(0, number, job.batch)]
        return [self._built(paths.TASKS_BATCH, self._encode({"tasks": batch})) for batch in batches]

    def _built(self, path: str, body: bytes) -> bytes:
        return b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (path.encode(), self._head, len(body), body)


class _Held(msgspec.Struct, rename="camel", gc=False):
    id: str
    lease_token: int = 0


class _HeldTasks(msgspec.Struct, gc=False):
    tasks: list[_Held]


class Connection(asyncio.Protocol):
    """Sends a request and hands its answer to `on_answer`; one at a time."""

    def __init__(self, on_answer: Callable[["Connection", int, bytes], None]) -> None:
        self._on_answer = on_answer
        self._data = b""
        self._wanted = 0
        self._body_at = 0
        self.is_closing = False

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]
        self._transport = transport
        self.send = transport.write

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        if not self._wanted:
            self._body_at = data.find(_HEAD_END) + 4
            if self._body_at > 3:
                place = data.find(_LENGTH, 0, self._body_at)
                length = int(data[place + 16 : data.index(b"\r", place)]) if place >= 0 else 0
                self._wanted = self._body_at + length
        if not self._wanted or len(data) < self._wanted:
            self._data = data
            return
        self._data = b""
        self._wanted = 0
        self._on_answer(self, int(data[9:12]), data[self._body_at :])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_closing:
            self._on_answer(self, 0, f"the server hung up: {exc}".encode())

    def close(self) -> None:
        self.is_closing = True
        self._transport.close()


class Callers:
    """All connections of one job, each going round on its own until told to stop."""

    def __init__(self, job: Load) -> None:
        self._job = job
        self._requests = Requests(job)
        self._steps: dict[Connection, tuple[str, float]] = {}
        self._times_s: defaultdict[str, list[float]] = defaultdict(list)
        self._last = "result" if job.is_cycle else "enqueue"
        self._is_stopping = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> Loaded:
        job = self._job
        connections = await connect(job.target, job.connections, self.answered)
        meter = Meter(job.target.pid)
        for connection in connections:
            self._ask(connection, "enqueue", self._requests.enqueue())
        await asyncio.sleep(job.warm_s)
        self._times_s.clear()
        meter.start()
        await asyncio.wait([self.done], timeout=job.seconds)
        usage = meter.stop()
        times_s, self._times_s = self._times_s, defaultdict(list)
        self._is_stopping = True
        await asyncio.wait_for(self.idle, _STRAGGLERS_S)
        for connection in connections:
            connection.close()
        tasks = len(times_s[self._last]) * job.batch
        latencies = {verb: _latency(values) for verb, values in times_s.items() if values}
        return Loaded(tasks, tasks / usage.elapsed_s, usage, latencies)

    def answered(self, connection: Connection, status: int, body: bytes) -> None:
        verb, sent_s = self._steps[connection]
        times_s = self._times_s[verb]
        times_s.append(time.perf_counter() - sent_s)
        if self._requests.is_refusal(status, body):
            self._fail(RuntimeError(f"{verb} was answered with {status}: {body[:300]!r}"))
        elif verb == self._last:
            if len(times_s) * self._job.batch >= self._job.tasks_max and not self.done.done():
                self.done.set_result(None)
            if self._is_stopping:
                self._rest(connection)
            else:
                self._ask(connection, "enqueue", self._requests.enqueue())
        elif verb == "enqueue":
            self._ask(connection, "claim", self._requests.claim)
        else:
            self._end(connection, body)

    def _end(self, connection: Connection, claimed: bytes) -> None:
        try:
            request = self._requests.result(claimed, self._job.batch)
        except (RuntimeError, msgspec.DecodeError) as fault:
            self._fail(fault)
        else:
            self._ask(connection, "result", request)

    def _ask(self, connection: Connection, verb: str, request: bytes) -> None:
        self._steps[connection] = (verb, time.perf_counter())
        connection.send(request)

    def _rest(self, connection: Connection) -> None:
        del self._steps[connection]
        if not self._steps and not self.idle.done():
            self.idle.set_result(None)

    def _fail(self, fault: Exception) -> None:
        if not self.idle.done():
            self.idle.set_exception(fault)
        if not self.done.done():
            self.done.set_result(None)


class Pollers:
    """Claims that wait, all for one command; each that is answered asks again, so that their number stays."""

    def __init__(self, job: Polls) -> None:
        self._job = job
        head = _head(job.target, packed=False)
        poll = msgspec.json.encode({"commands": [job.command], "waitSeconds": POLL_WAIT_S})
        create = msgspec.json.encode({"command": job.command, "payload": "wake up"})
        build = b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b"
        self._poll = build % (paths.CLAIM.encode(), head, len(poll), poll)
        self._enqueue = build % (paths.TASKS.encode(), head, len(create), create)
        self._woken: list[tuple[float, str]] = []
        self._expired = 0
        self._refused = 0
        self._first_refusal = ""
        self._news = asyncio.Event()
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def run(self) -> Polled:
        job = self._job
        server = psutil.Process(job.target.pid)
        rss_before_mb = _rss_mb(server)
        started_s = time.perf_counter()
        waiting = await connect(job.target, job.polls, self._polled, first=self._poll)
        opening_s = await self._quiet(job.target) - started_s
        meter = Meter(job.target.pid)
        await asyncio.sleep(job.idle_s)
        idle = meter.stop()
        rss_polling_mb = _rss_mb(server)
        wakes = await self._rounds()
        for connection in waiting:
            connection.close()
        await self._quiet(job.target)
        return Polled(
            polls=job.polls,
            opening_s=opening_s,
            rss_before_mb=rss_before_mb,
            rss_polling_mb=rss_polling_mb,
            rss_after_mb=_rss_mb(server),
            idle=idle,
            rounds=job.rounds,
            woke_exactly_one=sum(exact for _, exact in wakes),
            expired=self._expired,
            refused=self._refused,
            first_refusal=self._first_refusal,
            wake_ms=[wake_ms for wake_ms, _ in wakes],
        )

    async def _rounds(self) -> list[tuple[float, bool]]:
        """One task at a time. Ends early if a task wakes nobody: the next ones would not either."""
        [asking] = await connect(self._job.target, 1, self._asked)
        wakes: list[tuple[float, bool]] = []
        for _ in range(self._job.rounds):
            wake = await self._round(asking)
            if wake is None:
                break
            wakes.append(wake)
        asking.close()
        return wakes

    async def _quiet(self, target: Target) -> float:
        """Wait until the server has nothing left to do, so that every poll waits; answers the time when that began."""
        deadline_s = time.perf_counter() + POLL_WAIT_S / 2
        while True:
            began_s = time.perf_counter()
            meter = Meter(target.pid)
            await asyncio.sleep(_QUIET_S)
            if meter.stop().measured < _QUIET_CORES or began_s > deadline_s:
                return began_s

    async def _round(self, asking: Connection) -> tuple[float, bool] | None:
        """Enqueue one task; how long its claim's answer took, and whether that one claim was all that was answered."""
        before = len(self._woken)
        self._news.clear()
        sent_s = time.perf_counter()
        task = msgspec.json.decode(await self._ask(asking, self._enqueue), type=_Held)
        if len(self._woken) == before:
            try:
                await asyncio.wait_for(self._news.wait(), _ANSWERS_MAX_S)
            except TimeoutError:
                return None
        await asyncio.sleep(_NO_SECOND_S)
        woken_s, task_id = self._woken[before]
        return (woken_s - sent_s) * 1000, len(self._woken) == before + 1 and task_id == task.id

    async def _ask(self, connection: Connection, request: bytes) -> bytes:
        self._answer = asyncio.get_running_loop().create_future()
        connection.send(request)
        return await asyncio.wait_for(self._answer, _STRAGGLERS_S)

    def _asked(self, _: Connection, status: int, body: bytes) -> None:
        if status in (200, 202):
            self._answer.set_result(body)
        elif not self._answer.done():
            self._answer.set_exception(RuntimeError(f"the server answered {status}: {body[:300]!r}"))

    def _polled(self, connection: Connection, status: int, body: bytes) -> None:
        now_s = time.perf_counter()
        if status == 200:
            self._woken.append((now_s, msgspec.json.decode(body, type=_Held).id))
            self._news.set()
        elif status == 204:
            self._expired += 1
        else:
            self._refused += 1
            self._first_refusal = self._first_refusal or f"{status}: {body[:200].decode(errors='replace')}"
            connection.close()
            return
        connection.send(self._poll)


async def connect(
    target: Target, number: int, on_answer: Callable[[Connection, int, bytes], None], *, first: bytes | None = None
) -> Sequence[Connection]:
    """Open so many connections, a few at a time; each sends `first` at once."""
    loop = asyncio.get_running_loop()
    turns = count(number, -1)
    opened: list[Connection] = []

    async def open_some() -> None:
        while next(turns) > 0:
            _, connection = await loop.create_connection(lambda: Connection(on_answer), HOST, target.port)
            opened.append(connection)
            if first is not None:
                connection.send(first)

    await asyncio.gather(*(open_some() for _ in range(min(number, _CONNECT_AT_ONCE))))
    return opened


def _head(target: Target, *, packed: bool) -> bytes:
    media = f"application/{'msgpack' if packed else 'json'}"
    head = f"host: {HOST}:{target.port}\r\nauthorization: Bearer {target.token}\r\n"
    return f"{head}content-type: {media}\r\naccept: {media}\r\n".encode()


def _latency(times_s: list[float]) -> Latency:
    ms = [value * 1000 for value in times_s]
    return Latency(len(ms), percentile(ms, 0.5), percentile(ms, 0.99))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _rss_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


async def _report(line: bytes) -> bytes:
    job: Load | Polls = msgspec.json.decode(line, type=Load | Polls)
    found = await (Callers(job).run() if isinstance(job, Load) else Pollers(job).run())
    return msgspec.json.encode(found)


def main() -> None:
    gc.disable()  # it makes no cycles worth collecting, and a pause here would look like one of the server's
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin.buffer:
            sys.stdout.buffer.write(runner.run(_report(line)) + b"\n")
            sys.stdout.buffer.flush()
            gc.collect()


if __name__ == "__main__":
    main()
