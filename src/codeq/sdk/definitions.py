"""A task that is declared once, and is then enqueued and awaited like an ordinary function, with its types.

@codeq.task("resize", max_attempts=3)
def resize(image: str, width: int = 640) -> Thumbnail: ...

task = resize.enqueue(image="cat.png")     # or: client.enqueue(resize, image="cat.png")
thumbnail = client.wait(task)              # a Thumbnail
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from copy import copy
from functools import WRAPPER_ASSIGNMENTS
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from codeq.domain import validation
from codeq.domain.errors import InvalidRequest
from codeq.domain.requests import NewTask
from codeq.sdk.durations import Seconds
from codeq.sdk.new_tasks import EnqueueOptions, new_task_of
from codeq.sdk.signature import TaskSignature
from codeq.sdk.tasks import Task, TypedTask

if TYPE_CHECKING:
    from codeq.sdk.blocking import BlockingVerbs
    from codeq.sdk.verbs import Verbs
    from codeq.sdk.worker.options import HandlerOptions

P = ParamSpec("P")
R = TypeVar("R")
ENQUEUED = ("priority", "max_attempts", "backoff", "webhook")
"""Options of a declaration that each of its tasks is enqueued with."""


class HasQueue(Protocol):
    """A worker, as its tasks see it."""

    def queue_of_tasks(self) -> "Verbs | BlockingVerbs":
        """The queue that the worker's tasks are enqueued to."""


class TaskDefinition(Generic[P, R]):
    """A command with the function for its tasks. Call it to run the function here and now.

    Without a worker's queue, tasks go to the server of CODEQ_URL with the token of CODEQ_TOKEN.
    """

    def __init__(
        self,
        command: str,
        function: Callable[..., Any],
        *,
        options: EnqueueOptions | None = None,
        handler_options: "HandlerOptions | None" = None,
        worker: HasQueue | None = None,
    ) -> None:
        self.command = validation.name(command, "command")
        self.function = function
        self.signature = TaskSignature(function)
        self.enqueue_options: EnqueueOptions = options or {}
        self.handler_options = handler_options or {}
        self.worker = worker
        for name in WRAPPER_ASSIGNMENTS:
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))

    def options(self, **options: Unpack[EnqueueOptions]) -> Self:
        """The same task with options of `enqueue`: `resize.options(priority=9, delay=60).enqueue(image="cat.png")`."""
        changed = copy(self)
        changed.enqueue_options = {**self.enqueue_options, **options}
        return changed

    def merged(self, options: "HandlerOptions") -> "HandlerOptions":
        """The options of the declaration, as far as these do not override them."""
        return {**self.handler_options, **options}

    def new_task(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """A task for `enqueue_many` and `batcher.put`. Raises PayloadInvalid if the arguments do not fit."""
        return new_task_of(self.command, self.signature.encode(args, kwargs), self.enqueue_options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TypedTask[R]:
        """Enqueues a call of the function with these arguments. It is on disk when this returns."""
        queue = self._queue()
        if _is_async(queue):
            raise InvalidRequest(
                f"the queue of {self.command!r} is asynchronous: `await {self.command}.enqueue_async()`"
            )
        enqueued: TypedTask[R] = queue.enqueue(self, *args, **kwargs)
        return enqueued

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> TypedTask[R]:
        """As `enqueue`, without blocking the event loop."""
        enqueued: TypedTask[R] = await self._await(lambda queue: queue.enqueue(self, *args, **kwargs))
        return enqueued

    def wait(self, task: Task | str, timeout: Seconds = 60) -> R:
        """Waits until the task, or the one with this id, has ended, and returns its result. As `wait` of a client."""
        queue = self._queue()
        if _is_async(queue):
            raise InvalidRequest(f"the queue of {self.command!r} is asynchronous: await `wait_async`")
        result: R = queue.wait(task, timeout, of=self)
        return result

    async def wait_async(self, task: Task | str, timeout: Seconds = 60) -> R:  # noqa: ASYNC109 - the server waits
        """As `wait`, without blocking the event loop."""
        result: R = await self._await(lambda queue: queue.wait(task, timeout, of=self), is_long=True)
        return result

    async def _await(self, call: Callable[[Any], Any], *, is_long: bool = False) -> Any:
        queue = self._queue()
        if not _is_async(queue) and queue.backend.client_options is None:
            queue = queue.as_async()
        if _is_async(queue):
            return await call(queue)
        # Connections of an async client belong to one event loop, and this object to none. So a long call has one of
        # its own, and others are made in a thread: an event loop has few of them, which the program needs too.
        if is_long:
            async with queue.as_async() as waiting:
                return await call(waiting)
        return await asyncio.to_thread(call, queue)

    def _queue(self) -> Any:
        if self.worker is not None:
            return self.worker.queue_of_tasks()
        from codeq.sdk.default_queue import default_queue  # noqa: PLC0415 - a client imports this module

        return default_queue()

    def __repr__(self) -> str:
        return f"<task {self.command}: {self.signature.name}>"

    def __reduce__(self) -> str:
        return self.signature.name  # found by its name in its module, as functions are


class PlainTaskDefinition(TaskDefinition[P, R]):
    """The definition of a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result


class AsyncTaskDefinition(TaskDefinition[P, R]):
    """The definition of an `async` function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        call: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return call


class Declare(Protocol):
    """The decorator that `task` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTaskDefinition[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTaskDefinition[P, R]: ...


def task(command: str | None = None, **options: "Unpack[HandlerOptions]") -> Declare:
    """Declares a function as the one for tasks of this command, by default of its own name. `worker.add` registers it
    with a worker. Takes the options of `Worker.task`, and what is said here of priority, attempts and backoff is sent
    with every task.

    The payload has the arguments, decoded and checked by the annotations: JSON types, dataclasses, TypedDicts,
    msgspec.Structs and pydantic models. A parameter that is annotated as RunningJob, or called `job` without an
    annotation, gets the job.
    """

    check_decorator(command, "codeq.task")

    def declare(function: Callable[..., Any], /) -> Any:
        return define(command, function, options)

    return declare


def define(
    command: str | None,
    function: Callable[..., Any],
    options: "HandlerOptions",
    *,
    worker: HasQueue | None = None,
) -> TaskDefinition[Any, Any]:
    from codeq.sdk.worker.options import check_names  # noqa: PLC0415 - workers import this module

    check_names(options)
    function = function.function if isinstance(function, TaskDefinition) else function
    kind = AsyncTaskDefinition if is_async(function) else PlainTaskDefinition
    enqueued: Any = {name: options[name] for name in ENQUEUED if options.get(name) is not None}  # type: ignore[literal-required]
    name = getattr(function, "__name__", "") if command is None else command
    return kind(name, function, options=enqueued, handler_options=options, worker=worker)


def check_decorator(command: Any, name: str) -> None:
    if callable(command):
        raise InvalidRequest(f"write @{name}() with parentheses; the command may be in them")


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _is_async(queue: Any) -> bool:
    from codeq.sdk.verbs import Verbs  # noqa: PLC0415 - it imports this module

    return isinstance(queue, Verbs)
