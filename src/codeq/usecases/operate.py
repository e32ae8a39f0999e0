"""What operators do to tasks: cancel, replay from the dead-letter queue, purge; one by one or all that match."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from codeq.domain import lifecycle, validation
from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.limits import (
    ATTEMPTS_MAX,
    ATTEMPTS_MIN,
    CONSUMERS_MAX,
    DELIVERIES_MAX,
    LIST_TASKS_MAX,
    RETENTION_MS_MAX,
)
from codeq.domain.queue import Index, OnExpiry, QueueKey, QueuePolicy
from codeq.domain.requests import BulkResult, Filter
from codeq.domain.task import Change, Task
from codeq.usecases.core import Core, durable
from codeq.usecases.moves import move_each


@durable
async def cancel(core: Core, tenant: str, ids: Sequence[str]) -> list[Task | CodeqError]:
    """Pending and delayed tasks end at once; a worker that holds one learns so at its next heartbeat."""
    now_ms = core.store.now_ms()
    answers = await move_each(
        core, tenant, ids, lambda _, task: lifecycle.cancel(task, now_ms, keep_ms=core.keep_ms(task))
    )
    for answer in answers:
        if isinstance(answer, Task):
            core.freed(answer)
    return answers


@durable
async def replay(core: Core, tenant: str, ids: Sequence[str]) -> list[Task | CodeqError]:
    """Put dead tasks back into their queues with a fresh set of attempts."""
    now_ms = core.store.now_ms()
    return await move_each(core, tenant, ids, lambda _, task: lifecycle.replay(task, now_ms))


@durable
async def purge(core: Core, tenant: str, ids: Sequence[str]) -> list[Task | CodeqError]:
    """Forget ended tasks before their retention has passed."""
    now_ms = core.store.now_ms()
    return await move_each(core, tenant, ids, lambda _, task: lifecycle.purge(task, now_ms))


@durable
async def purge_dead(core: Core, tenant: str, ids: Sequence[str]) -> list[Task | CodeqError]:
    """Forget dead tasks, and only dead ones."""
    now_ms = core.store.now_ms()
    return await move_each(core, tenant, ids, lambda _, task: lifecycle.purge_dead(task, now_ms))


async def replay_named(core: Core, tenant: str, ids: Sequence[str], *, dry_run: bool = False) -> BulkResult:
    """Replay these tasks, if they are dead."""
    return await (_look_dead(core, tenant, ids) if dry_run else _named(core, tenant, ids, replay))


async def purge_named(core: Core, tenant: str, ids: Sequence[str], *, dry_run: bool = False) -> BulkResult:
    """Forget these tasks, if they are dead."""
    return await (_look_dead(core, tenant, ids) if dry_run else _named(core, tenant, ids, purge_dead))


@durable
async def replay_matching(core: Core, tenant: str, wanted: Filter, *, limit: int, dry_run: bool = False) -> BulkResult:
    """Replay up to `limit` dead tasks that match."""
    return await _each_dead(core, tenant, wanted, lifecycle.replay, limit=limit, dry_run=dry_run)


@durable
async def purge_matching(core: Core, tenant: str, wanted: Filter, *, limit: int, dry_run: bool = False) -> BulkResult:
    """Forget up to `limit` dead tasks that match."""
    return await _each_dead(core, tenant, wanted, lifecycle.purge, limit=limit, dry_run=dry_run)


@durable
async def purge_before(core: Core, tenant: str, before_ms: int, *, limit: int) -> int:
    """Forget up to `limit` ended tasks whose retention passes before then. Answers how many."""
    now_ms = core.store.now_ms()
    purged = 0
    cursor: str | None = None
    while purged < limit:
        page = await core.store.find(tenant, Filter(), cursor=cursor, limit=LIST_TASKS_MAX)
        ripe = [task.id for task in page.tasks if task.status.is_final and task.purge_ms <= before_ms]
        moved = await move_each(core, tenant, ripe[: limit - purged], lambda _, task: lifecycle.purge(task, now_ms))
        purged += sum(isinstance(answer, Task) for answer in moved)
        await core.store.flush()
        cursor = page.cursor
        if cursor is None:
            break
    return purged


@durable
async def set_policy(core: Core, queue: QueueKey, policy: QueuePolicy | None) -> None:
    """Change the rules of a queue from now on; None for the defaults. Workers that wait look again."""
    validation.name(queue.tenant, "tenant")
    validation.name(queue.command, "command")
    if policy is not None:
        _check_policy(policy)
    await core.store.set_policy(queue, policy)
    core.waiters.ready(queue, 1)


async def set_paused(core: Core, queue: QueueKey, *, paused: bool) -> None:
    """Stop or start handing out the queue's tasks, and leave its other rules as they are."""
    now_ms = core.store.now_ms()
    policy = core.store.policies().get(queue) or msgspec.structs.replace(core.defaults, version=0, created_ms=now_ms)
    if policy.paused != paused:
        changed = msgspec.structs.replace(policy, paused=paused, version=policy.version + 1, updated_ms=now_ms)
        await set_policy(core, queue, changed)


@durable
async def _look_dead(core: Core, tenant: str, ids: Sequence[str]) -> BulkResult:
    found = [task.id for task in await core.store.get_tasks(tenant, ids) if task is not None and task.is_dead]
    return BulkResult(len(found), 0, found)


async def _named(
    core: Core,
    tenant: str,
    ids: Sequence[str],
    move: Callable[[Core, str, Sequence[str]], Awaitable[list[Task | CodeqError]]],
) -> BulkResult:
    moved = []
    refused = {}
    for task_id, answer in zip(ids, await move(core, tenant, ids), strict=True):
        if isinstance(answer, CodeqError):
            refused[task_id] = answer.code
        else:
            moved.append(task_id)
    return BulkResult(len(moved), len(moved), moved, refused)


async def _each_dead(
    core: Core, tenant: str, wanted: Filter, move: Callable[[Task, int], Change], *, limit: int, dry_run: bool
) -> BulkResult:
    now_ms = core.store.now_ms()
    dead = msgspec.structs.replace(wanted, index=Index.DEAD)
    matched: list[str] = []
    changed = 0
    cursor: str | None = None
    while len(matched) < limit:
        page = await core.store.find(tenant, dead, cursor=cursor, limit=min(LIST_TASKS_MAX, limit - len(matched)))
        matched += [task.id for task in page.tasks]
        if not dry_run and page.tasks:
            moved = await move_each(core, tenant, [t.id for t in page.tasks], lambda _, task: move(task, now_ms))
            changed += sum(isinstance(answer, Task) for answer in moved)
            await core.store.flush()
        cursor = page.cursor
        if cursor is None:
            break
    return BulkResult(len(matched), changed, matched[:LIST_TASKS_MAX])


def _check_policy(policy: QueuePolicy) -> None:
    """What is stored here is read again at every start, so it must be right."""
    validation.whole(policy.max_attempts, "max attempts", ATTEMPTS_MIN, ATTEMPTS_MAX)
    validation.whole(policy.max_deliveries, "max deliveries", 1, DELIVERIES_MAX)
    validation.lease_ms(policy.lease_ms)
    validation.backoff(policy.backoff)
    validation.whole(policy.retention_ms, "retention in milliseconds", 0, RETENTION_MS_MAX)
    validation.whole(policy.dead_retention_ms, "dead retention in milliseconds", 0, RETENTION_MS_MAX)
    validation.whole(policy.max_consumers, "max consumers", 0, CONSUMERS_MAX)
    if policy.on_expiry not in list(OnExpiry):
        raise InvalidRequest(f"on_expiry must be one of {', '.join(OnExpiry)}")
    if not isinstance(policy.paused, bool):
        raise InvalidRequest("paused is true or false")
