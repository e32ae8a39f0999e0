"""Which queues that somebody has subscribed to have got tasks, or lost some, since they were looked at.

A listener of the store, so it runs with every call: it does nothing for queues without subscriptions, and little for
tasks that are added to a queue of which everybody knows that it has some.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence, Set

from msgspec import Struct

from codeq.domain.limits import (
    NOTIFY_DEFERRED_MAX,
    NOTIFY_QUEUES_MAX,
    NOTIFY_TENANT_QUEUES_MAX,
    NOTIFY_TENANT_QUEUES_MIN,
)
from codeq.domain.queue import QueueKey
from codeq.domain.subscriptions import Subscription
from codeq.domain.task import Status, Task
from codeq.store.interface import Listener
from codeq.usecases.subscribed_tenants import SubscriptionCounts, TenantSubscriptions

SETTLED_MAX = 1_000
"""Queues of a tenant that are known to have tasks; a queue beyond them is looked at whenever it gets some."""

_PENDING, _IN_PROGRESS = Status.PENDING, Status.IN_PROGRESS


class Deferred(Struct, frozen=True, gc=False):
    """Subscriptions that are to be notified of a queue later, if it still has the tasks: it was too early for them."""

    task: Task
    """That with which the queue was announced."""
    subscriptions: frozenset[str]
    due_ms: int


class Activity:
    """What has happened to a queue since it was looked at."""

    __slots__ = (
        "announced", "balance", "deferred", "emptied", "is_claimed", "lowest", "may_be_news", "newest", "task",
        "withdrawn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.balance = 0
        """Tasks that have become claimable here, less those that were claimed or cancelled here."""
        self.lowest = 0
        """The lowest balance there was."""
        self.task: Task | None = None
        """The first of them after the last claim; None if tasks were only claimed."""
        self.is_claimed = False
        """Whether tasks were claimed since it was set."""
        self.emptied = 0
        """The version at which a claim here emptied the queue last."""
        self.withdrawn = 0
        """The version at which a pending task was cancelled last: nobody tells whether that has emptied the queue."""
        self.newest: Task | None = None
        """The last of the tasks that have become claimable here."""
        self.may_be_news = False
        """It may be news without a new task: it was resumed, or this process has just started."""
        self.announced: Task | None = None
        """That with which it was announced, if nobody could be notified of it."""
        self.deferred: Deferred | None = None
        """Notifications that were deferred until now."""

    def gain(self, task: Task) -> None:
        self.balance += 1
        self.newest = task
        if self.is_claimed or self.task is None:
            self.task, self.is_claimed = task, False

    def lose(self) -> None:
        self.balance -= 1
        self.is_claimed = True
        self.lowest = min(self.lowest, self.balance)

    def add(self, later: "Activity") -> None:
        self.lowest = min(self.lowest, self.balance + later.lowest)
        self.balance += later.balance
        if self.is_claimed or later.lowest < 0 or self.task is None:
            self.task = later.task or self.task
        self.is_claimed = later.is_claimed or (self.is_claimed and later.task is None)
        self.newest = later.newest or self.newest
        self.emptied = max(self.emptied, later.emptied)
        self.withdrawn = max(self.withdrawn, later.withdrawn)
        self.may_be_news = self.may_be_news or later.may_be_news
        self.announced = later.announced or self.announced
        self.deferred = later.deferred or self.deferred

    def was_empty(self, depth: int) -> bool:
        """Returns whether the queue was empty at some time, if it has `depth` tasks now and nobody else has added or
        claimed any."""
        return depth - self.balance + self.lowest <= 0


class ReadyQueues(Listener):
    """Must be among the store's listeners."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.changed.set()
        self.is_stale = True
        """Whether other processes may have changed subscriptions since they were read."""
        self.is_read = False
        """Whether subscriptions were ever read."""
        self.counts = SubscriptionCounts()
        self._tenants: dict[str, TenantSubscriptions] = {}
        self._meanwhile: set[str] | None = None
        """Subscriptions that were made, renewed or deleted here since reading began; None while nobody reads."""
        self._active: dict[str, dict[str, Activity]] = {}
        """By tenant and command."""
        self._active_queues = 0
        self._deferred: dict[QueueKey, Deferred] = {}
        self._deferred_of: Counter[str] = Counter()
        """How many subscriptions they name, by tenant."""
        self._due_ms = 0
        """Before this time none of the deferred notifications is due."""

    # -- subscriptions -------------------------------------------------------------------------------------------

    def begin_reading(self) -> None:
        """Must be called before the subscriptions of all processes are read."""
        self.is_stale = False
        self._meanwhile = set()

    def put_read(self, subscription: Subscription) -> None:
        """Takes over one that was read, unless something has happened to it here meanwhile."""
        if self._meanwhile is None or subscription.id not in self._meanwhile:
            self._put(subscription)

    def end_reading(self, found: Set[str]) -> None:
        """Forgets all that were not found, but for those made meanwhile."""
        keeps = found | (self._meanwhile or set())
        self.is_read, self._meanwhile = True, None
        for tenant, subscriptions in list(self._tenants.items()):
            for each in subscriptions.ids:
                if each not in keeps:
                    self.remove(tenant, each)

    def put(self, subscription: Subscription, now_ms: int) -> None:
        """Takes over a subscription that was made or renewed here, so that no task after it is missed."""
        self.alive(subscription.tenant, now_ms)
        self._put(subscription)
        if self._meanwhile is not None:
            self._meanwhile.add(subscription.id)

    def _put(self, subscription: Subscription) -> None:
        found = self._tenants.get(subscription.tenant)
        if found is None:
            found = self._tenants[subscription.tenant] = TenantSubscriptions(self.counts)
        found.put(subscription)

    def remove(self, tenant: str, subscription_id: str) -> None:
        if self._meanwhile is not None:
            self._meanwhile.add(subscription_id)
        found = self._tenants.get(tenant)
        if found is not None:
            found.remove(subscription_id)
            if not found:
                del self._tenants[tenant]

    def alive(self, tenant: str, now_ms: int) -> list[Subscription]:
        """Returns the subscriptions of the tenant that have not expired."""
        found = self._tenants.get(tenant)
        if found is None:
            return []
        alive = found.alive(now_ms)
        if not alive:
            del self._tenants[tenant]
        return alive

    @property
    def tenants(self) -> list[str]:
        """Those that have subscriptions, some of which may have expired."""
        return list(self._tenants)

    # -- what the store reports ----------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Other processes may have made subscriptions."""
        self.is_stale = True
        self.changed.set()

    def moved(self, tasks: Sequence[Task]) -> None:
        if not self._tenants:
            return
        tenant = command = ""
        subscriptions: TenantSubscriptions | None = None
        settled_ms = 0
        active: Activity | None = None
        for task in tasks:
            if task.command != command or task.tenant != tenant:
                tenant, command, active = task.tenant, task.command, None
                subscriptions = self._wanting(tenant, command)
                settled_ms = subscriptions.settled.get(command, 0) if subscriptions is not None else 0
            if subscriptions is None:
                continue
            if task.status is _PENDING:
                if task.visible_ms or task.updated_ms < settled_ms:
                    continue
            elif task.status is not _IN_PROGRESS:
                continue
            active = active or self._of(tenant, command)
            if active is None:
                subscriptions = None
            elif task.status is _PENDING:
                active.gain(task)
            else:
                active.lose()
                settled_ms = 0

    def withdrawn(self, task: Task) -> None:
        found = self._find(task.tenant, task.command)
        if found is not None:
            found.lose()
            found.withdrawn = task.version

    def emptied(self, queue: QueueKey, version: int) -> None:
        found = self._find(*queue)
        if found is not None:
            found.emptied = max(found.emptied, version)

    def policies_changed(self, queues: Iterable[QueueKey]) -> None:
        self.look_at(queues)

    def look_at(self, queues: Iterable[QueueKey]) -> None:
        """Has those of the queues looked at that somebody has subscribed to."""
        for queue in queues:
            found = self._find(*queue)
            if found is not None:
                found.may_be_news = True

    def _wanting(self, tenant: str, command: str) -> TenantSubscriptions | None:
        """Returns the tenant's subscriptions if one of them is for this command."""
        found = self._tenants.get(tenant)
        return found if found is not None and found.wants(command) else None

    def _find(self, tenant: str, command: str) -> Activity | None:
        return self._of(tenant, command) if self._wanting(tenant, command) is not None else None

    def _of(self, tenant: str, command: str) -> Activity | None:
        """Returns what happens to a queue that somebody has subscribed to; None if the tenant has too many of them."""
        of_tenant = self._active.get(tenant)
        found = of_tenant.get(command) if of_tenant is not None else None
        if found is None:
            self._tenants[tenant].settled.pop(command, None)
            if not self._has_room(len(of_tenant or ())):
                return None
            found = Activity()
            self._active.setdefault(tenant, {})[command] = found
            self._active_queues += 1
            self.changed.set()
        return found

    def _has_room(self, of_tenant: int) -> bool:
        """A few queues of each tenant are followed whatever the others do."""
        most = NOTIFY_TENANT_QUEUES_MAX if self._active_queues < NOTIFY_QUEUES_MAX else NOTIFY_TENANT_QUEUES_MIN
        return of_tenant < most

    # -- what was looked at --------------------------------------------------------------------------------------

    def take(self) -> tuple[QueueKey, Activity] | None:
        """Removes and returns a queue of the tenant whose turn it is; None if nothing has happened to any."""
        if not self._active:
            return None
        tenant = next(iter(self._active))
        active = self._active.pop(tenant)
        command = next(iter(active))
        happened = active.pop(command)
        self._active_queues -= 1
        if active:
            self._active[tenant] = active  # behind all others
        return QueueKey(tenant, command), happened

    def take_more(self, queue: QueueKey, activity: Activity) -> bool:
        """Adds what has happened to the queue meanwhile. Returns whether anything has."""
        more = self._pop(queue)
        if more is not None:
            activity.add(more)
        return more is not None

    def put_back(self, queue: QueueKey, activity: Activity) -> None:
        """Has a queue looked at again that was taken in vain."""
        more = self._pop(queue)
        if more is not None:
            activity.add(more)
        self._active.setdefault(queue.tenant, {})[queue.command] = activity
        self._active_queues += 1
        self.changed.set()

    def _pop(self, queue: QueueKey) -> Activity | None:
        active = self._active.get(queue.tenant, {})
        found = active.pop(queue.command, None)
        if found is not None:
            self._active_queues -= 1
            if not active:
                del self._active[queue.tenant]
        return found

    def settle(self, queue: QueueKey, until_ms: int) -> None:
        """Passes over tasks that are added to the queue before this time and the next claim: it has some, and was
        announced. Only for a store that no other process can empty."""
        found = self._tenants.get(queue.tenant)
        if found is None or queue.command in self._active.get(queue.tenant, ()):
            return
        if len(found.settled) >= SETTLED_MAX:
            found.settled.clear()
        found.settled[queue.command] = until_ms

    # -- what was too early --------------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """The time at which deferred notifications are due; None if there are none."""
        return self._due_ms if self._deferred else None

    def defer(self, queue: QueueKey, deferred: Deferred | None) -> None:
        """Notes who is to be notified later, in the place of what was noted when the queue was announced before."""
        tenant = queue.tenant
        if (before := self._deferred.pop(queue, None)) is not None:
            self._deferred_of -= Counter({tenant: len(before.subscriptions)})  # leaves out tenants without any
        if deferred is None or self._deferred_of[tenant] + len(deferred.subscriptions) > NOTIFY_DEFERRED_MAX:
            return
        self._due_ms = min(self._due_ms, deferred.due_ms) if self._deferred else deferred.due_ms
        self._deferred[queue] = deferred
        self._deferred_of[tenant] += len(deferred.subscriptions)

    def look_at_due(self, now_ms: int) -> None:
        """Has the queues looked at of which deferred notifications are due."""
        if not self._deferred or now_ms < self._due_ms:
            return
        for queue, deferred in [(queue, each) for queue, each in self._deferred.items() if each.due_ms <= now_ms]:
            self.defer(queue, None)
            found = self._find(*queue)
            if found is not None:
                found.deferred = deferred
        self._due_ms = min((each.due_ms for each in self._deferred.values()), default=0)
