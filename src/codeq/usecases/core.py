"""What every use case depends on, and the one rule they share: no verb returns before its changes are on disk."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from codeq.domain.ids import IdGenerator
from codeq.domain.queue import OnExpiry, QueueKey, QueuePolicy
from codeq.domain.task import Task
from codeq.store.interface import Store
from codeq.usecases.waiters import Waiters

P = ParamSpec("P")
T = TypeVar("T")


class Randomness(Protocol):
    """The part of `random.Random` in use. It need not be cryptographic: every id is looked up within its tenant, so
    knowing an id gives no right to its task."""

    def random(self) -> float: ...

    def randbytes(self, n: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Core:
    """A store with everything the use cases need besides it. Callers of use cases pass it on and read nothing but
    `now_ms` and `shards`."""

    store: Store
    waiters: Waiters
    defaults: QueuePolicy
    ids: IdGenerator
    random: Callable[[], float]
    bulk_reads: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for one piece of a long read: however many calls read, other calls wait for one piece at most."""

    def now_ms(self) -> int:
        return self.store.now_ms()

    @property
    def shards(self) -> int:
        return self.store.shards

    async def close(self) -> None:
        """Flushes, closes the store and refuses every later call."""
        await self.store.close()

    def policy(self, tenant: str, command: str) -> QueuePolicy:
        policies = self.store.policies()
        return (policies.get((tenant, command)) or self.defaults) if policies else self.defaults  # type: ignore[call-overload]

    def retry_ms(self, task: Task) -> int:
        """Returns how long the task waits if its current delivery fails."""
        backoff = task.backoff or self.policy(task.tenant, task.command).backoff
        return backoff.delay_ms(task.attempts + 1, self.random)

    def expiry_retry_ms(self, task: Task) -> int:
        immediate = self.policy(task.tenant, task.command).on_expiry is OnExpiry.IMMEDIATE
        return 0 if immediate else self.retry_ms(task)

    def retention_ms(self, task: Task) -> int:
        return self.policy(task.tenant, task.command).retention_ms

    def dead_retention_ms(self, task: Task) -> int:
        return self.policy(task.tenant, task.command).dead_retention_ms

    def slot_freed(self, task: Task) -> None:
        """Wakes a claim that `max_consumers` held back: a task that is no longer in progress frees a slot."""
        if self.store.policies() and self.policy(task.tenant, task.command).max_consumers:
            self.waiters.ready(QueueKey(task.tenant, task.command), 1)


def make_core(store: Store, waiters: Waiters, defaults: QueuePolicy, *, randomness: Randomness) -> Core:
    """Builds the core. The waiters must be among the store's listeners, or no waiting call is ever woken."""
    return Core(store, waiters, defaults, IdGenerator(randomness.randbytes), randomness.random)


def durable(
    verb: Callable[Concatenate[Core, P], Awaitable[T]],
) -> Callable[Concatenate[Core, P], Coroutine[Any, Any, T]]:
    """Makes the verb return, or raise, only when everything that it did and read is on disk."""

    @wraps(verb)
    async def flushed(core: Core, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await verb(core, *args, **kwargs)
        finally:
            await core.store.flush()

    return flushed
