"""Producers and workers on servers that share a Redis, through the SDK, with a record of what was acknowledged."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.sdk.clients import token_for
from tests.server.server_process import Server, eventually, launch

from codeq import Client, Task, new_tasks
from codeq.domain.errors import CodeqError

COMMAND = "work"
LARGE = "x" * 3000
"""A payload that is written beside the script."""
PAUSE_S = 0.01


def serve(
    folder: Path,
    url: str,
    *,
    name: str = "a",
    port: int = 0,
    before: Sequence[str] = (),
    store: Mapping[str, Any] | None = None,
) -> Server:
    """Starts a server on the Redis. Those of one folder accept each other's tokens."""
    settings = {"store": {"url": url, **(store or {})}}
    return launch(folder / name, settings=settings, data=folder / "keys", port=port, before=before)


class RedisLoad:
    """Two producers and some workers per server, until the end of the block; then the workers finish what there is."""

    def __init__(self, servers: Sequence[Server], *, workers: int = 3, retry_s: float = 60) -> None:
        self.acknowledged: list[str] = []
        self.completed: list[str] = []
        self.faults: list[CodeqError] = []
        """What a producer got after its repeats: whether the task exists is unknown."""
        self._is_over, self._is_drained = threading.Event(), threading.Event()
        token = token_for(servers[0])
        self._clients = [Client(server.base, token, retry_for=retry_s, timeout=10) for server in servers]
        self._producers = self._threads(self._enqueue, self._enqueue_many)
        self._workers = self._threads(*[self._work] * workers)

    def __enter__(self) -> Self:
        for thread in [*self._producers, *self._workers]:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        self._is_over.set()
        _join(self._producers)
        try:
            if kind is None:
                eventually(self._nothing_is_left, 60, every_s=0.1)
        finally:
            self._is_drained.set()
            _join(self._workers)
            for client in self._clients:
                client.close()

    def _threads(self, *works: Callable[[Client], None]) -> list[threading.Thread]:
        return [
            threading.Thread(target=work, args=(client,), daemon=True) for client in self._clients for work in works
        ]

    def _nothing_is_left(self) -> bool:
        found = self._clients[0].queues().values()
        return not any(queue.pending or queue.delayed or queue.in_progress for queue in found)

    def more(self, tasks: int = 60, within_s: float = 30) -> None:
        """Returns when so many further tasks were acknowledged, and some completed."""
        created, ended = len(self.acknowledged), len(self.completed)
        eventually(lambda: len(self.acknowledged) >= created + tasks and len(self.completed) > ended, within_s)

    def _enqueue(self, client: Client) -> None:
        while not self._is_over.wait(PAUSE_S):
            try:
                self.acknowledged.append(client.enqueue(COMMAND, "one").id)
            except CodeqError as fault:
                self.faults.append(fault)

    def _enqueue_many(self, client: Client) -> None:
        while not self._is_over.wait(PAUSE_S):
            try:
                answers = client.enqueue_many(new_tasks(COMMAND, ["many", LARGE, "many"]), refusals="return")
            except CodeqError as fault:
                self.faults.append(fault)
                continue
            self.acknowledged += [answer.id for answer in answers if isinstance(answer, Task)]
            self.faults += [answer for answer in answers if not isinstance(answer, Task)]

    def _work(self, client: Client) -> None:
        while not self._is_drained.is_set():
            jobs = []
            with suppress(CodeqError):  # claimed again when the lease is over
                jobs = client.claim(COMMAND, limit=5, lease=5, wait=0.5)
            if jobs:
                with suppress(CodeqError):
                    faults = client.complete_many(jobs, [{"ok": True}] * len(jobs))
                    self.completed += [job.id for job, fault in zip(jobs, faults, strict=True) if fault is None]


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(75)
    assert not any(thread.is_alive() for thread in threads)
