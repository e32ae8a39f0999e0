"""The code-review application in its own processes, the queues it runs on, and repositories to review."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import httpx
from examples.code_review.database import Database
from examples.code_review.reviews import Finding, Review, Status
from examples.code_review.sample_repository import GitRepository, make_repository
from examples.code_review.sample_webhooks import Commits, Webhook
from examples.code_review.settings import Settings, read_settings
from tests.redis_servers import start_node
from tests.server.server_process import Server, eventually, launch

from codeq.wire.local_server import DEV_TOKEN

PROJECT = Path(__file__).parents[2]
REPOSITORY = "acme/shop"
SECRETS = {"github": "of-github", "gitlab": "of-gitlab", "gitea": "of-gitea"}
START_S_MAX = 30.0
DONE_S_MAX = 90.0


class QueueServer(Protocol):
    """A queue that can be stopped and started again, at the same address and with the same data."""

    @property
    def url(self) -> str: ...
    def stop(self) -> None: ...
    def start(self) -> None: ...


class CodeqServer:
    """The codeQ service as a queue."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: Server = launch(folder)
        self.url = self._server.base

    def stop(self) -> None:
        assert self._server.stop() == 0

    def start(self) -> None:
        self._server = launch(self._folder, port=int(self.url.rpartition(":")[2]))


@contextmanager
def queue_server(kind: str, folder: Path) -> Iterator[QueueServer]:
    if kind == "redis":
        with start_node(folder, appendonly="yes", appendfsync="always") as node:
            yield node
    else:
        server = CodeqServer(folder)
        try:
            yield server
        finally:
            server.stop()


class Application:
    """The processes of the application, and what it has stored."""

    def __init__(self, folder: Path, queue: str, **settings: str) -> None:
        self.folder = folder
        self.repositories = folder / "repositories"
        self._log = folder / "processes.log"
        self._running: list[subprocess.Popen[bytes]] = []
        self.url = ""
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "CODE_REVIEW_QUEUE": queue,
            "CODE_REVIEW_DATA": str(folder),
            "CODE_REVIEW_PORT": "0",
            "CODE_REVIEW_LOCK_SECONDS": "2",
            "CODE_REVIEW_RETRY_SECONDS": "0.2",
            "CODEQ_TOKEN": DEV_TOKEN,
            **{f"CODE_REVIEW_{name.upper()}_SECRET": secret for name, secret in SECRETS.items()},
            **{f"CODE_REVIEW_{name.upper()}": value for name, value in settings.items()},
        }
        self.database = Database(self.settings.database)

    @property
    def settings(self) -> Settings:
        return read_settings(self.environment)

    def start_web(self) -> "subprocess.Popen[bytes]":
        out = self.folder / "web.out"
        out.write_text("")
        process = self._start("web", {})

        def address() -> str:
            assert process.poll() is None, self.log()
            found = re.search(r"reviews at (\S+)", out.read_text())
            return found[1] if found else ""

        self.url = eventually(address, START_S_MAX)
        eventually(self._answers, START_S_MAX)
        return process

    def start_worker(self, **settings: str) -> "subprocess.Popen[bytes]":
        return self._start("worker", settings)

    def post(self, webhook: Webhook) -> httpx.Response:
        return httpx.post(self.url + webhook.path, content=webhook.body, headers=dict(webhook.headers), trust_env=False)

    def get(self, path: str = "/") -> httpx.Response:
        return httpx.get(self.url + path, trust_env=False)

    def reviews(self) -> list[Review]:
        """Returns all reviews, in the order in which they were recorded."""
        return self.database.reviews(1000)[::-1]

    def wait_until_ended(self) -> list[Review]:
        def ended() -> list[Review]:
            reviews = self.reviews()
            return reviews if all(each.status in (Status.DONE, Status.FAILED) for each in reviews) else []

        try:
            return eventually(ended, DONE_S_MAX, every_s=0.1)
        except AssertionError:
            raise AssertionError(self.log()[-6000:]) from None

    def findings(self, review_id: int) -> list[Finding]:
        found = self.database.review(review_id)
        assert found is not None
        return found[1]

    def is_all_offered(self) -> bool:
        with self.database.transaction(writes=False) as tx:
            rows = tx.execute("SELECT due_ms, received_ms FROM outbox JOIN reviews ON id = review_id").fetchall()
        return all(row["due_ms"] > row["received_ms"] for row in rows)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, what: str, settings: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        out = self.folder / f"{what}.out"
        with out.open("wb") as stdout, self._log.open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "examples.code_review", what],
                env={**os.environ, **self.environment, **settings},
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        self._running.append(process)
        return process

    def _answers(self) -> bool:
        try:
            return self.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def application(folder: Path, queue: str, **settings: str) -> Iterator[Application]:
    made = Application(folder, queue, **settings)
    try:
        yield made
    finally:
        made.close()


class Changes:
    """A repository in which every change has one defect, at a known place: an import that nobody uses."""

    def __init__(self, repositories: Path) -> None:
        self.git: GitRepository = make_repository(repositories / REPOSITORY)
        _, self.first = self.git.commit("main", {"shop.py": "PRICE = 1\n"}, "Start")

    def push(self, number: int, author: str = "ada") -> Commits:
        return self._change(f"push-{number}", number, author)

    def pull(self, number: int, author: str = "grace") -> Commits:
        return self._change(f"pull-{number}", number, author)

    def _change(self, branch: str, number: int, author: str) -> Commits:
        message = f"Change {number}"
        _, head = self.git.commit(branch, {f"module_{number}.py": "import os\n"}, message, start=self.first)
        return Commits(repository=REPOSITORY, branch=branch, base=self.first, head=head, message=message, author=author)


def expected_finding(number: int) -> Finding:
    return Finding(f"module_{number}.py", 1, "F401", "`os` imported but unused")
