"""Starts, kills and stops the processes of the demo: the server and the workers."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

from codeq.demo.redis_store import DemoStore
from codeq.domain.errors import CodeqError
from codeq.wire import paths

START_S_MAX = 60.0
STOP_S_MAX = 15.0
LOG_CHARS_SHOWN = 2000

_ADDRESS = re.compile(r"at http://[^ ]*:(\d+), (?:data|tasks) in")


class DemoFailed(CodeqError):
    """The demo cannot continue: a process ended unexpectedly, or something took too long."""

    code = "demo-failed"


class ChildProcess:
    """A process with its output in a file. It ends when this process does, even if this one is killed."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.is_expected_to_run = False

    def start(self, target: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(  # noqa: S603 - our own code
                [sys.executable, "-m", "codeq.demo.die_with_parent", target, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**_environment(), **(env or {})},
                start_new_session=True,  # Ctrl-C reaches this process alone, which stops the others
            )
        self.is_expected_to_run = True

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        if self.is_expected_to_run and not self.is_running:
            code = self._process.returncode if self._process else None
            raise DemoFailed(f"{self.name} exited unexpectedly with {code}:\n{self.log_end()}")

    def has_logged(self, text: str) -> bool:
        return self.log.exists() and text in self.log.read_text(errors="replace")

    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_CHARS_SHOWN:] if self.log.exists() else ""

    def kill(self) -> None:
        """Sends SIGKILL and waits for the exit."""
        self.is_expected_to_run = False
        if self._process is not None and self.is_running:
            self._process.kill()
            self._process.wait()

    async def stop(self) -> None:
        """Sends SIGTERM, and SIGKILL if it has not ended after STOP_S_MAX."""
        self.is_expected_to_run = False
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGTERM)
            await wait_until(lambda: not self.is_running, STOP_S_MAX)
            self.kill()


class ServerProcess(ChildProcess):
    """`codeq serve --dev`, which restarts on the same data and the same port."""

    def __init__(
        self, folder: Path, store: DemoStore | None = None, *, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__("server", folder / "server.log")
        self.data = folder / "data"
        self.port = 0
        self._env = {}
        if store is not None:
            self._env = {"CODEQ_STORE_URL": store.url, "CODEQ_STORE_PREFIX": store.prefix}
            self._env["CODEQ_ARTIFACTS_URL"] = (folder / "artifacts").absolute().as_uri()
        self._env.update(settings or {})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self) -> None:
        """Starts the server and returns once it answers."""
        arguments = ["serve", "--dev", "--data", str(self.data), "--port", str(self.port)]
        self.start("codeq.cli.main:app", *arguments, env=self._env)
        deadline_s = monotonic() + START_S_MAX
        while not await self._answers():
            self.check()
            if monotonic() > deadline_s:
                raise DemoFailed(f"the server did not answer within {START_S_MAX:.0f} s:\n{self.log_end()}")
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


async def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits until the condition holds, at most this long. Returns whether it does."""
    deadline_s = monotonic() + seconds
    while not condition() and monotonic() < deadline_s:  # noqa: ASYNC110 - other processes set no events
        await asyncio.sleep(0.05)
    return condition()


def _environment() -> dict[str, str]:
    """This process's variables without settings for another codeQ server."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CODEQ_", "OTEL_"))}
