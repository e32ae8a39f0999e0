"""Which workers to notify that a queue has tasks: when it becomes non-empty, whatever made it so.

`ReadyQueues` hears of every move. `notifications` runs beside all requests: it looks how deep each of these queues is,
whether that is news, and which subscriptions may be told. What processes that share a store must agree on is in its
registry, and expires:

    emptied     of a queue: the version at which it was empty last, as far as its processes have recorded it
    announced   of a queue: the version of the task with which it was announced last
    notified    a subscription that was notified, for its least interval
    rotation    the subscription of a group that was notified last

A queue is announced if it was emptied after it was announced last; of several processes that find this out, the store
lets one record its announcement. A claim that empties a queue knows it. Its process records that first, and looks at
the queue then: so the next task is seen by this process, or by the one that has added it, or by both. The version of an
announcement is that of a task that is still there: the queue has not been empty since, and what was emptied before is
no news any more, however late it is recorded. Where a store does not tell who empties a queue (there is no other
process, or there are several shards), every process goes by the tasks that it has added and claimed itself.

Notifications are advice: a worker that gets none finds its tasks by claiming.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from codeq.domain.limits import NOTIFY_QUEUES_MAX
from codeq.domain.queue import Index, QueueKey, is_system
from codeq.domain.requests import Filter
from codeq.domain.subscriptions import Candidates, DeliveryMode, Subscription, candidates
from codeq.domain.task import Move, Status, Task
from codeq.store.interface import Listener, Registration
from codeq.usecases import subscriptions
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core
from codeq.usecases.sweep import SWEEPER

EMPTIED, ANNOUNCED, NOTIFIED, ROTATION = "emptied", "announced", "notified", "rotation"
ANNOUNCED_MS = 60_000
"""A queue that always has tasks is announced again after this time, when it gets new ones."""
ROTATION_MS = EMPTIED_MS = 86_400_000

_LOOKS_MAX = 3

_PENDING, _IN_PROGRESS = Status.PENDING, Status.IN_PROGRESS


class Notification(Struct, frozen=True, kw_only=True, gc=False):
    id: str
    """Unique, for the receiver to recognize repeats."""
    subscription: Subscription
    command: str
    queue_depth: int
    at_ms: int
    trace_parent: str | None
    trace_state: str | None
    """Of the task that made the queue ready."""


class _Ready:
    """What has happened to a queue since the last look."""

    __slots__ = ("balance", "emptied", "is_claimed", "lowest", "newest", "task", "withdrawn")

    def __init__(self) -> None:
        self.balance = 0
        """Tasks that have become claimable here, less those that were claimed here."""
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


class ReadyQueues(Listener):
    """The queues with subscribers that have got tasks, or lost some. Must be among the store's listeners."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.is_stale = True
        """Whether subscriptions may have changed since they were read."""
        self.by_tenant: dict[str, list[Subscription]] = {}
        self._ready: dict[QueueKey, _Ready] = {}

    def put(self, subscription: Subscription, now_ms: int) -> None:
        """Takes over a subscription that was made or renewed here, so that no task after it is missed."""
        others = self.by_tenant.get(subscription.tenant, ())
        alive = [each for each in others if each.id != subscription.id and each.expires_ms > now_ms]
        self.by_tenant[subscription.tenant] = [*alive, subscription]

    def remove(self, tenant: str, subscription_id: str) -> None:
        left = [each for each in self.by_tenant.pop(tenant, ()) if each.id != subscription_id]
        if left:
            self.by_tenant[tenant] = left

    def look_again(self) -> None:
        """Other processes may have made subscriptions."""
        self.is_stale = True
        self.changed.set()

    def moved(self, tasks: Sequence[Task]) -> None:
        if not self.by_tenant:
            return
        for task in tasks:
            if task.tenant in self.by_tenant:
                is_ready = task.status is _PENDING and not task.visible_ms
                is_withdrawn = task.move is Move.CANCEL and task.status_before is _PENDING
                if is_ready or is_withdrawn or task.status is _IN_PROGRESS:
                    self._note(task, is_ready=is_ready, is_withdrawn=is_withdrawn)

    def emptied(self, queue: QueueKey, version: int) -> None:
        found = self._of(queue) if queue.tenant in self.by_tenant else None
        if found is not None:
            found.emptied = max(found.emptied, version)

    def _of(self, queue: QueueKey) -> _Ready | None:
        found = self._ready.get(queue)
        if found is None:
            is_wanted = any(each.wants(queue.command) for each in self.by_tenant[queue.tenant])
            if not is_wanted or is_system(queue.command) or len(self._ready) >= NOTIFY_QUEUES_MAX:
                return None
            found = self._ready[queue] = _Ready()
            self.changed.set()
        return found

    def _note(self, task: Task, *, is_ready: bool, is_withdrawn: bool) -> None:
        found = self._of(QueueKey(task.tenant, task.command))
        if found is None:
            return
        if is_withdrawn:
            found.withdrawn = task.version
        if not is_ready:
            found.is_claimed = True
            found.balance -= 1
            found.lowest = min(found.lowest, found.balance)
            return
        found.balance += 1
        found.newest = task
        if found.task is None or found.is_claimed:
            found.task, found.is_claimed = task, False

    def take(self) -> dict[QueueKey, _Ready]:
        taken, self._ready = self._ready, {}
        return taken

    def take_more(self, queue: QueueKey, ready: _Ready) -> bool:
        """Adds what has happened to the queue meanwhile. Returns whether anything has."""
        more = self._ready.pop(queue, None)
        if more is None:
            return False
        ready.lowest = min(ready.lowest, ready.balance + more.lowest)
        ready.balance += more.balance
        ready.task = ready.task or more.task
        return True

    @staticmethod
    def was_empty(ready: _Ready, depth: int) -> bool:
        """Returns whether the queue was empty at some time, if nobody else has added or claimed tasks."""
        return depth - ready.balance + ready.lowest <= 0


async def notifications(core: Core, ready: ReadyQueues) -> list[Notification]:
    """Returns what to send for all that has happened since the last call."""
    if ready.is_stale:
        await _read_subscriptions(core, ready)
    found: list[Notification] = []
    budget = LoopBudget(core, SWEEPER)
    look = _look_by_versions if core.store.peers.tells_emptied else _look_by_own_moves
    for queue, happened in ready.take().items():
        await budget.yield_if_spent()
        task, depth = await look(core, ready, queue, happened)
        if task is not None:
            found += await _for_queue(core, ready, queue, task, depth=depth)
    return found


Look = tuple[Task | None, int]
"""The task with which the queue is to be announced, None if that is no news; and how many tasks there are."""


async def _look_by_own_moves(core: Core, ready: ReadyQueues, queue: QueueKey, happened: _Ready) -> Look:
    """Goes by the tasks that this process has added and claimed."""
    depth = await _depth(core, queue)
    for _ in range(_LOOKS_MAX):
        if ready.was_empty(happened, depth) or not ready.take_more(queue, happened):
            break
        depth = await _depth(core, queue)  # it was looked at while tasks were added
    registry = core.store.registry
    if not depth:
        await registry.remove(ANNOUNCED, queue.tenant, [queue.command])
        return None, 0
    if happened.task is None:
        return None, depth
    announcement = _versioned(core, ANNOUNCED, queue, 0)
    if ready.was_empty(happened, depth):
        await registry.put([announcement])
        return happened.task, depth
    [is_first] = await registry.add([announcement])
    return happened.task if is_first else None, depth


async def _look_by_versions(core: Core, ready: ReadyQueues, queue: QueueKey, happened: _Ready) -> Look:
    """Goes by the versions at which the queue was emptied and announced. Of several processes, one announces it."""
    registry = core.store.registry
    if happened.withdrawn and ready.was_empty(happened, await _depth(core, queue)):
        happened.emptied = max(happened.emptied, happened.withdrawn)
    if happened.emptied:
        emptied = _versioned(core, EMPTIED, queue, happened.emptied)
        await registry.advance([emptied], over=[emptied.value])
    depth = await _depth(core, queue)
    task = await _claimable(core, queue, happened) if depth else None
    if task is None:
        return None, depth
    [known] = await registry.get(EMPTIED, queue.tenant, [queue.command])
    announcement = _versioned(core, ANNOUNCED, queue, task.version)
    [is_news] = await registry.advance([announcement], over=[known.value if known is not None else b""])
    return task if is_news else None, depth


async def _claimable(core: Core, queue: QueueKey, happened: _Ready) -> Task | None:
    """Returns a task that can be claimed: one that this process has added, or if it has emptied the queue, any."""
    own = [task for task in (happened.task, happened.newest) if task is not None]
    stored = await core.store.get_tasks(queue.tenant, [task.id for task in own])
    for task, now in zip(own, stored, strict=True):
        if now is not None and now.version == task.version:
            return task
    if not happened.emptied:
        return None  # whoever has claimed them sees to it
    wanted = Filter(command=queue.command, index=Index.PENDING)
    found = (await core.store.find(queue.tenant, wanted, cursor=None, limit=1)).tasks
    return found[0] if found else None


def _versioned(core: Core, kind: str, queue: QueueKey, version: int) -> Registration:
    ttl_ms = ANNOUNCED_MS if kind == ANNOUNCED else EMPTIED_MS
    return Registration(
        kind=kind,
        tenant=queue.tenant,
        name=queue.command,
        value=b"%020d" % version,
        expires_ms=core.now_ms() + ttl_ms,
    )


async def _depth(core: Core, queue: QueueKey) -> int:
    counts = (await core.store.counts(*queue)).get(queue)
    return counts.pending if counts is not None else 0


async def _read_subscriptions(core: Core, ready: ReadyQueues) -> None:
    ready.is_stale = False
    by_tenant: defaultdict[str, list[Subscription]] = defaultdict(list)
    for each in await subscriptions.all_of(core):
        by_tenant[each.tenant].append(each)
    ready.by_tenant = dict(by_tenant)


async def _for_queue(core: Core, ready: ReadyQueues, queue: QueueKey, task: Task, *, depth: int) -> list[Notification]:
    now_ms = core.now_ms()
    alive = [each for each in ready.by_tenant.get(queue.tenant, ()) if each.expires_ms > now_ms]
    if len(alive) < len(ready.by_tenant.get(queue.tenant, ())):
        ready.is_stale = True
    interested = [each for each in alive if each.wants(queue.command)]
    chosen = await _choose(core, queue.tenant, interested, task.id)
    if not chosen:
        return []
    trace_parent, trace_state = await _trace(core, task)
    ids = core.ids.generate(now_ms, core.shards, [0] * len(chosen))
    return [
        Notification(
            id=f"ntf-{new_id}",
            subscription=each,
            command=queue.command,
            queue_depth=depth,
            at_ms=now_ms,
            trace_parent=trace_parent,
            trace_state=trace_state,
        )
        for new_id, each in zip(ids, chosen, strict=True)
    ]


async def _choose(core: Core, tenant: str, interested: list[Subscription], task_id: str) -> list[Subscription]:
    """Returns who is notified. Each of them counts as notified from now on."""
    groups = sorted({each.group for each in interested if each.mode is DeliveryMode.GROUP and each.group})
    rotation = await core.store.registry.get(ROTATION, tenant, groups) if groups else []
    last = {entry.name: entry.value.decode() for entry in rotation if entry is not None}
    places = candidates(interested, task_id, last_notified=last)
    chosen: list[Subscription] = []
    single = [place[0] for place in places if place[0].mode is not DeliveryMode.GROUP]
    chosen += [each for each, may in zip(single, await _note_notified(core, single), strict=True) if may]
    for place in places:
        if place[0].mode is DeliveryMode.GROUP and (member := await _first_allowed(core, tenant, place)):
            chosen.append(member)
    rotated = [each for each in chosen if each.group is not None]
    if rotated:
        until_ms = core.now_ms() + ROTATION_MS
        await core.store.registry.put(
            [
                Registration(
                    kind=ROTATION, tenant=tenant, name=each.group or "", value=each.id.encode(), expires_ms=until_ms
                )
                for each in rotated
            ]
        )
    return chosen


async def _first_allowed(core: Core, tenant: str, members: Candidates) -> Subscription | None:
    """Returns the first member whose interval has passed."""
    notified = await core.store.registry.get(NOTIFIED, tenant, [each.id for each in members])
    for each, last in zip(members, notified, strict=True):
        if last is None:
            [is_allowed] = await _note_notified(core, [each])
            if is_allowed:
                return each
    return None


async def _note_notified(core: Core, chosen: Sequence[Subscription]) -> list[bool]:
    """Returns which of these may be notified now. Those may not again until their interval has passed."""
    now_ms = core.now_ms()
    limited = [each for each in chosen if each.min_interval_ms]
    added = await core.store.registry.add(
        [
            Registration(
                kind=NOTIFIED, tenant=each.tenant, name=each.id, value=b"", expires_ms=now_ms + each.min_interval_ms
            )
            for each in limited
        ]
    )
    refused = {each.id for each, is_added in zip(limited, added, strict=True) if not is_added}
    return [each.id not in refused for each in chosen]


async def _trace(core: Core, task: Task) -> tuple[str | None, str | None]:
    if task.trace_id is None:
        return None, None
    [record] = await core.store.get_records(task.tenant, [task.id], results=False)
    return (record.body.trace_parent, record.body.trace_state) if record is not None else (None, None)


def counts_by_command(core: Core, ready: ReadyQueues) -> dict[str, int]:
    """Returns how many subscriptions there are to each command; `*` for those to all."""
    now_ms = core.now_ms()
    counted: defaultdict[str, int] = defaultdict(int)
    for each in (each for of_tenant in ready.by_tenant.values() for each in of_tenant if each.expires_ms > now_ms):
        for command in each.commands or ("*",):
            counted[command] += 1
    return dict(counted)
