"""Functions of the program that are called when a try has failed, and when a task is dead."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from codeq.sdk.jobs import Job

log = logging.getLogger("codeq.worker")

HOOKS_S_MAX = 5.0
"""How long a worker that stops waits for hooks that still run."""


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

    def call(self, hooks: Sequence[Hook], failure: Failure) -> None:
        for hook in hooks:
            task = asyncio.get_running_loop().create_task(_call(hook, failure))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=HOOKS_S_MAX)


async def _call(hook: Hook, failure: Failure) -> None:
    try:
        if inspect.iscoroutinefunction(hook):
            await hook(failure)
        else:
            await asyncio.to_thread(hook, failure)
    except Exception:
        log.exception("a hook for failures of %s has failed itself", failure.command)
