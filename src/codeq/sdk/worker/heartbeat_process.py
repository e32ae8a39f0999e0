"""Sends heartbeats from a process of its own.

A handler that holds the interpreter lock (native code, a long loop) stops every thread and coroutine of its process. So
a worker of a server starts this process, sends it over a pipe the jobs it holds before it starts their handlers, and
needs to do nothing more for it. When the worker dies, the process ends with it.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from codeq.domain.task import Holder
from codeq.sdk.backend import Backend, ClientOptions
from codeq.sdk.client import AsyncClient
from codeq.sdk.durations import milliseconds
from codeq.sdk.jobs import Job
from codeq.sdk.worker.heartbeat import LoopHeartbeater, Lost
from codeq.sdk.worker.parent_death import die_with_parent
from codeq.sdk.worker.task_logs import logging_without_setup
from codeq.wire.errors import Unauthenticated

log = logging.getLogger("codeq.worker")

RESTART_S_MAX = 5.0
READ_EVERY_S = 0.05
RETRY_FOR_S = 2.0
PIPE_BYTES = 1 << 20
"""Holds more than is sent in that time, so that it arrives even if the worker's process is stopped right after."""
_UP = "up"


class HeartbeatCommand(msgspec.Struct, array_like=True, gc=False):
    """One line from the worker to the process. The first one has `client` and `leases_ms`."""

    hold: list[tuple[str, str, int]] = []
    """Id, command and token of jobs to hold."""
    release: list[str] = []
    progress: dict[str, str] = {}
    client: dict[str, Any] = {}
    leases_ms: dict[str, int] = {}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(HeartbeatCommand).decode


class HeartbeatProcess:
    """A `LoopHeartbeater` in a process of its own. The process is restarted, and sent all leases again, if it ends;
    until it is up, the worker sends the heartbeats itself."""

    def __init__(
        self,
        backend: Backend,
        options: ClientOptions,
        leases_ms: Mapping[str, int],
        lost: Lost,
        *,
        at_once: bool = True,
    ) -> None:
        """Without `at_once` the process is started when the first jobs need it: many a run finds none."""
        self._backend = backend
        self._options = options
        self._leases_ms = dict(leases_ms)
        self._lost = lost
        self._held: dict[str, Job] = {}
        self._progress: dict[str, str] = {}
        self._pipe: asyncio.StreamWriter | None = None
        self._is_up = asyncio.Event()
        self._is_needed = asyncio.Event()
        if at_once:
            self._is_needed.set()
        self._stand_in: LoopHeartbeater | None = None
        self.running = asyncio.get_running_loop().create_task(self._run())

    async def ready(self) -> None:
        self._is_needed.set()
        await self._is_up.wait()

    def hold(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._held[job.key] = job
        self._send(HeartbeatCommand(hold=_refs(jobs)))
        if self._stand_in is not None:
            self._stand_in.hold(jobs)

    def release(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._held.pop(key, None)
            self._progress.pop(key, None)
        self._send(HeartbeatCommand(release=list(keys)))
        if self._stand_in is not None:
            self._stand_in.release(keys)

    def report(self, progress: Mapping[str, str]) -> None:
        texts = {key: text for key, text in progress.items() if key in self._held}
        self._progress.update(texts)
        self._send(HeartbeatCommand(progress=texts))
        if self._stand_in is not None:
            self._stand_in.report(texts)

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    def _send(self, command: HeartbeatCommand) -> None:
        if self._pipe is not None and not self._pipe.is_closing():
            self._pipe.write(_encode(command) + b"\n")

    async def _run(self) -> None:
        pause_s = 0.0
        await self._is_needed.wait()
        while True:
            self._stand_in = LoopHeartbeater(self._backend, self._leases_ms, self._lease_lost)
            self._stand_in.hold(list(self._held.values()), at_once=True)
            try:
                await self._run_process()
                pause_s = 0.0
            except OSError as fault:
                pause_s = min(pause_s + 0.5, RESTART_S_MAX)
                log.warning("the heartbeat process cannot start, trying again in %.1f s: %s", pause_s, fault)
                await asyncio.sleep(pause_s)
            finally:
                await self._close_stand_in()

    async def _run_process(self) -> None:
        """One process, from its start to its end. Raises OSError if it never came up."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "codeq.sdk.worker.heartbeat_process", str(os.getpid()),
            stdin=-1, stdout=-1, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
        try:
            self._pipe = process.stdin
            held = _refs(list(self._held.values()))
            self._send(HeartbeatCommand(held, [], self._progress, _client_arguments(self._options), self._leases_ms))
            await self._listen(process)
        finally:
            was_up = self._is_up.is_set()
            self._is_up.clear()
            self._pipe = None
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if not was_up:
            raise ChildProcessError(f"it ended with {process.returncode} before it was up")
        log.warning("the heartbeat process ended and is started again")

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Reads what the process writes, until it ends."""
        if process.stdout is None:
            return
        async for line in process.stdout:
            key, _, code = line.decode().strip().rpartition(" ")
            if code == _UP:
                self._is_up.set()
                await self._close_stand_in()
            elif code == Unauthenticated.code:
                if callable(self._options["token"]):
                    return  # the process is started again, with a new token
            else:
                self._lease_lost(key, code)

    async def _close_stand_in(self) -> None:
        if self._stand_in is not None:
            stand_in, self._stand_in = self._stand_in, None
            await stand_in.close()

    def _lease_lost(self, key: str, code: str) -> None:
        if self._held.pop(key, None) is not None:
            self._lost(key, code)


def _refs(jobs: Sequence[Job]) -> list[tuple[str, str, int]]:
    return [(job.id, job.command, job.holder.token or 0) for job in jobs]


def _client_arguments(options: ClientOptions) -> dict[str, Any]:
    """The arguments of `AsyncClient` as JSON can carry them."""
    token, ca_file = options["token"], options["ca_file"]
    return {
        "url": options["url"],
        "token": token() if callable(token) else token,
        "timeout": milliseconds(options["timeout"]) / 1000,
        "retry_for": RETRY_FOR_S,
        "ca_file": None if ca_file is None else str(ca_file),
    }


async def serve() -> None:
    """The main function of the process: reads commands from standard input, and writes key and code of each lost lease
    to standard output."""
    heartbeater: LoopHeartbeater | None = None
    async for line in _lines(sys.stdin.fileno()):
        command = _decode(line)
        jobs = [Job(task_id, name, b"", Holder("", token)) for task_id, name, token in command.hold]
        if heartbeater is None:
            heartbeater = LoopHeartbeater(AsyncClient(**command.client).backend, command.leases_ms, _write)
            heartbeater.hold(jobs, at_once=True)
            _write("", _UP)
        else:
            heartbeater.hold(jobs)
        heartbeater.release(command.release)
        heartbeater.report(command.progress)
    if heartbeater is not None:
        await heartbeater.close()


async def _lines(pipe: int) -> AsyncIterator[bytes]:
    """Polls: waking up for every job would take a processor from the handler that is just starting."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(AttributeError, OSError):  # not on every system, and not without a limit
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    rest = b""
    while True:
        try:
            data = os.read(pipe, PIPE_BYTES)
        except BlockingIOError:
            await asyncio.sleep(READ_EVERY_S)
            continue
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
        await asyncio.sleep(0)  # heartbeats are sent between reads, however much there is to read


def _write(key: str, code: str) -> None:
    sys.stdout.write(f"{key} {code}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # The worker decides when to stop, also if the whole process group gets the signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The end of the pipe is not enough: a handler may have forked, and its child holds the other end open.
    die_with_parent(int(sys.argv[1]))
    with contextlib.suppress(BrokenPipeError), logging_without_setup():
        asyncio.run(serve())
