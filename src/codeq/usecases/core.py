"""What every use case works with, and the one rule they share: nothing is answered before it is on disk."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from codeq.domain.ids import IdMint
from codeq.domain.queue import OnExpiry, QueueKey, QueuePolicy
from codeq.domain.task import Task
from codeq.store.interface import Store
from codeq.usecases.waiters import Waiters

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Core:
    store: Store
    waiters: Waiters
    defaults: QueuePolicy
    ids: IdMint
    random: Callable[[], float]

    def policy(self, tenant: str, command: str) -> QueuePolicy:
        policies = self.store.policies()
        return (policies.get((tenant, command)) or self.defaults) if policies else self.defaults  # type: ignore[call-overload]

    def retry_ms(self, task: Task) -> int:
        """How long the task waits if its present delivery fails."""
        backoff = task.backoff or self.policy(task.tenant, task.command).backoff
        return backoff.delay_ms(task.attempts + 1, self.random)

    def expiry_retry_ms(self, task: Task) -> int:
        immediate = self.policy(task.tenant, task.command).on_expiry is OnExpiry.IMMEDIATE
        return 0 if immediate else self.retry_ms(task)

    def keep_ms(self, task: Task) -> int:
        return self.policy(task.tenant, task.command).retention_ms

    def keep_dead_ms(self, task: Task) -> int:
        return self.policy(task.tenant, task.command).dead_retention_ms

    def freed(self, task: Task) -> None:
        """A place in the task's queue is free: where places are limited, that is as good as a new task."""
        if self.store.policies() and self.policy(task.tenant, task.command).max_consumers:
            self.waiters.ready(QueueKey(task.tenant, task.command), 1)


def durable(
    verb: Callable[Concatenate[Core, Given], Awaitable[Answer]],
) -> Callable[Concatenate[Core, Given], Coroutine[Any, Any, Answer]]:
    """Make the verb answer, or refuse, only when all that it did and saw is on disk."""

    @wraps(verb)
    async def settled(core: Core, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        try:
            return await verb(core, *args, **kwargs)
        except asyncio.CancelledError:
            raise
        finally:
            await core.store.flush()

    return settled
