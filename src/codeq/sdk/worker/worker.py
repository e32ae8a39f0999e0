"""Registers functions for commands, `@worker.task("render_video", lease=60)`, and runs them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from codeq.domain import validation
from codeq.domain.backoff import Backoff
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import ATTEMPTS_MAX, BATCH_TASKS_MAX, CLAIM_COMMANDS_MAX, LEASE_MS_MAX
from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.client import AsyncClient
from codeq.sdk.durations import Seconds, milliseconds
from codeq.sdk.verbs import Verbs
from codeq.sdk.worker.handler import Handler, Middleware, PoolKind, is_async, wants_job

Function = TypeVar("Function", bound=Callable[..., Any])
Source = str | Verbs | BlockingVerbs

END_S = 1.0
WORKER_LEASE_MS_MIN = 1_000
"""Room for three heartbeats, each of which may take a moment on a busy machine."""


class Worker:
    """Runs functions for tasks: register them with `task`, and call `run`, which works until SIGTERM or Ctrl-C.

    Plain functions run in threads, or with `processes=True` in child processes, which may crash without harm; `async`
    functions run on the event loop. Tasks are claimed ahead and results are sent in batches.
    """

    def __init__(
        self,
        queue: Source | None = None,
        *,
        concurrency: int = 16,
        processes: bool = False,
        lease: Seconds = 60,
        grace: Seconds = 30,
        prefetch: int | None = None,
        health: str | None = None,
        silence: Seconds = 60,
        name: str = "worker",
    ) -> None:
        """`queue` is a server's address, a client or an opened queue. `concurrency` is how many handlers run at once,
        of each kind (threads, processes, the event loop). `lease` is how long a lease lasts without a heartbeat, and so
        how long the jobs of a killed worker wait. `grace` is how long running handlers may continue after a signal to
        stop. `prefetch` bounds how many jobs are held; by default about a tenth of a second's work. `health` is the
        `host:port` of a page for probes; it answers 503 after `silence` without an answer from the queue. `name` is the
        name of the worker for a queue in the same process."""
        self.concurrency = _concurrency(concurrency)
        if prefetch is not None:
            validation.integer(prefetch, "prefetch", concurrency, BATCH_TASKS_MAX)
        self.queue = queue
        self.processes = processes
        self.lease_ms = _lease_ms(lease)
        self.grace_s = _seconds(grace, "grace")
        self.silence_s = _seconds(silence, "silence", least_s=1)
        self.prefetch = prefetch
        self.health = health
        self.name = name
        self.handlers: dict[str, Handler] = {}
        self._middleware: list[Middleware] = []

    def task(
        self,
        command: str,
        *,
        lease: Seconds | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
        process: bool | None = None,
    ) -> Callable[[Function], Function]:
        """Registers the function for tasks of this command. It gets the payload, and the job as a second argument if it
        takes one; it returns the result. It may raise or return `Retry(delay)` or `Fail(error)`; any other error is a
        failed try.

        `max_attempts` sends a task to the dead-letter queue earlier than its own limit, `backoff` replaces the task's
        own, `timeout` ends a try that takes longer, `process` overrides `processes` for this function.
        """
        validation.name(command, "command")
        if command in self.handlers:
            raise InvalidRequest(f"two functions for the command {command!r}")
        if len(self.handlers) >= CLAIM_COMMANDS_MAX:
            raise InvalidRequest(f"a worker has functions for at most {CLAIM_COMMANDS_MAX} commands")
        if max_attempts is not None:
            validation.integer(max_attempts, "max_attempts", 1, ATTEMPTS_MAX)

        def register(function: Function) -> Function:
            self.handlers[command] = Handler(
                command=command,
                function=function,
                pool=self._pool_kind(function, process),
                lease_ms=self.lease_ms if lease is None else _lease_ms(lease),
                timeout_s=None if timeout is None else _seconds(timeout, "timeout", least_s=0.001),
                max_attempts=max_attempts,
                backoff=backoff,
                wants_job=wants_job(function),
                middleware=self._middleware,
            )
            return function

        return register

    def middleware(self, function: Middleware) -> Middleware:
        """Wraps every handler: the function gets the job and a function that calls the handler, and returns the result.
        The middleware that is registered first is the outermost.

        For an `async` handler the call returns an awaitable. An `async` middleware requires that all handlers are
        `async`."""
        self._middleware.append(function)
        return function

    def configure(
        self,
        *,
        concurrency: int | None = None,
        processes: bool | None = None,
        grace: Seconds | None = None,
        health: str | None = None,
    ) -> None:
        """Overrides options of the program; None leaves one as it is. For command lines and deployments."""
        if concurrency is not None:
            self.concurrency = _concurrency(concurrency)
        if grace is not None:
            self.grace_s = _seconds(grace, "grace")
        if health is not None:
            self.health = health
        if processes is not None:
            self.processes = processes
            pool = PoolKind.PROCESS if processes else PoolKind.THREAD
            for command, handler in self.handlers.items():
                if handler.pool is not PoolKind.LOOP:
                    self.handlers[command] = msgspec.structs.replace(handler, pool=pool)

    def run(self, queue: Source | None = None, *, until_idle: bool = False) -> None:
        """Works until SIGTERM or Ctrl-C, or with `until_idle` until no task is ready any more."""
        # Not `asyncio.run`, which would wait for ever for an async handler that ignores its cancellation.
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self.run_async(queue, until_idle=until_idle, signals=True))
        finally:
            loop.run_until_complete(_cancel_all_tasks())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def run_async(self, queue: Source | None = None, *, until_idle: bool = False, signals: bool = False) -> None:
        """As `run`, on the running event loop. A cancellation stops it as a signal does."""
        from codeq.sdk.worker.runner import Runner  # noqa: PLC0415 - programs that only register functions need not load it

        source = queue if queue is not None else self.queue
        if source is None:
            raise InvalidRequest("the worker has no queue: pass a server's address or a queue to Worker() or run()")
        if not self.handlers:
            raise InvalidRequest("the worker has no functions: register some with @worker.task")
        self._check_middleware()
        verbs = AsyncClient(source) if isinstance(source, str) else source.as_async()
        try:
            await Runner(self, verbs.backend, until_idle=until_idle).run(signals=signals)
        finally:
            if verbs is not source:
                await verbs.close()

    @property
    def commands(self) -> Sequence[str]:
        """The commands that have a function."""
        return tuple(self.handlers)

    def _check_middleware(self) -> None:
        plain = [command for command, handler in self.handlers.items() if handler.pool is not PoolKind.LOOP]
        if plain and any(is_async(function) for function in self._middleware):
            raise InvalidRequest(f"an async middleware cannot wrap plain functions, as that of {plain[0]!r}")

    def _pool_kind(self, function: Callable[..., Any], process: bool | None) -> PoolKind:
        if is_async(function):
            if process:
                raise InvalidRequest("an async function runs on the event loop, not in a process")
            return PoolKind.LOOP
        return PoolKind.PROCESS if (self.processes if process is None else process) else PoolKind.THREAD


async def _cancel_all_tasks() -> None:
    """Cancels every other task of this event loop, and waits for them, but not for ever: handlers may ignore it."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_S)


def _concurrency(value: int) -> int:
    return validation.integer(value, "concurrency", 1, BATCH_TASKS_MAX)


def _seconds(value: Seconds, what: str, *, least_s: float = 0) -> float:
    seconds = milliseconds(value) / 1000
    if seconds < least_s:
        raise InvalidRequest(f"{what} is at least {least_s:g} s, not {value}")
    return seconds


def _lease_ms(lease: Seconds) -> int:
    lease_ms = milliseconds(lease)
    if not WORKER_LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise InvalidRequest(f"a worker's lease is 1 s to {LEASE_MS_MAX // 3_600_000} h, not {lease}")
    return lease_ms
