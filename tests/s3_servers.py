"""S3 servers on loopback: moto's (`s3_moto.py`), with conditional puts, and rclone's, which ignores the condition."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.server.server_process import eventually

PROJECT = Path(__file__).parents[1]
BUCKET = "bucket"
SECRET = "s3-secret-of-the-tests"
_LISTENS = re.compile(r"http://127\.0\.0\.1:(\d+)")
UP_S_MAX = 60.0


def s3_environment(port: int) -> dict[str, str]:
    """Returns the variables by which programs reach the server."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def start_moto(folder: Path, port: int = 0) -> Iterator[dict[str, str]]:
    """Starts an S3 server that holds one bucket in memory. Yields the variables by which it is reached."""
    command = [sys.executable, "-m", "tests.s3_moto", "-H", "127.0.0.1", "-p", str(port)]
    with _started(command, folder / "moto.log") as listens:
        # No signature is checked, but the server finds out from it which of Amazon's services is meant.
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}
        httpx.put(f"http://127.0.0.1:{listens}/{BUCKET}", headers=signed, trust_env=False).raise_for_status()
        yield s3_environment(listens)


@contextmanager
def start_rclone(folder: Path) -> Iterator[dict[str, str]]:
    """Starts an S3 server over `folder`/s3, which holds the bucket."""
    root = folder / "s3"
    (root / BUCKET).mkdir(parents=True)
    command = [
        str(Path(sys.executable).with_name("rclone")), "serve", "s3", "--addr", "127.0.0.1:0",
        "--auth-key", f"key,{SECRET}", "--config", "", "--vfs-cache-mode", "writes", "--vfs-write-back", "0s",
        "--dir-cache-time", "100ms", "-v",
        str(root),
    ]  # fmt: skip
    with _started(command, folder / "rclone.log") as listens:
        yield s3_environment(listens)


@contextmanager
def lose_answers(folder: Path, port: int, *, commits: int, files: int = 0) -> Iterator[tuple[dict[str, str], Path]]:
    """Starts a server in front of another that loses the answers to some commits, and breaks off those with some files;
    see `s3_loss.py`. Yields the variables by which it is reached, and its log.
    """
    log = folder / "loss.log"
    with _started([sys.executable, "-m", "tests.s3_loss", str(port), str(commits), str(files)], log) as listens:
        yield s3_environment(listens), log


@contextmanager
def _started(command: Sequence[str], log: Path) -> Iterator[int]:
    """Yields the port that the program says it listens on."""
    with log.open("wb") as output, subprocess.Popen(command, cwd=PROJECT, stdout=output, stderr=output) as process:
        try:
            listens = eventually(lambda: _LISTENS.search(log.read_text()), UP_S_MAX)
            assert listens is not None, log.read_text()
            yield int(listens[1])
        finally:
            process.kill()
