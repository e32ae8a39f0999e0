"""How do programs test their use of codeQ? With a real queue in a temporary folder, whose clock the test moves.

    def test_a_signup_sends_a_mail():
        with codeq.testing.open() as queue:
            sign_up(queue, "ada@example.org")
            queue.assert_enqueued("mail", {"to": "ada@example.org"})
            queue.work(worker)                      # until no task is ready any more
            queue.advance(hours=1)                  # delayed tasks become ready

With pytest, the fixture `codeq_queue` is such a queue.
"""

import asyncio
import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Self

import msgspec

from codeq.domain.errors import InvalidRequest
from codeq.domain.task import Status
from codeq.embedded import AsyncQueue, Queue, open_async
from codeq.embedded.blocking import start
from codeq.sdk.queue_policies import QueuePolicy
from codeq.sdk.tasks import Task, record_of
from codeq.sdk.worker import Worker

ROUNDS_MAX = 1000
"""How often `work_off` moves the clock at most: more means that tasks enqueue new ones for ever."""

_ANY: Any = object()


class ClockForTests:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int | None = None) -> None:
        self.now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms

    def __call__(self) -> int:
        return self.now_ms

    def start_at(self, ms: int) -> None:
        self.now_ms = max(self.now_ms, ms)


class QueueForTests(Queue):
    """A queue with assertions. Nothing expires and no delay ends unless `advance` moves the clock."""

    def __init__(
        self, started: tuple[AsyncQueue, asyncio.AbstractEventLoop, threading.Thread], clock: ClockForTests, folder: str
    ) -> None:
        super().__init__(*started)
        self.clock = clock
        self._folder = folder

    def advance(self, seconds: float = 0, **time_units: float) -> None:
        """Moves the clock by seconds, or by the arguments of `timedelta` (minutes=5, hours=1)."""
        self.clock.now_ms += round((timedelta(**time_units).total_seconds() + seconds) * 1000)

    def work(self, worker: Worker) -> None:
        """Runs the worker until no task is ready any more. In a test that is `async`, which has an event loop already:
        `await worker.run_async(codeq_queue, until_idle=True)`."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise InvalidRequest(
                "an event loop is running here: await worker.run_async(queue, until_idle=True) instead"
            )
        asyncio.run(worker.run_async(self, until_idle=True))

    def work_off(self, worker: Worker) -> None:
        """As `work`, and moves the clock to each delay and retry in turn, until no task waits."""
        for _ in range(ROUNDS_MAX):
            self.work(worker)
            waiting = [task for task in self.tasks(status=Status.PENDING) if task.command in worker.commands]
            due_ms = [record_of(task).visible_ms for task in waiting]
            if not due_ms:
                return
            self.clock.now_ms = max(self.clock.now_ms, min(due_ms))
        raise AssertionError(f"tasks still wait after the clock was moved {ROUNDS_MAX} times")

    def tasks(self, command: str | None = None, *, status: Status | None = None) -> list[Task]:
        """All tasks, oldest first."""
        found: list[Task] = []
        cursor = None
        while True:
            page = self.list(command=command, status=status, cursor=cursor, limit=1000)
            found += page.tasks
            cursor = page.cursor
            if cursor is None:
                return found[::-1]

    def payloads(self, command: str) -> list[Any]:
        """The payloads of all tasks of the command, oldest first."""
        return [self.get(task.id).payload for task in self.tasks(command)]

    def assert_enqueued(self, command: str, payload: Any = _ANY, *, times: int | None = None, **task: Any) -> None:
        """Fails unless such a task was enqueued (exactly `times` times). `task` has its fields, such as priority=9."""
        matching = [
            details
            for details in (self.get(found.id) for found in self.tasks(command))
            if (payload is _ANY or details.payload == payload)
            and all(getattr(details.task, name) == value for name, value in task.items())
        ]
        if len(matching) == times or (times is None and matching):
            return
        wanted = "" if payload is _ANY else f" with {msgspec.json.encode(payload).decode()}"
        others = "".join(f"\n  {item!r}" for item in self.payloads(command)[:20]) or " none"
        raise AssertionError(
            f"expected {times or 'a'} {command} task{wanted}, found {len(matching)}; all {command} tasks:{others}"
        )

    def assert_not_enqueued(self, command: str, payload: Any = _ANY) -> None:
        self.assert_enqueued(command, payload, times=0)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(*, tenant: str = "default", defaults: QueuePolicy | None = None) -> QueueForTests:  # noqa: A001
    """Opens a new, empty queue in a temporary folder, which is removed when the queue is closed."""
    folder = tempfile.mkdtemp(prefix="codeq-test-")
    clock = ClockForTests()
    opening = open_async(folder, tenant=tenant, durability="process", defaults=defaults, clock=clock, sweeping=False)
    return QueueForTests(start(opening), clock, folder)


def fixture() -> Iterator[QueueForTests]:
    """The generator of the pytest fixture `codeq_queue`."""
    with open() as queue:
        yield queue
