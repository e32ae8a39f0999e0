"""Registers functions for commands, `@worker.task("render_video", lease=60)`, and runs them."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

import msgspec

from codeq.domain import validation
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import ATTEMPTS_MAX, BATCH_TASKS_MAX, CLAIM_COMMANDS_MAX, LEASE_MS_MAX
from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.client import AsyncClient, Client
from codeq.sdk.default_queue import default_queue
from codeq.sdk.definitions import Declare, TaskDefinition, check_decorator, define, is_async
from codeq.sdk.durations import Seconds, milliseconds
from codeq.sdk.signature import BatchSignature
from codeq.sdk.verbs import Verbs
from codeq.sdk.worker.handler import Batching, Handler, Middleware, PoolKind
from codeq.sdk.worker.hooks import Hook
from codeq.sdk.worker.options import HandlerOptions, check_names, error_rules
from codeq.sdk.worker.processes import ChildLimits
from codeq.sdk.worker.task_logs import logging_without_setup

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
AnyHook = TypeVar("AnyHook", bound=Hook)
Source = str | Verbs | BlockingVerbs

END_S = 1.0
WORKER_LEASE_MS_MIN = 1_000
"""Room for three heartbeats, each of which may take a moment on a busy machine."""


class DeclareBatch(Protocol):
    """The decorator that `Worker.batch` returns."""

    @overload
    def __call__(self, function: Callable[[list[T]], Awaitable[Sequence[R] | None]], /) -> TaskDefinition[[T], R]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], Sequence[R] | None], /) -> TaskDefinition[[T], R]: ...


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
        threads: int | None = None,
        child_processes: int | None = None,
        coroutines: int | None = None,
        processes: bool = False,
        lease: Seconds = 60,
        grace: Seconds = 30,
        prefetch: int | None = None,
        max_tasks_per_child: int | None = None,
        max_mb_per_child: int | None = None,
        health: str | None = None,
        silence: Seconds = 60,
        name: str = "worker",
    ) -> None:
        """`queue` is a server's address, a client or an opened queue. `concurrency` is how many handlers run at once,
        of each kind; `threads`, `child_processes` and `coroutines` say it for one kind. `processes` has plain functions
        run in child processes. `lease` is how long a lease lasts without a heartbeat, and so how long the jobs of a
        killed worker wait. `grace` is how long running handlers may continue after a signal to stop. `prefetch` bounds
        how many jobs of each kind are held; by default about a tenth of a second's work. `max_tasks_per_child` replaces
        a child process after so many tasks, `max_mb_per_child` one that uses more memory: after its task, or at once if
        it grows during one, which costs that task an attempt. `health` is the `host:port` of a page for probes; it
        answers 503 after `silence` without an answer from the queue. `name` is the name of the worker for a queue in
        the same process."""
        self.concurrency = _slots(concurrency, "concurrency")
        given = {PoolKind.THREAD: threads, PoolKind.PROCESS: child_processes, PoolKind.LOOP: coroutines}
        names = {PoolKind.THREAD: "threads", PoolKind.PROCESS: "child_processes", PoolKind.LOOP: "coroutines"}
        self._slots = {kind: _slots(number, names[kind]) for kind, number in given.items() if number is not None}
        if prefetch is not None:
            least = max([concurrency, *self._slots.values()])
            validation.integer(prefetch, "prefetch (at least as many as run at once)", least, BATCH_TASKS_MAX)
        self.queue = _source(queue)
        self.processes = processes
        self.lease_s = _lease_ms(lease) / 1000
        self.grace_s = _seconds(grace, "grace")
        self.silence_s = _seconds(silence, "silence", least_s=1)
        self.prefetch = prefetch
        self.child_limits = ChildLimits(
            tasks=_at_least_one(max_tasks_per_child, "max_tasks_per_child"),
            megabytes=_at_least_one(max_mb_per_child, "max_mb_per_child"),
        )
        self.health = health
        self.name = name
        self.handlers: dict[str, Handler] = {}
        self.failure_hooks: list[Hook] = []
        self.death_hooks: list[Hook] = []
        self._middleware: list[Middleware] = []
        self._client_lock = threading.Lock()
        self._client: Client | None = None
        self._run_source: Source | None = None

    def slots(self, kind: PoolKind) -> int:
        """How many handlers of this kind run at once."""
        return self._slots.get(kind, self.concurrency)

    @overload
    def task(self, command: str | None = None, **options: Unpack[HandlerOptions]) -> Declare: ...
    @overload
    def task(
        self, command: TaskDefinition[P, R], **options: Unpack[HandlerOptions]
    ) -> "Callable[[Callable[P, Any]], TaskDefinition[P, R]]": ...
    def task(self, command: Any = None, **options: Unpack[HandlerOptions]) -> Any:
        """Registers the function for tasks of this command, by default of its own name. The payload has its arguments,
        checked by their annotations; a parameter that is annotated as RunningJob, or called `job` without an
        annotation, gets the job. It returns the result. It may raise or return `Retry`, `Fail`, `Bury` or `Snooze`; any
        other error is a failed try.

        `command` may be a declared task, whose implementation the function is. The decorated function has `enqueue`.

        `lease` is that of this handler. `timeout` ends a try that takes longer. `process` overrides `processes` of the
        worker. `max_attempts` and `backoff` are sent with each task that is enqueued by the function, and apply to
        others too, as far as those allow as many attempts. With `retry_on` only these errors are tried again, each
        after its own backoff if it is a mapping, and any other moves the task to the dead-letter queue; those of
        `fail_on` end the task as FAILED.
        """
        declared = command if isinstance(command, TaskDefinition) else None
        if declared is None:
            check_decorator(command, "worker.task")
        if declared is None and command is not None:
            self._check_new(validation.name(command, "command"))

        def register(function: Callable[..., Any]) -> Any:
            name, given = (command, options) if declared is None else (declared.command, declared.merged(options))
            definition = define(name, function, given, worker=self)
            self._register(definition, given)
            if declared is not None:
                self._own(declared)
            return definition

        return register

    def add(self, *definitions: TaskDefinition[Any, Any], **options: Unpack[HandlerOptions]) -> None:
        """Registers functions that were declared with `codeq.task`. `options` override those of the declaration."""
        check_names(options)
        for definition in definitions:
            if not isinstance(definition, TaskDefinition):
                raise InvalidRequest(f"add takes functions declared with @codeq.task(), not {definition!r:.80}")
            self._register(definition, definition.merged(options))
            self._own(definition)

    def batch(
        self, command: str, *, size: int = 100, wait: Seconds = 1, **options: Unpack[HandlerOptions]
    ) -> DeclareBatch:
        """Registers a function that takes the payloads of up to `size` tasks as a list, once there are so many or the
        first has waited for `wait`. It returns None, or a list with the result of each, in which `Retry`, `Fail`,
        `Bury` and `Snooze` decide for one task. An error that it raises is a failed try of all of them."""
        check_decorator(command, "worker.batch")
        batching = Batching(validation.integer(size, "size", 1, BATCH_TASKS_MAX), _seconds(wait, "wait"))
        if options.get("process"):
            raise InvalidRequest("a handler of batches runs in a thread or on the event loop, not in a process")

        def register(function: Callable[..., Any]) -> Any:
            definition = define(command, function, options, worker=self)
            definition.signature = BatchSignature(definition.function)
            self._register(definition, {**options, "process": False}, batching)
            return definition

        return register

    def on_failure(self, hook: AnyHook) -> AnyHook:
        """Has the function called with a `Failure` after each failed try: plain functions in a thread, `async` ones on
        the event loop. What it raises is logged."""
        self.failure_hooks.append(hook)
        return hook

    def on_death(self, hook: AnyHook) -> AnyHook:
        """As `on_failure`, when this worker has moved a task to the dead-letter queue. Tasks whose last worker died
        are moved there by the server, which no worker sees: use webhooks for those."""
        self.death_hooks.append(hook)
        return hook

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
            self.concurrency = _slots(concurrency, "concurrency")
            self._slots.clear()
        if grace is not None:
            self.grace_s = _seconds(grace, "grace")
        if health is not None:
            self.health = health
        if processes is not None:
            self.processes = processes
            pool = PoolKind.PROCESS if processes else PoolKind.THREAD
            for command, handler in self.handlers.items():
                if handler.pool is not PoolKind.LOOP and handler.batching is None:
                    self.handlers[command] = msgspec.structs.replace(handler, pool=pool, pool_name=pool.value)

    def run(self, queue: Source | None = None, *, until_idle: bool = False) -> None:
        """Works until SIGTERM or Ctrl-C, or with `until_idle` until no task is ready any more."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise InvalidRequest("an event loop is running here already, as in a notebook: await worker.run_async()")
        # Not `asyncio.run`, which would wait for ever for an async handler that ignores its cancellation.
        loop = asyncio.new_event_loop()
        try:
            with logging_without_setup():
                loop.run_until_complete(self.run_async(queue, until_idle=until_idle, signals=True))
        finally:
            loop.run_until_complete(_cancel_all_tasks())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def run_async(self, queue: Source | None = None, *, until_idle: bool = False, signals: bool = False) -> None:
        """As `run`, on the running event loop. A cancellation stops it as a signal does."""
        from codeq.sdk.worker.runner import Runner  # noqa: PLC0415 - programs that only register functions need not load it

        source = _source(queue) if queue is not None else self.queue
        if source is None:
            raise InvalidRequest("the worker has no queue: pass a server's address or a queue to Worker() or run()")
        if not self.handlers:
            raise InvalidRequest("the worker has no functions: register some with @worker.task")
        self._check_middleware()
        verbs = AsyncClient(source) if isinstance(source, str) else source.as_async()
        self._run_source = source
        try:
            await Runner(self, verbs.backend, until_idle=until_idle).run(signals=signals)
        finally:
            self._run_source = None  # which may be closed next
            if verbs is not source:
                await verbs.close()

    @property
    def commands(self) -> Sequence[str]:
        """The commands that have a function."""
        return tuple(self.handlers)

    def queue_of_tasks(self) -> Verbs | BlockingVerbs:
        """The queue that the worker's tasks are enqueued to: its own, that of its run, or that of the environment."""
        source = self.queue if self.queue is not None else self._run_source
        if not isinstance(source, str):
            return source if source is not None else default_queue()
        with self._client_lock:
            self._client = self._client or Client(source)
        return self._client

    def _own(self, definition: TaskDefinition[Any, Any]) -> None:
        if definition.worker is None:
            definition.worker = self

    def _check_new(self, command: str) -> None:
        if command in self.handlers:
            raise InvalidRequest(f"two functions for the command {command!r}")
        if len(self.handlers) >= CLAIM_COMMANDS_MAX:
            raise InvalidRequest(f"a worker has functions for at most {CLAIM_COMMANDS_MAX} commands")

    def _register(
        self,
        definition: TaskDefinition[Any, Any],
        options: HandlerOptions,
        batching: Batching | None = None,
    ) -> None:
        self._check_new(definition.command)
        lease, timeout, max_attempts = options.get("lease"), options.get("timeout"), options.get("max_attempts")
        if max_attempts is not None:
            validation.integer(max_attempts, "max_attempts", 1, ATTEMPTS_MAX)
        pool, backoff = self._pool_kind(definition.function, options.get("process")), options.get("backoff")
        self.handlers[definition.command] = Handler(
            command=definition.command,
            pool_name=pool.value if batching is None else f"batch {definition.command}",
            function=definition.function,
            signature=definition.signature,
            pool=pool,
            lease_ms=_lease_ms(self.lease_s if lease is None else lease),
            timeout_s=None if timeout is None else _seconds(timeout, "timeout", least_s=0.001),
            max_attempts=max_attempts,
            backoff=None if backoff is None else validation.backoff(backoff),
            errors=error_rules(options.get("retry_on"), options.get("fail_on", ())),
            middleware=self._middleware,
            batching=batching,
        )

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


def _source(queue: Source | None) -> Source | None:
    if queue is not None and not isinstance(queue, str | Verbs | BlockingVerbs):
        raise InvalidRequest(f"a queue is a server's address, a client or an opened queue, not {queue!r:.80}")
    return queue


def _slots(value: int, what: str) -> int:
    return validation.integer(value, what, 1, BATCH_TASKS_MAX)


def _at_least_one(value: int | None, what: str) -> int | None:
    return None if value is None else validation.integer(value, what, 1, 1_000_000_000)


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
