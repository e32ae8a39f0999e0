"""The queue inside your process, for blocking calls from any thread: a thin runner over `aio`."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from codeq.domain.errors import StoreClosed
from codeq.embedded.aio import AsyncQueue, open_async

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def open(path: str | os.PathLike[str], *, tenant: str = "default", **options: Any) -> "Queue":  # noqa: A001
    """Open the data directory for blocking calls from any thread. Takes the options of `open_async`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="codeq", daemon=True)
    thread.start()
    try:
        inner = asyncio.run_coroutine_threadsafe(open_async(path, tenant=tenant, **options), loop).result()
    except BaseException:
        _stop(loop, thread)
        raise
    return Queue(inner, loop, thread)


def _blocking(
    verb: Callable[Concatenate[AsyncQueue, Given], Coroutine[Any, Any, Answer]],
) -> Callable[Concatenate["Queue", Given], Answer]:
    @wraps(verb)
    def call(self: "Queue", /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        future = self._submit(verb(self._inner, *args, **kwargs))
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupted caller leaves no claim behind
            raise

    return call


def _bridged(
    verb: Callable[Concatenate[AsyncQueue, Given], Coroutine[Any, Any, Answer]],
) -> Callable[Concatenate["Bridge", Given], Coroutine[Any, Any, Answer]]:
    @wraps(verb)
    async def call(self: "Bridge", /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        return await asyncio.wrap_future(self._queue._submit(verb(self._queue._inner, *args, **kwargs)))

    return call


class Bridge:
    """The verbs of a `Queue`, to be awaited from any event loop."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue

    enqueue = _bridged(AsyncQueue.enqueue)
    enqueue_many = _bridged(AsyncQueue.enqueue_many)
    claim = _bridged(AsyncQueue.claim)
    heartbeat = _bridged(AsyncQueue.heartbeat)
    complete = _bridged(AsyncQueue.complete)
    complete_many = _bridged(AsyncQueue.complete_many)
    fail = _bridged(AsyncQueue.fail)
    nack = _bridged(AsyncQueue.nack)
    abandon = _bridged(AsyncQueue.abandon)
    cancel = _bridged(AsyncQueue.cancel)
    replay = _bridged(AsyncQueue.replay)
    replay_dead = _bridged(AsyncQueue.replay_dead)
    purge = _bridged(AsyncQueue.purge)
    purge_dead = _bridged(AsyncQueue.purge_dead)
    get = _bridged(AsyncQueue.get)
    history = _bridged(AsyncQueue.history)
    list = _bridged(AsyncQueue.list)
    queues = _bridged(AsyncQueue.queues)
    set_policy = _bridged(AsyncQueue.set_policy)
    backup = _bridged(AsyncQueue.backup)


class Queue:
    """The verbs of `AsyncQueue` as plain calls, from any thread. Awaitable ones are under `aio`."""

    def __init__(self, inner: AsyncQueue, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._inner = inner
        self._loop = loop
        self._thread = thread
        self._is_open = True
        self.tenant = inner.tenant
        self.aio = Bridge(self)

    enqueue = _blocking(AsyncQueue.enqueue)
    enqueue_many = _blocking(AsyncQueue.enqueue_many)
    claim = _blocking(AsyncQueue.claim)
    heartbeat = _blocking(AsyncQueue.heartbeat)
    complete = _blocking(AsyncQueue.complete)
    complete_many = _blocking(AsyncQueue.complete_many)
    fail = _blocking(AsyncQueue.fail)
    nack = _blocking(AsyncQueue.nack)
    abandon = _blocking(AsyncQueue.abandon)
    cancel = _blocking(AsyncQueue.cancel)
    replay = _blocking(AsyncQueue.replay)
    replay_dead = _blocking(AsyncQueue.replay_dead)
    purge = _blocking(AsyncQueue.purge)
    purge_dead = _blocking(AsyncQueue.purge_dead)
    get = _blocking(AsyncQueue.get)
    history = _blocking(AsyncQueue.history)
    list = _blocking(AsyncQueue.list)
    queues = _blocking(AsyncQueue.queues)
    set_policy = _blocking(AsyncQueue.set_policy)
    backup = _blocking(AsyncQueue.backup)

    def for_tenant(self, tenant: str) -> "Queue":
        """The same store seen as another tenant. Closing is left to the one that was opened."""
        return Queue(self._inner.for_tenant(tenant), self._loop, self._thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for what is under way to reach the disk, and let go of the directory. Closing twice is harmless."""
        if self._is_open:
            self._is_open = False
            try:
                asyncio.run_coroutine_threadsafe(self._inner.close(), self._loop).result()
            finally:
                _stop(self._loop, self._thread)

    def _submit(self, verb: Coroutine[Any, Any, Answer]) -> "Future[Answer]":
        if not self._is_open or self._loop.is_closed():
            verb.close()
            raise StoreClosed("this queue was closed")
        return asyncio.run_coroutine_threadsafe(verb, self._loop)


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
