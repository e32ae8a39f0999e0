"""Plain calls instead of awaited ones: a thin runner over `Verbs`, never a second copy."""

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from codeq.domain.requests import NewTask
from codeq.sdk.batcher import Answers, Batcher
from codeq.sdk.verbs import Seconds, Verbs, milliseconds

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def _plain(
    verb: Callable[Concatenate[Verbs, Given], Coroutine[Any, Any, Answer]],
) -> Callable[Concatenate["BlockingVerbs", Given], Answer]:
    @wraps(verb)
    def call(self: "BlockingVerbs", /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        return self._run(verb(self._verbs, *args, **kwargs))

    return call


class BlockingVerbs:
    """The verbs of `Verbs` as plain calls."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    enqueue = _plain(Verbs.enqueue)
    enqueue_many = _plain(Verbs.enqueue_many)
    claim = _plain(Verbs.claim)
    heartbeat = _plain(Verbs.heartbeat)
    complete = _plain(Verbs.complete)
    complete_many = _plain(Verbs.complete_many)
    fail = _plain(Verbs.fail)
    nack = _plain(Verbs.nack)
    abandon = _plain(Verbs.abandon)
    cancel = _plain(Verbs.cancel)
    wait = _plain(Verbs.wait)
    get = _plain(Verbs.get)
    history = _plain(Verbs.history)
    list = _plain(Verbs.list)
    queues = _plain(Verbs.queues)
    replay = _plain(Verbs.replay)
    purge = _plain(Verbs.purge)
    replay_dead = _plain(Verbs.replay_dead)
    purge_dead = _plain(Verbs.purge_dead)
    cleanup = _plain(Verbs.cleanup)
    policy = _plain(Verbs.policy)
    set_policy = _plain(Verbs.set_policy)
    pause = _plain(Verbs.pause)
    resume = _plain(Verbs.resume)
    events = _plain(Verbs.events)

    def batcher(self, *, size: int = 500, linger: Seconds = 0.005) -> Batcher:
        """Enqueues that travel together: sent when `size` of them wait, or the first has waited for `linger`."""

        def prepare(orders: Sequence[NewTask]) -> Callable[[], Answers]:
            send = self._verbs.backend.prepare_enqueue(orders)
            return lambda: self._run(send())

        return Batcher(prepare, size=size, linger_s=milliseconds(linger) / 1000)

    def as_async(self) -> Verbs:
        """The same queue, to be awaited."""
        raise NotImplementedError

    def close(self) -> None:
        self._run(self._verbs.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, verb: Coroutine[Any, Any, Answer]) -> Answer:
        raise NotImplementedError


def run_blocking(verb: Coroutine[Any, Any, Answer]) -> Answer:
    """Runs a coroutine over a blocking transport, which never suspends, to its end in one step."""
    try:
        verb.send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    raise AssertionError("a blocking transport never suspends")
