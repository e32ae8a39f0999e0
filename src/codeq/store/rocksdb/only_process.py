"""The peers of a store that one process has to itself."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from codeq.domain.queue import QueueKey
from codeq.domain.task import Task
from codeq.store.interface import Listener

_log = logging.getLogger("codeq")


class OnlyProcess:
    """Implements `store.interface.Peers`: nobody else has the directory open, so only its own listeners are told."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners: list[Listener] = []
        self._on_ready: list[Callable[[QueueKey, int], None]] = []
        self._on_moved: list[Callable[[Sequence[Task]], None]] = []
        self._on_flushed: list[Callable[[int, float], None]] = []
        for listener in listeners:
            self.add_listener(listener)

    @property
    def tells_emptied(self) -> bool:
        return False

    def add_listener(self, listener: Listener) -> None:
        """Calls the listener from now on; for what happens with every call, only where it does something."""
        kind = type(listener)
        self._listeners.append(listener)
        if kind.ready is not Listener.ready:
            self._on_ready.append(listener.ready)
        if kind.moved is not Listener.moved:
            self._on_moved.append(listener.moved)
        if kind.flushed is not Listener.flushed:
            self._on_flushed.append(listener.flushed)

    def notify_ready(self, queue: QueueKey) -> None:
        self.report_ready(queue, 1)

    def watch(self, queues: Sequence[QueueKey]) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        return contextlib.nullcontext()

    def watch_moves(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def is_sweeper(self, shard: int) -> bool:  # noqa: ARG002
        return True

    # -- called by the shards ------------------------------------------------------------------------------------

    def report_ready(self, queue: QueueKey, tasks: int) -> None:
        for ready in self._on_ready:
            ready(queue, tasks)

    def report_moved(self, tasks: Sequence[Task]) -> None:
        for moved in self._on_moved:
            moved(tasks)

    def report_withdrawn(self, task: Task) -> None:
        for listener in self._listeners:
            listener.withdrawn(task)

    def report_policy(self, queue: QueueKey) -> None:
        for listener in self._listeners:
            listener.policies_changed([queue])

    def report_unreadable(self, path: Path, key: bytes, reason: str) -> None:
        fields = {"key": key.hex(), "reason": reason, "path": str(path)}
        _log.error("a stored record cannot be read; all others are served", extra={"fields": fields})
        for listener in self._listeners:
            listener.unreadable(key, reason)

    def report_flushed(self, calls: int, seconds: float) -> None:
        for flushed in self._on_flushed:
            flushed(calls, seconds)
