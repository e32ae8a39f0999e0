"""Which function does which command, and with what care: `@worker.task("render_video", lease=60)`."""

import asyncio
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from codeq.domain.backoff import Backoff
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import ATTEMPTS_MAX, BATCH_TASKS_MAX, CLAIM_COMMANDS_MAX, LEASE_MS_MAX, NAME_PATTERN
from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.client import AsyncClient
from codeq.sdk.durations import Seconds, milliseconds
from codeq.sdk.verbs import Verbs
from codeq.sdk.worker.execution import Handler, Middleware, Place, wants_job

Function = TypeVar("Function", bound=Callable[..., Any])
Source = str | Verbs | BlockingVerbs

END_S = 1.0
LEASE_MS_LEAST = 1_000
"""Three heartbeats, each of which may take a moment on a busy machine, must fit in."""


class Worker:
    """Functions for tasks. `run` works until it is told to stop (SIGTERM, Ctrl-C).

    Plain functions run in threads, or with `processes=True` each in a child process, which may crash without harm;
    `async` functions run on the event loop. Tasks are fetched ahead and results are sent in batches.
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
        of each kind (threads, processes, the event loop). `lease` is how long a job is kept without a heartbeat, so how
        long the jobs of a killed worker wait. `grace` is how long running handlers may go on once it is told to stop.
        `prefetch` bounds how many jobs are held; if not said, about a tenth of a second's work. `health` is `host:port`
        of a page for probes; it says 503 after `silence` without word from the queue. `name` is who works, on a queue
        inside the process."""
        self.concurrency = _concurrency(concurrency)
        if prefetch is not None and not (_is_whole(prefetch) and concurrency <= prefetch <= BATCH_TASKS_MAX):
            raise InvalidRequest(f"prefetch is at least the concurrency and at most {BATCH_TASKS_MAX}, not {prefetch}")
        self.queue = queue
        self.processes = processes
        self.lease_ms = _lease_ms(lease)
        self.grace_s = _seconds(grace, "grace")
        self.silence_s = _seconds(silence, "silence", least_s=1)
        self.prefetch = prefetch
        self.health = health
        self.name = name
        self.handlers: dict[str, Handler] = {}
        self._around: list[Middleware] = []

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
        """Have the function do the tasks of this command. It gets the payload, and the job as a second argument if it
        takes one; what it returns is the result. It may raise or return `Retry(delay)` or `Fail(error)`; any other
        error is a failed try.

        `max_attempts` buries a task earlier than its own limit says, `backoff` replaces its own, `timeout` ends a try
        that takes longer, `process` says where this one runs.
        """
        if not isinstance(command, str) or not re.fullmatch(NAME_PATTERN, command):
            raise InvalidRequest(f"a command is 1 to 64 letters, digits, '_', '.' or '-', not {command!r}")
        if command in self.handlers:
            raise InvalidRequest(f"two functions for the command {command!r}")
        if len(self.handlers) >= CLAIM_COMMANDS_MAX:
            raise InvalidRequest(f"a worker does at most {CLAIM_COMMANDS_MAX} commands")
        if max_attempts is not None and not (_is_whole(max_attempts) and 1 <= max_attempts <= ATTEMPTS_MAX):
            raise InvalidRequest(f"max_attempts is 1 to {ATTEMPTS_MAX}, not {max_attempts}")

        def register(function: Function) -> Function:
            self.handlers[command] = Handler(
                command=command,
                function=function,
                place=self._place(function, process),
                lease_ms=self.lease_ms if lease is None else _lease_ms(lease),
                timeout_s=None if timeout is None else _seconds(timeout, "timeout", least_s=0.001),
                max_attempts=max_attempts,
                backoff=backoff,
                wants_job=wants_job(function),
                around=self._around,
            )
            return function

        return register

    def middleware(self, around: Middleware) -> Middleware:
        """Wrap every handler: called with the job and a function that calls the handler, and answers its result. The
        one declared first is the outermost.

        Around an `async` handler that function answers an awaitable. An `async` middleware is for workers whose
        handlers all are."""
        self._around.append(around)
        return around

    def configure(
        self,
        *,
        concurrency: int | None = None,
        processes: bool | None = None,
        grace: Seconds | None = None,
        health: str | None = None,
    ) -> None:
        """Replace what the program said; None leaves it. For who starts the worker: a command line, a deployment."""
        if concurrency is not None:
            self.concurrency = _concurrency(concurrency)
        if grace is not None:
            self.grace_s = _seconds(grace, "grace")
        if health is not None:
            self.health = health
        if processes is not None:
            self.processes = processes
            place = Place.PROCESS if processes else Place.THREAD
            for command, handler in self.handlers.items():
                if handler.place is not Place.LOOP:
                    self.handlers[command] = msgspec.structs.replace(handler, place=place)

    def run(self, queue: Source | None = None, *, until_idle: bool = False) -> None:
        """Work until told to stop, or with `until_idle` until nothing is ready any more."""
        # Not `asyncio.run`, which would wait for ever for an async handler that does not heed its cancellation.
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self.run_async(queue, until_idle=until_idle, signals=True))
        finally:
            loop.run_until_complete(_end_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def run_async(self, queue: Source | None = None, *, until_idle: bool = False, signals: bool = False) -> None:
        """As `run`, on the running event loop. Cancel it to stop it as a signal would."""
        from codeq.sdk.worker.runner import Runner  # noqa: PLC0415 - who only declares tasks needs none of it

        source = queue if queue is not None else self.queue
        if source is None:
            raise InvalidRequest("where from? give Worker(queue) or run(queue) a server's address or a queue")
        if not self.handlers:
            raise InvalidRequest("this worker has no tasks; declare some with @worker.task")
        self._check_middleware()
        verbs = as_async(source)
        try:
            await Runner(self, verbs, until_idle=until_idle).run(signals=signals)
        finally:
            if verbs is not source:
                await verbs.close()

    @property
    def commands(self) -> Sequence[str]:
        """Which commands have a function."""
        return tuple(self.handlers)

    def _check_middleware(self) -> None:
        plain = [command for command, handler in self.handlers.items() if handler.place is not Place.LOOP]
        if plain and any(_is_async(around) for around in self._around):
            raise InvalidRequest(f"an async middleware cannot wrap plain functions, as that of {plain[0]!r}")

    def _place(self, function: Callable[..., Any], process: bool | None) -> Place:
        if _is_async(function):
            if process:
                raise InvalidRequest("an async function runs on the event loop, not in a process")
            return Place.LOOP
        return Place.PROCESS if (self.processes if process is None else process) else Place.THREAD


def as_async(source: Source) -> Verbs:
    """The same queue, to be awaited."""
    if isinstance(source, str):
        return AsyncClient(source)
    return source.as_async() if isinstance(source, BlockingVerbs) else source


def _concurrency(wanted: int) -> int:
    if not _is_whole(wanted) or not 1 <= wanted <= BATCH_TASKS_MAX:
        raise InvalidRequest(f"concurrency is 1 to {BATCH_TASKS_MAX}, not {wanted}")
    return wanted


async def _end_all() -> None:
    """Cancel what still runs on this event loop, and wait for it as long as handlers may take to heed that."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_S)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _seconds(value: Seconds, what: str, *, least_s: float = 0) -> float:
    seconds = milliseconds(value) / 1000
    if seconds < least_s:
        raise InvalidRequest(f"{what} is at least {least_s:g} s, not {value}")
    return seconds


def _lease_ms(lease: Seconds) -> int:
    lease_ms = milliseconds(lease)
    if not LEASE_MS_LEAST <= lease_ms <= LEASE_MS_MAX:
        raise InvalidRequest(f"a worker's lease is 1 s to {LEASE_MS_MAX // 3_600_000} h, not {lease}")
    return lease_ms
