"""The verbs as blocking calls: each runs the coroutine of `Verbs` to its end."""

import builtins
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from codeq.domain.errors import CodeqError
from codeq.domain.requests import NewTask
from codeq.sdk.backend import Backend
from codeq.sdk.batcher import Answers, Batcher
from codeq.sdk.definitions import TaskDefinition
from codeq.sdk.durations import Seconds, milliseconds
from codeq.sdk.new_tasks import EnqueueOptions
from codeq.sdk.tasks import Task, TypedTask
from codeq.sdk.verbs import Verbs

P = ParamSpec("P")
T = TypeVar("T")
D = ParamSpec("D")
R = TypeVar("R")


def _blocking(
    verb: Callable[Concatenate[Verbs, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["BlockingVerbs", P], T]:
    @wraps(verb)
    def call(self: "BlockingVerbs", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._block_on(verb(self._verbs, *args, **kwargs))

    return call


class BlockingVerbs:
    """The verbs of `Verbs` as blocking calls."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    @property
    def backend(self) -> Backend:
        return self._verbs.backend

    @overload
    def enqueue(self, task: TaskDefinition[D, R], /, *args: D.args, **kwargs: D.kwargs) -> TypedTask[R]: ...
    @overload
    def enqueue(self, command: str, /, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Task: ...
    def enqueue(self, command: Any, /, *args: Any, **kwargs: Any) -> Any:
        """As `Verbs.enqueue`."""
        return self._block_on(self._verbs.enqueue(command, *args, **kwargs))

    @overload
    def enqueue_many(
        self, tasks: Iterable[NewTask], *, refusals: Literal["raise"] = "raise"
    ) -> builtins.list[Task]: ...
    @overload
    def enqueue_many(
        self, tasks: Iterable[NewTask], *, refusals: Literal["return"]
    ) -> builtins.list[Task | CodeqError]: ...
    def enqueue_many(self, tasks: Iterable[NewTask], *, refusals: Any = "raise") -> Any:
        """As `Verbs.enqueue_many`."""
        return self._block_on(self._verbs.enqueue_many(tasks, refusals=refusals))

    @overload
    def wait(self, task: TypedTask[R], timeout: Seconds = 60) -> R: ...
    @overload
    def wait(self, task: Task | str, timeout: Seconds = 60, *, of: TaskDefinition[Any, R]) -> R: ...
    @overload
    def wait(self, task: Task | str, timeout: Seconds = 60) -> Any: ...
    def wait(self, task: Task | str, timeout: Seconds = 60, *, of: TaskDefinition[Any, Any] | None = None) -> Any:
        """As `Verbs.wait`."""
        waiting: Coroutine[Any, Any, Any] = self._verbs.wait(task, timeout, of=of)  # type: ignore[arg-type]
        return self._block_on(waiting)

    claim = _blocking(Verbs.claim)
    heartbeat = _blocking(Verbs.heartbeat)
    heartbeat_many = _blocking(Verbs.heartbeat_many)
    complete = _blocking(Verbs.complete)
    complete_many = _blocking(Verbs.complete_many)
    fail = _blocking(Verbs.fail)
    attach = _blocking(Verbs.attach)
    artifacts = _blocking(Verbs.artifacts)
    read_artifact = _blocking(Verbs.read_artifact)
    download_artifact = _blocking(Verbs.download_artifact)
    nack = _blocking(Verbs.nack)
    abandon = _blocking(Verbs.abandon)
    cancel = _blocking(Verbs.cancel)
    get = _blocking(Verbs.get)
    history = _blocking(Verbs.history)
    list = _blocking(Verbs.list)
    queues = _blocking(Verbs.queues)
    workers = _blocking(Verbs.workers)
    replay = _blocking(Verbs.replay)
    purge = _blocking(Verbs.purge)
    replay_dead = _blocking(Verbs.replay_dead)
    purge_dead = _blocking(Verbs.purge_dead)
    cleanup = _blocking(Verbs.cleanup)
    policy = _blocking(Verbs.policy)
    effective_policy = _blocking(Verbs.effective_policy)
    set_policy = _blocking(Verbs.set_policy)
    pause = _blocking(Verbs.pause)
    resume = _blocking(Verbs.resume)
    events = _blocking(Verbs.events)

    def batcher(self, *, size: int = 500, linger: Seconds = 0.005) -> Batcher:
        """Collects tasks that are enqueued one by one, and sends them as a batch once there are `size` of them, or once
        the first has waited for `linger`."""

        def prepare(new_tasks: Sequence[NewTask]) -> Callable[[bool], Answers]:
            send = self._verbs.backend.prepare_enqueue(new_tasks)
            return lambda retry: self._block_on(send(retry=retry))

        return Batcher(prepare, size=size, linger_s=milliseconds(linger) / 1000)

    def as_async(self) -> Verbs:
        """The same queue with coroutines as verbs."""
        raise NotImplementedError

    def close(self) -> None:
        self._block_on(self._verbs.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _block_on(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine to its end, and returns its value."""
        raise NotImplementedError


def run_blocking(call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine over a blocking transport, which never suspends, to its end in one step."""
    try:
        call.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("a blocking transport never suspends")
