"""The peers of a store that one process has to itself."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from codeq.domain.queue import QueueKey
from codeq.store.interface import Listener


class OnlyProcess:
    """Implements `store.interface.Peers`: nobody else has the directory open, so only its own listeners are told."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = list(listeners)

    def add_listener(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def notify_ready(self, queue: QueueKey) -> None:
        for listener in self.listeners:
            listener.ready(queue, 1)

    def watch(self, queues: Sequence[QueueKey]) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        return contextlib.nullcontext()

    async def is_sweeper(self, shard: int) -> bool:  # noqa: ARG002
        return True
