"""Heartbeats for the jobs that a worker holds, and word of those that were lost.

A handler that holds the interpreter lock (native code, a long loop) stops every thread and coroutine of its process. So
on a server the heart is a process of its own: it is told which jobs are held before any of them starts, and needs
nothing more from the worker. When the worker dies, its end of the pipe closes, and the heart stops beating with it.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from codeq.domain.errors import CodeqError, NotFound, Refused
from codeq.domain.task import Holder
from codeq.sdk.backend import Backend
from codeq.sdk.client import AsyncClient
from codeq.sdk.jobs import Job
from codeq.wire.errors import Unauthenticated

log = logging.getLogger("codeq.worker")

BEATS_PER_LEASE = 3
TICK_S = 0.25
BEATS_AT_ONCE = 32

Lost = Callable[[str, str], None]
"""Told the key of a job that is no longer ours, and the code of why."""


class Pulse(msgspec.Struct, array_like=True, gc=False):
    """A job to keep: all that a heartbeat needs."""

    id: str
    worker: str
    token: int
    lease_ms: int

    @property
    def key(self) -> str:
        """As `Job.key`."""
        return f"{self.id} {self.token}"


class Heart(Protocol):
    def hold(self, pulses: Sequence[Pulse]) -> None: ...

    def release(self, keys: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


class Beating:
    """Beats for what it is told to hold, on the running event loop."""

    def __init__(self, backend: Backend, lost: Lost) -> None:
        self._backend = backend
        self._lost = lost
        self._held: dict[str, tuple[Pulse, float]] = {}
        self._beating: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._ticking = self._loop.create_task(self._tick())

    def hold(self, pulses: Sequence[Pulse]) -> None:
        now_s = self._loop.time()
        for pulse in pulses:
            self._held[pulse.key] = pulse, now_s + pulse.lease_ms / 1000 / BEATS_PER_LEASE

    def release(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._held.pop(key, None)

    async def close(self) -> None:
        self._ticking.cancel()
        for beat in self._beating:
            beat.cancel()
        await asyncio.gather(self._ticking, *self._beating, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._loop.time()
            due = [pulse for pulse, due_s in self._held.values() if due_s <= now_s]
            for pulse in due[: BEATS_AT_ONCE - len(self._beating)]:
                # Should it not come through, the next try is soon: a lease has room for several.
                self._held[pulse.key] = pulse, now_s + pulse.lease_ms / 1000 / (BEATS_PER_LEASE * 4)
                beat = self._loop.create_task(self._beat(pulse))
                self._beating.add(beat)
                beat.add_done_callback(self._beating.discard)

    async def _beat(self, pulse: Pulse) -> None:
        job = Job(pulse.id, "", b"null", Holder(pulse.worker, pulse.token))
        try:
            await self._backend.heartbeat(job, pulse.lease_ms)
        except (Refused, NotFound) as refusal:
            if self._held.pop(pulse.key, None) is not None:
                self._lost(pulse.key, refusal.code)
        except Unauthenticated as refusal:
            self._lost("", refusal.code)
        except CodeqError as fault:
            log.warning("a heartbeat did not come through: %s", fault)
        else:
            if pulse.key in self._held:
                self._held[pulse.key] = pulse, self._loop.time() + pulse.lease_ms / 1000 / BEATS_PER_LEASE


class Told(msgspec.Struct, array_like=True, gc=False):
    """One line to the heart's process: where to beat, what to hold, what to let go."""

    url: str = ""
    given: dict[str, Any] = {}
    hold: list[Pulse] = []
    release: list[str] = []


class HeartProcess:
    """A `Beating` in a process of its own. Restarted, and told everything again, should it end."""

    def __init__(self, url: str, given: dict[str, Any], lost: Lost) -> None:
        self._url = url
        self._given = given
        self._lost = lost
        self._held: dict[str, Pulse] = {}
        self._pipe: asyncio.StreamWriter | None = None
        self._running = asyncio.get_running_loop().create_task(self._run())

    def hold(self, pulses: Sequence[Pulse]) -> None:
        for pulse in pulses:
            self._held[pulse.key] = pulse
        self._tell(Told(hold=list(pulses)))

    def release(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._held.pop(key, None)
        self._tell(Told(release=list(keys)))

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    def _tell(self, told: Told) -> None:
        if self._pipe is not None and not self._pipe.is_closing():
            self._pipe.write(_encode(told) + b"\n")

    async def _run(self) -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "codeq.sdk.worker.heart", stdin=-1, stdout=-1, start_new_session=True
            )
            try:
                self._pipe = process.stdin
                token = self._given["token"]
                known = {**self._given, "token": token() if callable(token) else token}
                self._tell(Told(self._url, known, list(self._held.values())))
                await self._listen(process)
            finally:
                self._pipe = None
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            log.warning("the heart of this worker stopped and is started again")
            await asyncio.sleep(0.1)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            key, _, code = line.decode().strip().rpartition(" ")
            if code == Unauthenticated.code:
                return  # started anew, with a new token
            self._held.pop(key, None)
            self._lost(key, code)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Told).decode


async def live() -> None:
    """The process: told what to do on its standard input, tells key and code of what was lost, ends with its parent."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    heart: Beating | None = None
    while line := await reader.readline():
        told = _decode(line)
        if heart is None:
            client = AsyncClient(told.url, **{**told.given, "retry_for": 2})
            heart = Beating(client.backend, _say)
        heart.hold(told.hold)
        heart.release(told.release)


def _say(key: str, code: str) -> None:
    sys.stdout.write(f"{key} {code}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(live())
