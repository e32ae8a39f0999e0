"""Functions of the program that are called when a try has failed, and when a task is dead."""

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from msgspec import Struct

from codeq.sdk.jobs import Job

log = logging.getLogger("codeq.worker")

HOOKS_S_MAX = 5.0
"""How long a worker that stops waits for hooks that still run."""
THREADS_MAX = 16
"""How many plain functions run at once."""


class Failure(Struct, frozen=True, kw_only=True):
    """What a hook is told of a try that failed."""

    job: Job
    error: str
    """In one line."""
    traceback: str
    """The end of it, or nothing if the handler asked for the outcome itself."""
    is_final: bool
    """Whether the task has ended, as FAILED or in the dead-letter queue."""

    @property
    def task_id(self) -> str:
        return self.job.id

    @property
    def command(self) -> str:
        return self.job.command

    @property
    def attempt(self) -> int:
        """1 for the first try."""
        return self.job.attempt


Hook = Callable[[Failure], Any]


class HookRunner:
    """Calls hooks beside the worker: plain functions in threads, coroutine functions on the event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(THREADS_MAX)

    def call(self, hooks: Sequence[Hook], failure: Failure) -> None:
        for hook in hooks:
            task = asyncio.get_running_loop().create_task(self._call(hook, failure))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=HOOKS_S_MAX)

    async def _call(self, hook: Hook, failure: Failure) -> None:
        if inspect.iscoroutinefunction(hook):
            try:
                await hook(failure)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException:  # noqa: BLE001 - whatever a hook does, it does not end the worker
                _log_fault(failure)
            return
        async with self._slots:
            await _in_thread(hook, failure)


async def _in_thread(hook: Hook, failure: Failure) -> None:
    """Calls a plain function in a thread that, unlike those of an executor, keeps no program from ending."""
    has_ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def call() -> None:
        try:
            hook(failure)
        except BaseException:  # noqa: BLE001 - as above
            _log_fault(failure)
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and the worker with it
            loop.call_soon_threadsafe(has_ended.set)

    threading.Thread(target=copy_context().run, args=(call,), name="codeq-hook", daemon=True).start()
    await has_ended.wait()


def _log_fault(failure: Failure) -> None:
    log.exception("a hook for failures of %s has failed itself", failure.command)
