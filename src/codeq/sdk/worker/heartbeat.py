"""Heartbeats for the jobs that a worker holds, and word of those that were lost.

A handler that holds the interpreter lock (native code, a long loop) stops every thread and coroutine of its process. So
on a server the heart is a process of its own: it is told which jobs are held before any of them starts, and needs
nothing more from the worker. When the worker dies, its end of the pipe closes, and the heart stops beating with it.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from codeq.domain.errors import CodeqError, NotFound, Refused
from codeq.domain.task import Holder
from codeq.sdk.backend import Backend
from codeq.sdk.client import AsyncClient
from codeq.sdk.durations import milliseconds
from codeq.sdk.jobs import Job
from codeq.wire.errors import Unauthenticated

log = logging.getLogger("codeq.worker")

BEATS_PER_LEASE = 3
TICK_S = 0.25
BEATS_AT_ONCE = 32
ANSWER_S_MIN = 1.0
RESTART_S_MAX = 5.0
LISTEN_S = 0.05
PIPE_BYTES = 1 << 20
"""Room for more than is told in that time, so that it gets through even if the worker does nothing more for it."""
_UP = "up"


class Lost(Protocol):
    """Told the key of a job that is no longer ours, and the code of why."""

    def __call__(self, key: str, code: str, /) -> None: ...


class LeaseRef(msgspec.Struct, array_like=True, gc=False):
    """A job to keep: all that a heartbeat needs."""

    id: str
    worker: str
    token: int
    lease_ms: int
    claimed_ms: int
    """The lease it came with, which may be shorter: a claim for several commands asks for the shortest of theirs."""

    @property
    def key(self) -> str:
        """As `Job.key`."""
        return f"{self.id} {self.token}"


class Heartbeater(Protocol):
    async def ready(self) -> None:
        """Returns once a job that is held would be kept whatever its handler does to this process."""

    def hold(self, pulses: Sequence[LeaseRef]) -> None: ...

    def release(self, keys: Sequence[str]) -> None: ...

    async def close(self) -> None: ...

    @property
    def running(self) -> "asyncio.Task[None]":
        """Ends only if it fails."""


class LoopHeartbeater:
    """Beats for what it is told to hold, on the running event loop."""

    def __init__(self, backend: Backend, lost: Lost) -> None:
        self._backend = backend
        self._lost = lost
        self._held: dict[str, tuple[LeaseRef, float]] = {}
        self._due: deque[str] = deque()
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self.running = self._loop.create_task(self._tick())

    async def ready(self) -> None:
        pass

    def hold(self, pulses: Sequence[LeaseRef], *, at_once: bool = False) -> None:
        """With `at_once` the first beats are due now: nobody knows when the last were."""
        now_s = self._loop.time()
        for pulse in pulses:
            first_s = 0.0 if at_once else min(pulse.lease_ms, pulse.claimed_ms) / 1000 / BEATS_PER_LEASE
            self._held[pulse.key] = pulse, now_s + first_s
        if at_once:
            self._look()

    def release(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._held.pop(key, None)

    async def close(self) -> None:
        self._held.clear()
        self._due.clear()
        under_way = [self.running, *self._beating.values()]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._look()

    def _look(self) -> None:
        """Those that wait longest come first, so that with too many to serve none is always passed over."""
        now_s = self._loop.time()
        due = sorted([(due_s, key) for key, (_, due_s) in self._held.items() if due_s <= now_s])
        self._due = deque([key for _, key in due])
        self._feed()

    def _feed(self) -> None:
        while self._due and len(self._beating) < BEATS_AT_ONCE:
            key = self._due.popleft()
            if key in self._held and key not in self._beating:
                self._beating[key] = self._loop.create_task(self._beat(key, self._held[key][0]))

    async def _beat(self, key: str, pulse: LeaseRef) -> None:
        lease_s = pulse.lease_ms / 1000
        # Should it not come through, the next try is soon: a lease has room for several.
        next_s = lease_s / (BEATS_PER_LEASE * 4)
        try:
            async with asyncio.timeout(max(ANSWER_S_MIN, lease_s / BEATS_PER_LEASE)):
                job = Job(pulse.id, "", b"null", Holder(pulse.worker, pulse.token))
                await self._backend.heartbeat(job, pulse.lease_ms)
            next_s = lease_s / BEATS_PER_LEASE
        except (Refused, NotFound) as refusal:
            if self._held.pop(key, None) is not None:
                self._lost(key, refusal.code)
        except Unauthenticated as refusal:
            log.warning("a heartbeat was refused: %s", refusal)
            self._lost("", refusal.code)
        except (CodeqError, TimeoutError) as fault:
            log.warning("a heartbeat did not come through: %s", fault or "no answer")
        finally:
            del self._beating[key]
            if key in self._held:
                self._held[key] = pulse, self._loop.time() + next_s
            self._feed()


class Told(msgspec.Struct, array_like=True, gc=False):
    """One line to the heart's process: where to beat, what to hold, what to let go."""

    url: str = ""
    options: dict[str, Any] = {}
    hold: list[LeaseRef] = []
    release: list[str] = []


class HeartbeatProcess:
    """A `LoopHeartbeater` in a process of its own. It is restarted, and sent all leases again, if it ends; until it is
    up, the worker sends the heartbeats itself."""

    def __init__(self, client: AsyncClient, lost: Lost) -> None:
        self._client = client
        self._lost = lost
        self._held: dict[str, LeaseRef] = {}
        self._pipe: asyncio.StreamWriter | None = None
        self._is_up = asyncio.Event()
        self._stand_in: LoopHeartbeater | None = None
        self.running = asyncio.get_running_loop().create_task(self._run())

    async def ready(self) -> None:
        await self._is_up.wait()

    def hold(self, pulses: Sequence[LeaseRef]) -> None:
        for pulse in pulses:
            self._held[pulse.key] = pulse
        self._tell(Told(hold=list(pulses)))
        if self._stand_in is not None:
            self._stand_in.hold(pulses)

    def release(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._held.pop(key, None)
        self._tell(Told(release=list(keys)))
        if self._stand_in is not None:
            self._stand_in.release(keys)

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    def _tell(self, told: Told) -> None:
        if self._pipe is not None and not self._pipe.is_closing():
            self._pipe.write(_encode(told) + b"\n")

    async def _run(self) -> None:
        pause_s = 0.0
        while True:
            self._stand_in = LoopHeartbeater(self._client.backend, self._gone)
            self._stand_in.hold(list(self._held.values()), at_once=True)
            try:
                await self._live()
                pause_s = 0.0
            except OSError as fault:
                pause_s = min(pause_s + 0.5, RESTART_S_MAX)
                log.warning("the heart of this worker cannot start, trying again in %.1f s: %s", pause_s, fault)
                await asyncio.sleep(pause_s)
            finally:
                await self._stand_down()

    async def _live(self) -> None:
        """One process, from its start to its end. Raises OSError if it never came up."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "codeq.sdk.worker.heartbeat", str(os.getpid()),
            stdin=-1, stdout=-1, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
        try:
            self._pipe = process.stdin
            self._tell(Told(self._client.url, self._known(), list(self._held.values())))
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
        log.warning("the heart of this worker stopped and is started again")

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Until it ends."""
        if process.stdout is None:
            return
        async for line in process.stdout:
            key, _, code = line.decode().strip().rpartition(" ")
            if code == _UP:
                self._is_up.set()
                await self._stand_down()
            elif code == Unauthenticated.code:
                if callable(self._client.options["token"]):
                    return  # started anew, with a new token
            else:
                self._gone(key, code)

    async def _stand_down(self) -> None:
        if self._stand_in is not None:
            stand_in, self._stand_in = self._stand_in, None
            await stand_in.close()

    def _gone(self, key: str, code: str) -> None:
        if self._held.pop(key, None) is not None:
            self._lost(key, code)

    def _known(self) -> dict[str, Any]:
        given = self._client.options
        token, timeout, retry_for = given["token"], given["timeout"], given["retry_for"]
        return {
            "token": token() if callable(token) else token,
            "timeout": milliseconds(timeout) / 1000,
            "retry_for": milliseconds(retry_for) / 1000,
            "ca_file": None if given["ca_file"] is None else str(given["ca_file"]),
        }


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Told).decode


async def live(parent: int) -> None:
    """The process: told what to do on its standard input, tells key and code of what was lost, ends with its parent."""
    loop = asyncio.get_running_loop()
    _end_with(parent, loop)
    heart: LoopHeartbeater | None = None
    async for line in _lines(sys.stdin.fileno()):
        told = _decode(line)
        if heart is None:
            client = AsyncClient(told.url, **{**told.options, "retry_for": 2})
            heart = LoopHeartbeater(client.backend, _say)
            heart.hold(told.hold, at_once=True)
            _say("", _UP)
        else:
            heart.hold(told.hold)
            heart.release(told.release)
    if heart is not None:
        await heart.close()


async def _lines(pipe: int) -> AsyncIterator[bytes]:
    """Looked for now and then: being woken by every job would take a processor from the handler that just begins."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(AttributeError, OSError):  # not everywhere, and not without bound
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    rest = b""
    while True:
        try:
            data = os.read(pipe, PIPE_BYTES)
        except BlockingIOError:
            await asyncio.sleep(LISTEN_S)
            continue
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
        await asyncio.sleep(0)  # however much there is to hear, beats come in between


def _end_with(parent: int, loop: asyncio.AbstractEventLoop) -> None:
    """A handler may have forked, and its child hold the other end of the pipe open."""
    if os.getppid() != parent:
        os._exit(0)
    loop.call_later(TICK_S, _end_with, parent, loop)


def _say(key: str, code: str) -> None:
    sys.stdout.write(f"{key} {code}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # The worker decides when to stop, also when everyone is sent the signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(live(int(sys.argv[1])))
