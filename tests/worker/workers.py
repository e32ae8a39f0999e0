"""Workers for tests: in a thread of this process, or in a process of their own that can be stopped or killed.

with at_work(worker, queue):                        # until the block ends, then as a signal would stop it
    task = queue.enqueue("echo", 1)
    assert queue.wait(task.id, 10) == 1

with Program(tenant, {"echo": {"lease": 1}}, concurrency=2) as program:     # functions of handlers.py by name
    program.process.terminate()
    assert program.wait() == 0
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
from tests.server.server_process import Server, environment, eventually
from tests.worker import handlers

import codeq
from codeq.server.auth.principal import WORKER_SCOPES

ROOT = Path(__file__).parents[2]
NEVER = codeq.Backoff(codeq.BackoffKind.FIXED, 3_600_000, 3_600_000)
"""A task that failed with this stays where it is while the test looks."""
AT_ONCE = codeq.Backoff(codeq.BackoffKind.FIXED, 0, 0)
STOP_S_MAX = 30.0

_numbers = count(1)


class Tenant:
    """The queues of a new tenant, at an address that may be a detour to the server."""

    def __init__(self, url: str, server: Server) -> None:
        self.url = url
        scopes = [*sorted(WORKER_SCOPES), "codeq:admin", "codeq:events"]
        self.name = f"tenant-{next(_numbers)}"
        self.token = server.token(self.name, "worker", subject="tester", scopes=scopes)
        self.client = codeq.Client(url, self.token)

    def at(self, url: str) -> codeq.Client:
        """The same queues by another way."""
        return codeq.Client(url, self.token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        self.client.close()


class AtWork:
    """A worker in a thread of its own, and how it ended."""

    def __init__(self, worker: codeq.Worker, queue: Any) -> None:
        self._worker = worker
        self._queue = queue
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_begun = threading.Event()
        self.fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._has_begun.wait(10)

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def cancel(self) -> None:
        if self._loop is not None and self._task is not None and not self.is_over:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def wait(self) -> None:
        self._thread.join(STOP_S_MAX)
        assert self.is_over

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except (Exception, asyncio.CancelledError) as fault:  # noqa: BLE001 - for the test to look at
            self.fault = fault

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._worker.run_async(self._queue))
        self._has_begun.set()
        await self._task


@contextmanager
def at_work(worker: codeq.Worker, queue: Any) -> Iterator[AtWork]:
    working = AtWork(worker, queue)
    try:
        yield working
    finally:
        working.cancel()
        working.wait()
    if working.fault is not None and not isinstance(working.fault, asyncio.CancelledError):
        raise working.fault


def make_worker(tasks: Mapping[str, Mapping[str, Any]], **options: Any) -> codeq.Worker:
    """A worker for functions of handlers.py: the command is the function's name, or `function` says which it is."""
    worker = codeq.Worker(**options)
    for command, given in tasks.items():
        care = {name: value for name, value in given.items() if name != "function"}
        worker.task(command, **care)(getattr(handlers, given.get("function", command)))
    return worker


class Program:
    """A worker in a process of its own. `log` is the file with what it says."""

    def __init__(
        self,
        tenant: Tenant,
        tasks: Mapping[str, Mapping[str, Any]],
        *,
        log: Path,
        url: str | None = None,
        path: Path = ROOT,
        **options: Any,
    ) -> None:
        """`path` is one more folder for its imports."""
        said = json.dumps({"url": url or tenant.url, "token": tenant.token, "tasks": tasks, "options": options})
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(path)])
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.worker.worker_program", said],
                env=environment({"PYTHONPATH": paths}),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def family(self) -> list[psutil.Process]:
        """Its children, and theirs: the heartbeat process and those of handlers."""
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def heartbeat_process(self) -> psutil.Process:
        """The process that sends its heartbeats, once it is there."""
        return eventually(lambda: [each for each in self.family if is_heartbeat_process(each)])[0]

    def wait(self) -> int:
        return self.process.wait(STOP_S_MAX)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.kill()
        if fault is not None:
            print(self.log.read_text()[-4000:])  # noqa: T201 - shown with the failed test


def is_gone(process: psutil.Process | int) -> bool:
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return bool(found.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def is_heartbeat_process(process: psutil.Process) -> bool:
    try:
        return "codeq.sdk.worker.heartbeat_process" in process.cmdline()
    except psutil.Error:
        return False


def moves(queue: Any, task: codeq.Task) -> list[str]:
    """What happened to the task, move by move."""
    return [str(event.move) for event in queue.history(task.id)]


def all_tasks(queue: Any, command: str) -> Sequence[codeq.Task]:
    found: list[codeq.Task] = []
    cursor = None
    while True:
        page = queue.list(command=command, cursor=cursor, limit=1000)
        found += page.tasks
        cursor = page.cursor
        if cursor is None:
            return found
