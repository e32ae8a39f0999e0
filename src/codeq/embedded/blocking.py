"""A queue in the same process with blocking calls for any thread: its event loop runs in a thread of its own."""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from codeq.domain.errors import StoreClosed
from codeq.domain.requests import NewTask
from codeq.embedded.aio import AsyncQueue, open_async
from codeq.embedded.backend import CoreBackend
from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.verbs import Verbs

T = TypeVar("T")


def open(path: str | os.PathLike[str], *, tenant: str = "default", **options: Any) -> "Queue":  # noqa: A001
    """Opens the data directory for blocking calls from any thread. Takes the options of `open_async`."""
    return Queue(*start(open_async(path, tenant=tenant, **options)))


def start(
    opening: Coroutine[Any, Any, AsyncQueue],
) -> tuple[AsyncQueue, asyncio.AbstractEventLoop, threading.Thread]:
    """Opens a queue on an event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="codeq", daemon=True)
    thread.start()
    try:
        return asyncio.run_coroutine_threadsafe(opening, loop).result(), loop, thread
    except BaseException:
        _stop(loop, thread)
        raise


class CrossLoopBackend:
    """A backend of another event loop, whose verbs are awaited on the current one."""

    client_options = None

    def __init__(self, backend: CoreBackend, submit: "Callable[[Coroutine[Any, Any, Any]], Future[Any]]") -> None:
        self._backend = backend
        self._submit = submit

    def __getattr__(self, name: str) -> Any:
        return partial(self._cross, getattr(self._backend, name))

    def prepare_enqueue(self, new_tasks: Sequence[NewTask]) -> Callable[..., Coroutine[Any, Any, Any]]:
        return partial(self._cross, self._backend.prepare_enqueue(new_tasks))

    async def _cross(self, verb: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any) -> Any:
        return await asyncio.wrap_future(self._submit(verb(*args, **kwargs)))

    async def close(self) -> None:
        """Does nothing: the queue that was opened closes its store."""


class Queue(BlockingVerbs):
    """The verbs of `AsyncQueue` as blocking calls, from any thread; `aio` has them as coroutines for any event loop."""

    def __init__(self, inner: AsyncQueue, loop: asyncio.AbstractEventLoop, thread: threading.Thread | None) -> None:
        super().__init__(inner)
        self._inner = inner
        self._loop = loop
        self._thread = thread
        self._is_open = True
        self._pid = os.getpid()
        self._at_exit = partial(_close_at_exit, weakref.ref(self), os.getpid())
        if thread is not None:
            atexit.register(self._at_exit)
        self.tenant = inner.tenant
        self.aio = Verbs(CrossLoopBackend(CoreBackend(inner.core, inner.tenant), self._submit))

    def for_tenant(self, tenant: str) -> "Queue":
        """The same store as another tenant. Only closing the queue that was opened closes the store."""
        view = Queue(self._inner.for_tenant(tenant), self._loop, None)
        view._pid = self._pid
        return view

    def as_async(self) -> Verbs:
        """Returns `aio`: the same queue with coroutines, for any event loop."""
        return self.aio

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Writes a consistent copy into a new directory while the queue stays in use."""
        self._block_on(self._inner.backup(target))

    def close(self) -> None:
        """Waits until all changes are on disk, and releases the directory. May be called twice."""
        if self._is_open and self._thread is not None and self._pid == os.getpid():
            self._is_open = False
            atexit.unregister(self._at_exit)
            try:
                asyncio.run_coroutine_threadsafe(self._inner.close(), self._loop).result()
            finally:
                _stop(self._loop, self._thread)

    def _block_on(self, call: Coroutine[Any, Any, T]) -> T:
        future = self._submit(call)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupted caller leaves no claim behind
            raise

    def _submit(self, call: Coroutine[Any, Any, T]) -> "Future[T]":
        if self._pid != os.getpid():  # the event loop has no thread here, so the call would wait for ever
            call.close()
            raise StoreClosed("this queue was opened before the fork, by the parent process: open it after the fork, "
                              "in one process only; several processes need a server")  # fmt: skip
        if not self._is_open or self._loop.is_closed():
            call.close()
            raise StoreClosed("this queue was closed")
        return asyncio.run_coroutine_threadsafe(call, self._loop)


def _close_at_exit(queue: "weakref.ref[Queue]", pid: int) -> None:
    """Closes a queue that the program has left open: a thread that is still inside RocksDB when Python ends it aborts
    the process. A forked child has the queue without its thread, and leaves it alone."""
    if os.getpid() == pid and (opened := queue()) is not None:
        opened._loop.set_default_executor(_InlineExecutor())
        opened.close()


class _InlineExecutor(ThreadPoolExecutor):
    """Calls in the thread of the event loop what belongs in another: at exit Python starts no more threads."""

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        future: Future[T] = Future()
        future.set_result(call(*args, **kwargs))
        return future


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
