"""What every use case depends on, and the one rule they share: no verb returns before its changes are on disk."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from msgspec import Struct

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import StoreError
from codeq.domain.ids import IdGenerator
from codeq.domain.limits import (
    INSPECT_TASKS_MAX,
    PROMOTE_TASKS_MAX,
    WEBHOOK_ATTEMPTS_DEFAULT,
    WEBHOOK_BACKOFF_BASE_MS,
    WEBHOOK_BACKOFF_MAX_MS,
    WEBHOOK_DELIVERIES_DEFAULT,
)
from codeq.domain.queue import WEBHOOKS, EffectivePolicy, OnExpiry, QueueKey, QueuePolicy, effective_policy
from codeq.domain.task import Change, Task
from codeq.domain.tenants import UNLIMITED, TenantLimits
from codeq.domain.webhooks import WebhookRules
from codeq.store.interface import Listener, Store
from codeq.usecases.artifact_storage import ArtifactStorage
from codeq.usecases.result_callbacks import with_deliveries
from codeq.usecases.traces import Spans
from codeq.usecases.turns import TenantsLock, Turns
from codeq.usecases.waiters import Waiters
from codeq.usecases.worker_registry import WorkerRegistry

P = ParamSpec("P")
T = TypeVar("T")


class Randomness(Protocol):
    """The part of `random.Random` in use. It need not be cryptographic: every id is looked up within its tenant, so
    knowing an id gives no right to its task."""

    def random(self) -> float: ...

    def randbytes(self, n: int, /) -> bytes: ...


class Sweeping(Struct, frozen=True, kw_only=True):
    """How much due work is done at once, and how often it is looked for."""

    inspect_limit: int = INSPECT_TASKS_MAX
    """How many due tasks of its own queues a claim promotes, and how many expired leases it ends, at most."""
    promote_limit: int = PROMOTE_TASKS_MAX
    promote_every_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Core:
    """A store with everything the use cases need besides it. Callers of use cases pass it on and read nothing but
    `now_ms` and `shards`."""

    store: Store
    waiters: Waiters
    defaults: EffectivePolicy
    """Applies to every queue without a policy of its own."""
    webhook_defaults: EffectivePolicy
    """The same for the queues of deliveries to webhooks."""
    ids: IdGenerator
    random: Callable[[], float]
    workers: WorkerRegistry
    strict_idempotency: bool = False
    """Whether a repeated idempotency key with another command or payload is refused."""
    tenant_limits: TenantLimits = UNLIMITED
    sweeping: Sweeping = field(default_factory=Sweeping)
    spans: Spans | None = None
    """Opens spans for the sweepers' work; None if nothing is traced."""
    webhook_rules: WebhookRules = field(default_factory=WebhookRules)
    """Where webhooks may go. What needs no look-up is checked when a task is enqueued."""
    turns: Turns = field(default_factory=Turns)
    """Of long calls: however many there are, other calls wait for one piece of one of them at most."""
    event_reads: TenantsLock = field(default_factory=TenantsLock)
    """Held for one piece of an event log and the pause after it: all who read events share what one may read, in
    turn by tenant."""
    artifacts: ArtifactStorage | None = None
    """Where files of results are stored; None if there is no place for them."""
    effective: dict[QueueKey, EffectivePolicy] = field(default_factory=dict)
    """Of every queue with a policy of its own. Filled by `make_core`, and kept up to date by `_EffectivePolicies`."""

    def now_ms(self) -> int:
        return self.store.now_ms()

    async def commit(self, changes: Sequence[Change]) -> list[Task | None]:
        """Commits changes of stored tasks, as `Store.commit`. Those that end a task with a webhook create its delivery
        in the same step. Use cases that move tasks commit through this and nothing else."""
        if True in [change.after.has_webhook for change in changes]:  # half the cost of `any` with a generator
            changes = await with_deliveries(self, changes)
        return await self.store.commit(changes)

    @property
    def shards(self) -> int:
        return self.store.shards

    async def is_sweeper(self) -> bool:
        """Returns whether this process should do the background work that one of those which share the store does."""
        return await self.store.peers.is_sweeper(0)

    @property
    def log_id(self) -> str:
        return self.store.log_id

    async def close(self, because: StoreError | None = None) -> None:
        """Flushes, closes the store and refuses every later call, with the error `because` if there is one."""
        await self.store.close(because)

    def policy(self, tenant: str, command: str) -> EffectivePolicy:
        effective = self.effective
        if effective and (policy := effective.get((tenant, command))):  # type: ignore[call-overload]
            return policy  # type: ignore[no-any-return]
        return self.webhook_defaults if command == WEBHOOKS else self.defaults

    def policy_of(self, queue: QueueKey) -> EffectivePolicy:
        return self.policy(queue.tenant, queue.command)

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
        if self.effective and self.policy(task.tenant, task.command).max_consumers:
            self.store.peers.notify_ready(QueueKey(task.tenant, task.command))


def make_core(
    store: Store,
    waiters: Waiters,
    defaults: QueuePolicy,
    *,
    randomness: Randomness,
    sweeping: Sweeping = Sweeping(),  # noqa: B008 - immutable
    spans: Spans | None = None,
    strict_idempotency: bool = False,
    tenant_limits: TenantLimits = UNLIMITED,
    webhook_defaults: QueuePolicy = QueuePolicy(),  # noqa: B008 - immutable
    webhook_rules: WebhookRules = WebhookRules(),  # noqa: B008 - immutable
    artifacts: ArtifactStorage | None = None,
) -> Core:
    """Builds the core. The waiters must be among the store's listeners, or no waiting call is ever woken."""
    filled = effective_policy(defaults, EffectivePolicy())
    core = Core(
        store,
        waiters,
        filled,
        effective_policy(webhook_defaults, _of_deliveries(filled)),
        IdGenerator(randomness.randbytes),
        randomness.random,
        WorkerRegistry(store),
        sweeping=sweeping,
        spans=spans,
        strict_idempotency=strict_idempotency,
        tenant_limits=tenant_limits,
        webhook_rules=webhook_rules,
        artifacts=artifacts,
    )
    if artifacts is not None:
        store.peers.add_listener(artifacts)
    policies = _EffectivePolicies(core)
    policies.policies_changed(store.policies())
    store.peers.add_listener(policies)
    return core


def _of_deliveries(defaults: EffectivePolicy) -> EffectivePolicy:
    """Returns the rules of a queue of deliveries of which nothing is set."""
    return EffectivePolicy(
        max_attempts=WEBHOOK_ATTEMPTS_DEFAULT,
        max_deliveries=WEBHOOK_DELIVERIES_DEFAULT,  # one that waits for its host to recover is handed back many times
        backoff=Backoff(BackoffKind.EXPONENTIAL, WEBHOOK_BACKOFF_BASE_MS, WEBHOOK_BACKOFF_MAX_MS),
        retention_ms=defaults.retention_ms,
        dead_retention_ms=defaults.dead_retention_ms,
    )


class _EffectivePolicies(Listener):
    """Keeps `Core.effective` up to date, and wakes the claims that a changed policy may let through."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def policies_changed(self, queues: Iterable[QueueKey]) -> None:
        core = self._core
        stored = core.store.policies()
        for queue in queues:
            policy = stored.get(queue)
            if policy is None:
                core.effective.pop(queue, None)
            else:
                defaults = core.webhook_defaults if queue.command == WEBHOOKS else core.defaults
                core.effective[queue] = effective_policy(policy, defaults)
            core.waiters.ready(queue, 1)


def durable(
    verb: Callable[Concatenate[Core, P], Awaitable[T]],
) -> Callable[Concatenate[Core, P], Coroutine[Any, Any, T]]:
    """Makes the verb return, or raise, only when everything that it did and read is on disk.

    A StoreError is raised at once: calls that the store refused because many wait for the disk must not wait too.
    """

    @wraps(verb)
    async def flushed(core: Core, /, *args: P.args, **kwargs: P.kwargs) -> T:
        is_refused = False
        primaries = core.store.primaries
        try:
            return await verb(core, *args, **kwargs)
        except StoreError:
            is_refused = True
            raise
        finally:
            if not is_refused:
                await core.store.flush(since=primaries)

    return flushed
