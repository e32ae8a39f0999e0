"""The verbs as blocking calls: each runs the coroutine of `Verbs` to its end."""

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from codeq.domain.requests import NewTask
from codeq.sdk.batcher import Answers, Batcher
from codeq.sdk.durations import Seconds, milliseconds
from codeq.sdk.verbs import Verbs

P = ParamSpec("P")
T = TypeVar("T")


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

    enqueue = _blocking(Verbs.enqueue)
    enqueue_many = _blocking(Verbs.enqueue_many)
    claim = _blocking(Verbs.claim)
    heartbeat = _blocking(Verbs.heartbeat)
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
    wait = _blocking(Verbs.wait)
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

        def prepare(new_tasks: Sequence[NewTask]) -> Callable[[], Answers]:
            send = self._verbs.backend.prepare_enqueue(new_tasks)
            return lambda: self._block_on(send())

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
