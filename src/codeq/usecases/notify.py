"""Which workers to notify that a queue has tasks: when it becomes non-empty, whatever made it so.

`ReadyQueues` knows which queues have got or lost tasks. `notifications` runs beside all requests: it looks how deep
each of them is, whether that is news, and which subscriptions may be told. What processes that share a store must agree
on is in its registry, and expires:

    emptied     of a queue: the version at which it was empty last, as far as its processes have recorded it
    announced   of a queue: the version of the task with which it was announced last
    notified    a subscription that was notified, for its least interval
    rotation    the subscription of a group that was notified last

A subscription that may not be notified yet, because its interval has not passed or it has not answered the one before,
is notified when it may, if the queue still has the tasks. That is remembered by the process that has announced it.

A queue is announced if it was emptied after it was announced last; of several processes that find this out, the store
lets one record its announcement. A claim that empties a queue knows it. Its process records that first, and looks at
the queue then: so the next task is seen by this process, or by the one that has added it, or by both. The version of an
announcement is that of a task that is still there: the queue has not been empty since, and what was emptied before is
no news any more, however late it is recorded. Where a store does not tell who empties a queue (there is no other
process, or there are several shards), every process goes by the tasks that it has added and claimed itself. If there is
no other process, it need not look again at a queue that has tasks and was announced, until tasks are claimed.

A paused queue is not announced, and what was announced is forgotten: so it is news when it is resumed with tasks. Each
process looks when it hears of the change; the first one to record its announcement sends it.

Notifications are advice: a worker that gets none finds its tasks by claiming.
"""

from collections.abc import AsyncGenerator, Callable, Sequence

from msgspec import Struct

from codeq.domain.queue import Index, QueueKey
from codeq.domain.requests import Filter
from codeq.domain.subscriptions import Candidates, DeliveryMode, Subscription, candidates
from codeq.domain.task import Task
from codeq.store.interface import Registration
from codeq.usecases import subscriptions
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core
from codeq.usecases.ready_queues import Activity, Deferred, ReadyQueues
from codeq.usecases.subscribed_tenants import SubscriptionCounts
from codeq.usecases.sweep import SWEEPER

EMPTIED, ANNOUNCED, NOTIFIED, ROTATION = "emptied", "announced", subscriptions.NOTIFIED, subscriptions.ROTATION
ANNOUNCED_MS = 60_000
"""A queue that always has tasks is announced again after this time, when it gets new ones."""
EMPTIED_MS = 2 * ANNOUNCED_MS
"""It is compared with announcements, so it need not outlive them: whoever fills and empties queues of ever new commands
must not fill the registry."""
ROTATION_MS = 86_400_000
BUSY_MS = 1_000
"""When to ask again whether a subscription has answered."""
LOOKED_AT_MAX = 32
"""Queues at once: what happens to one of them after that costs no other look until the next call."""
_LOOKS_MAX = 3

IsBusy = Callable[[str], bool]
"""Whether the subscription with this id has not answered its last notification yet."""


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


class Look(Struct, frozen=True, gc=False):
    """What a queue was found to be."""

    depth: int
    announced: Task | None = None
    """The task with which it is to be announced now; None if that is no news."""


async def notifications(
    core: Core, ready: ReadyQueues, *, is_busy: IsBusy = lambda _: False
) -> AsyncGenerator[list[Notification], None]:
    """Yields what to send for what has happened since the last call, queue by queue. Tenants take turns, also those
    that come meanwhile. After a number of queues it ends and sets `ready.changed` for the rest. A queue that the store
    does not let it look at is looked at by the next call."""
    if ready.is_stale:
        await _read_subscriptions(core, ready)
    ready.look_at_due(core.now_ms())
    for _ in range(LOOKED_AT_MAX):
        taken = ready.take()
        if taken is None:
            return
        queue, happened = taken
        try:
            await core.turns.wait(queue.tenant)
            found = await _of_queue(core, ready, queue, happened, is_busy=is_busy)
        except BaseException:
            ready.put_back(queue, happened)
            raise
        if found:
            yield found
    ready.changed.set()


async def _of_queue(
    core: Core, ready: ReadyQueues, queue: QueueKey, happened: Activity, *, is_busy: IsBusy
) -> list[Notification]:
    look = await (
        _look_by_versions(core, queue, happened)
        if core.store.peers.tells_emptied
        else _look_by_own_moves(core, ready, queue, happened)
    )
    if not look.depth or core.policy(*queue).paused:
        return []
    alive = ready.alive(queue.tenant, core.now_ms())
    task = look.announced or happened.announced
    if task is not None:
        happened.announced = task
        ready.defer(queue, None)  # who was to be told of the time before is told of this one
        wanting = [each for each in alive if each.wants(queue.command)]
        return await _notify(core, ready, wanting, Look(look.depth, task), is_busy=is_busy)
    deferred = happened.deferred
    if deferred is None or not await _is_current(core, queue, deferred):
        return []
    wanting = [each for each in alive if each.id in deferred.subscriptions]
    return await _notify(core, ready, wanting, Look(look.depth, deferred.task), is_busy=is_busy)


async def _is_current(core: Core, queue: QueueKey, deferred: Deferred) -> bool:
    """Returns whether no other process has announced the queue since."""
    [stored] = await core.store.registry.get(ANNOUNCED, queue.tenant, [queue.command])
    return stored is None or stored.value == _announcement(core, queue, deferred.task).value


async def _look_by_own_moves(core: Core, ready: ReadyQueues, queue: QueueKey, happened: Activity) -> Look:
    """Goes by the tasks that this process has added and claimed."""
    depth = await _depth(core, queue)
    for _ in range(_LOOKS_MAX):
        if happened.was_empty(depth) or not ready.take_more(queue, happened):
            break
        depth = await _depth(core, queue)  # it was looked at while tasks were added
    registry = core.store.registry
    if not depth or core.policy(*queue).paused:
        await registry.remove(ANNOUNCED, queue.tenant, [queue.command])
        return Look(depth)
    task = happened.task or (await _first_pending(core, queue) if happened.may_be_news else None)
    if task is None:
        return Look(depth)
    announcement = _announcement(core, queue, task)
    if happened.was_empty(depth):
        await registry.put([announcement])
        is_news = True
    else:
        [is_news] = await registry.add([announcement])
    if core.store.is_local:
        [stored] = await registry.get(ANNOUNCED, queue.tenant, [queue.command])
        ready.settle(queue, stored.expires_ms if stored is not None else 0)
    return Look(depth, task if is_news else None)


async def _look_by_versions(core: Core, queue: QueueKey, happened: Activity) -> Look:
    """Goes by the versions at which the queue was emptied and announced. Of several processes, one announces it."""
    registry = core.store.registry
    if happened.withdrawn and happened.was_empty(await _depth(core, queue)):
        happened.emptied = max(happened.emptied, happened.withdrawn)
    if happened.emptied:
        emptied = _versioned(core, EMPTIED, queue, happened.emptied)
        await registry.advance([emptied], over=[emptied.value])
    # Before the queue is looked at: that it was emptied after a task was seen in it is no reason to announce that task.
    [known] = await registry.get(EMPTIED, queue.tenant, [queue.command])
    depth = await _depth(core, queue)
    if core.policy(*queue).paused:
        await registry.remove(ANNOUNCED, queue.tenant, [queue.command])
        return Look(depth)
    task = await _claimable(core, queue, happened) if depth else None
    if task is None:
        return Look(depth)
    announcement = _announcement(core, queue, task)
    [is_news] = await registry.advance([announcement], over=[known.value if known is not None else b""])
    return Look(depth, task if is_news else None)


async def _claimable(core: Core, queue: QueueKey, happened: Activity) -> Task | None:
    """Returns a task that can be claimed: one that this process has added; any, if it has emptied the queue or the
    queue may have been resumed."""
    own = [task for task in (happened.task, happened.newest) if task is not None]
    stored = await core.store.get_tasks(queue.tenant, [task.id for task in own])
    for task, now in zip(own, stored, strict=True):
        if now is not None and now.version == task.version:
            return task
    if not happened.emptied and not happened.may_be_news:
        return None  # whoever has claimed them sees to it
    return await _first_pending(core, queue)


async def _first_pending(core: Core, queue: QueueKey) -> Task | None:
    wanted = Filter(command=queue.command, index=Index.PENDING)
    found = (await core.store.find(queue.tenant, wanted, cursor=None, limit=1)).tasks
    return found[0] if found else None


def _announcement(core: Core, queue: QueueKey, task: Task) -> Registration:
    """Returns what is recorded of an announcement; without versions if each process goes by its own moves."""
    return _versioned(core, ANNOUNCED, queue, task.version if core.store.peers.tells_emptied else 0)


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
    was_read = ready.is_read
    budget = LoopBudget(core, SWEEPER)
    ready.begin_reading()
    found = await subscriptions.all_of(core)
    for each in found:
        if budget.is_spent:
            await budget.yield_if_spent()
        ready.put_read(each)
    ready.end_reading({each.id for each in found})
    if not was_read:
        for tenant in ready.tenants:  # their queues may have got tasks before anybody could tell who wants to know
            await budget.yield_if_spent()
            ready.look_at(queue for queue, counted in (await core.store.counts(tenant)).items() if counted.pending)


async def _notify(
    core: Core, ready: ReadyQueues, wanting: list[Subscription], look: Look, *, is_busy: IsBusy
) -> list[Notification]:
    """Returns what to send to those of the subscriptions that are chosen, and defers what it is too early for."""
    task, now_ms = look.announced, core.now_ms()
    assert task is not None  # noqa: S101 - there is something to tell
    chosen, early = await _choose(core, task.tenant, wanting, task.id, is_busy=is_busy)
    if early:
        due_ms = await _due_ms(core, task.tenant, early, is_busy=is_busy)
        queue = QueueKey(task.tenant, task.command)
        ready.defer(queue, Deferred(task, frozenset([each.id for each in early]), due_ms))
    if not chosen:
        return []
    trace_parent, trace_state = await _trace(core, task)
    ids = core.ids.generate(now_ms, core.shards, [0] * len(chosen))
    return [
        Notification(
            id=f"ntf-{new_id}",
            subscription=each,
            command=task.command,
            queue_depth=look.depth,
            at_ms=now_ms,
            trace_parent=trace_parent,
            trace_state=trace_state,
        )
        for new_id, each in zip(ids, chosen, strict=True)
    ]


async def _due_ms(core: Core, tenant: str, early: Sequence[Subscription], *, is_busy: IsBusy) -> int:
    """Returns when the first of these may be notified."""
    now_ms = core.now_ms()
    notified = await core.store.registry.get(NOTIFIED, tenant, [each.id for each in early])
    return min(
        max(last.expires_ms if last is not None else now_ms, now_ms + BUSY_MS if is_busy(each.id) else 0)
        for each, last in zip(early, notified, strict=True)
    )


async def _choose(
    core: Core, tenant: str, wanting: list[Subscription], task_id: str, *, is_busy: IsBusy
) -> tuple[list[Subscription], list[Subscription]]:
    """Returns who is notified, each of whom counts as notified from now on; and for whom it is too early."""
    groups = sorted({each.group for each in wanting if each.mode is DeliveryMode.GROUP and each.group})
    rotation = await core.store.registry.get(ROTATION, tenant, groups) if groups else []
    last = {entry.name: entry.value.decode() for entry in rotation if entry is not None}
    places = candidates(wanting, task_id, last_notified=last)
    single = [place[0] for place in places if place[0].mode is not DeliveryMode.GROUP]
    noted = zip(single, await _note_notified(core, single, is_busy=is_busy), strict=True)
    chosen: list[Subscription] = []
    early: list[Subscription] = []
    for each, may in noted:
        (chosen if may else early).append(each)
    rotated: list[Subscription] = []
    for place in places:
        if place[0].mode is DeliveryMode.GROUP:
            member = await _first_allowed(core, tenant, place, is_busy=is_busy)
            if member is not None:
                rotated.append(member)
            else:
                early += place
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
    return chosen + rotated, early


async def _first_allowed(core: Core, tenant: str, members: Candidates, *, is_busy: IsBusy) -> Subscription | None:
    """Returns the first member that may be notified."""
    notified = await core.store.registry.get(NOTIFIED, tenant, [each.id for each in members])
    for each, last in zip(members, notified, strict=True):
        if last is None:
            [is_allowed] = await _note_notified(core, [each], is_busy=is_busy)
            if is_allowed:
                return each
    return None


async def _note_notified(core: Core, chosen: Sequence[Subscription], *, is_busy: IsBusy) -> list[bool]:
    """Returns which of these may be notified now. Those may not again until their interval has passed."""
    now_ms = core.now_ms()
    refused = {each.id for each in chosen if is_busy(each.id)}
    limited = [each for each in chosen if each.min_interval_ms and each.id not in refused]
    added = await core.store.registry.add(
        [
            Registration(
                kind=NOTIFIED, tenant=each.tenant, name=each.id, value=b"", expires_ms=now_ms + each.min_interval_ms
            )
            for each in limited
        ]
    )
    refused |= {each.id for each, is_added in zip(limited, added, strict=True) if not is_added}
    return [each.id not in refused for each in chosen]


async def _trace(core: Core, task: Task) -> tuple[str | None, str | None]:
    if task.trace_id is None:
        return None, None
    [record] = await core.store.get_records(task.tenant, [task.id], results=False)
    return (record.body.trace_parent, record.body.trace_state) if record is not None else (None, None)


def counts_by_command(core: Core, ready: ReadyQueues) -> SubscriptionCounts:
    """Returns how many subscriptions there are to each command."""
    now_ms = core.now_ms()
    for tenant in ready.tenants:
        ready.alive(tenant, now_ms)  # forgets what has expired
    return ready.counts
