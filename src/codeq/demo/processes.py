"""The processes of the demo: a server that can be killed and started again where it was, and workers."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

from codeq.domain.errors import CodeqError
from codeq.wire import paths

START_S_MAX = 60.0
STOP_S_MAX = 15.0
LOG_CHARS_SHOWN = 2000

_ADDRESS = re.compile(r"at http://[^ ]*:(\d+), data in")


class DemoFailed(CodeqError):
    """The demo cannot go on: something ended that should not have, or took too long."""

    code = "demo-failed"


class Child:
    """One process of ours, with its output in a file. It ends with this process, however this one ends."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.is_expected_to_run = False

    def start(self, target: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", "codeq.demo.die_with_parent", target, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**_environment(), **(env or {})},
                start_new_session=True,  # Ctrl-C is for us; we tell the others
            )
        self.is_expected_to_run = True

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        if self.is_expected_to_run and not self.is_running:
            code = self._process.returncode if self._process else None
            raise DemoFailed(f"{self.name} ended by itself with {code}:\n{self.last_words()}")

    def has_said(self, text: str) -> bool:
        return self.log.exists() and text in self.log.read_text(errors="replace")

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_CHARS_SHOWN:] if self.log.exists() else ""

    def kill(self) -> None:
        """kill -9, and wait until it is gone, which takes no time."""
        self.is_expected_to_run = False
        if self._process is not None and self.is_running:
            self._process.kill()
            self._process.wait()

    async def stop(self) -> None:
        """Ask it to end, and insist after a while."""
        self.is_expected_to_run = False
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGTERM)
            await until(lambda: not self.is_running, STOP_S_MAX)
            self.kill()


class ServerProcess(Child):
    """`codeq serve --dev`, always on the same data, and after its first start on the same port."""

    def __init__(self, folder: Path) -> None:
        super().__init__("server", folder / "server.log")
        self.data = folder / "data"
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self) -> None:
        """Start it, and return once it answers."""
        self.start("codeq.cli.main:app", "serve", "--dev", "--data", str(self.data), "--port", str(self.port))
        deadline_s = monotonic() + START_S_MAX
        while not await self._answers():
            self.check()
            if monotonic() > deadline_s:
                raise DemoFailed(f"the server did not answer within {START_S_MAX:.0f} s:\n{self.last_words()}")
            await asyncio.sleep(0.05)

    async def _answers(self) -> bool:
        if not self.port:
            found = _ADDRESS.search(self.log.read_text(errors="replace"))
            if not found:
                return False
            self.port = int(found[1])
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(f"GET {paths.HEALTHZ} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
                line = await reader.readline()
                writer.close()
        except OSError:  # TimeoutError is one
            return False
        return b" 200 " in line


async def until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is so, at most this long. Answers whether it is."""
    deadline_s = monotonic() + seconds
    while not is_so() and monotonic() < deadline_s:  # noqa: ASYNC110 - other processes set no events
        await asyncio.sleep(0.05)
    return is_so()


def _environment() -> dict[str, str]:
    """Without settings of codeQ that are meant for another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CODEQ_", "OTEL_"))}
