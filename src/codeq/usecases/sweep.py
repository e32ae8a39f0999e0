"""Background work: delayed tasks become visible, lost leases expire, ended tasks and old events are deleted.

Each role does a bounded piece of work and returns how much it found; a stale change means another call was faster.
What passes is retried. Anything else ends the sweepers, and whoever runs them must stop: no delay and no lease ends
without them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from codeq.domain import lifecycle
from codeq.domain.errors import StoreBusy, StoreFull, StoreUnavailable
from codeq.domain.limits import BATCH_PIECE_MAX, SHORT_BATCH_MAX, SWEEP_TASKS_MAX
from codeq.domain.queue import Index
from codeq.domain.task import Change, Task
from codeq.store.interface import ALL, Scope
from codeq.usecases import artifact_sweep
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core
from codeq.usecases.probe import probe
from codeq.usecases.traces import created_in

EXPIRE_EVERY_S, PURGE_EVERY_S, TRIM_EVERY_S = 1.0, 1.0, 60.0
PROBE_EVERY_S = 5.0
"""How long a failed disk may stay unnoticed while nothing is written."""
SWEEPER = ""
"""Stands for the sweepers among the tenants that take turns. No tenant can have this name."""
RETRY_S = 0.2
"""Pause after a failure that passes: a flush of a slow disk takes longer, and after each there is room for a while."""

log = logging.getLogger("codeq.sweep")
_DELAYED, _IN_PROGRESS = Index.DELAYED, Index.IN_PROGRESS


class Role(Protocol):
    __name__: str

    def __call__(self, core: Core, limit: int, scope: Scope, /) -> Awaitable[int]:
        """Moves up to `limit` tasks, and returns how many it found."""


async def promote_due(core: Core, limit: int = SWEEP_TASKS_MAX, scope: Scope = ALL) -> int:
    now_ms = core.store.now_ms()
    due = await core.store.due(_DELAYED, now_ms, limit, scope=scope)
    if due:
        await _promote(core, due, now_ms)
    return len(due)


async def _promote(core: Core, due: Sequence[Task], now_ms: int) -> None:
    await _commit(core, [lifecycle.promote(task, now_ms) for task in due])


async def expire_leases(core: Core, limit: int = SWEEP_TASKS_MAX, scope: Scope = ALL) -> int:
    now_ms = core.store.now_ms()
    due = await core.store.due(_IN_PROGRESS, now_ms, limit, scope=scope)
    if due:
        await _expire(core, due, now_ms)
    return len(due)


async def _expire(core: Core, due: Sequence[Task], now_ms: int) -> None:
    await _commit(
        core,
        [
            lifecycle.expire(
                task, now_ms, retry_ms=core.expiry_retry_ms(task), retention_ms=core.dead_retention_ms(task)
            )
            for task in due
        ],
    )
    for task in due:
        core.slot_freed(task)


async def purge_finished(core: Core, limit: int = SWEEP_TASKS_MAX, scope: Scope = ALL) -> int:
    now_ms = core.store.now_ms()
    due = await core.store.due(Index.NONE, now_ms, limit, scope=scope)
    if due:
        await _commit(core, [lifecycle.purge(task, now_ms) for task in due])
    return len(due)


async def _commit(core: Core, changes: Sequence[Change]) -> None:
    if core.spans is None:
        await core.commit(changes)
        return
    parents = await created_in(core, [change.before for change in changes if change.before is not None])
    with core.spans.sweep(changes[0].move, parents, len(changes)):
        await core.commit(changes)


async def before_claim(core: Core, tenant: str, commands: Sequence[str] | None) -> None:
    """Promotes and expires what a claim of these commands must not overlook, and nothing else. Costs two look-ups per
    command when nothing is due."""
    store, limit = core.store, core.sweeping.inspect_limit
    now_ms, scope, piece = store.now_ms(), Scope(None, tenant, commands), min(SHORT_BATCH_MAX, limit)
    delayed = await store.due(_DELAYED, now_ms, piece, scope=scope)
    if delayed:
        await _promote(core, delayed, now_ms)
    expired = await store.due(_IN_PROGRESS, now_ms, piece, scope=scope)
    if expired:
        await _expire(core, expired, now_ms)
    if piece < limit and piece in (len(delayed), len(expired)):
        roles = [role for role, found in ((promote_due, delayed), (expire_leases, expired)) if len(found) == piece]
        await _sweep_more(core, roles, scope, limit - piece)


async def _sweep_more(core: Core, roles: Sequence[Role], scope: Scope, limit: int) -> None:
    """Does the rest of `before_claim` where much is due, and other calls run in between."""
    budget = LoopBudget(core, scope.tenant or "")
    for role in roles:
        left, found, piece = limit, 0, 0
        while left and found == piece:
            await budget.yield_if_spent()
            piece = min(left, BATCH_PIECE_MAX)
            found = await role(core, piece, scope)
            left -= piece


async def run(
    core: Core, *, events_keep_ms: int, events_keep_max: int, on_failure: Callable[[str], None] = lambda _: None
) -> None:
    """Runs every role at its own interval for every shard on its own, until cancelled.

    Calls `on_failure` with the role's name at each failure that is retried. Raises the first one that is not: also
    when another call has made the store fail, and within PROBE_EVERY_S of a disk's failure if there are no calls.
    """

    async def trim(core: Core, _: int, scope: Scope) -> int:
        before_ms = core.store.now_ms() - events_keep_ms
        await core.store.trim(before_ms=before_ms, keep_max=events_keep_max, shard=scope.shard)
        return 0

    async def probe_disks(core: Core, _: int, scope: Scope) -> int:  # noqa: ARG001 - one probe covers all shards
        await probe(core)
        return 0

    sweeping = core.sweeping
    roles: list[tuple[float, int, Role]] = [
        (sweeping.promote_every_s, sweeping.promote_limit, promote_due),
        (EXPIRE_EVERY_S, SWEEP_TASKS_MAX, expire_leases),
        (PURGE_EVERY_S, SWEEP_TASKS_MAX, purge_finished),
        (TRIM_EVERY_S, SWEEP_TASKS_MAX, trim),
    ]
    sweepers = [_Sweeper(core, PROBE_EVERY_S, probe_disks, 1, ALL)]
    for period_s, limit, role in roles:
        sweepers += [_Sweeper(core, period_s, role, limit, Scope(shard=shard)) for shard in range(core.shards)]
    try:
        async with asyncio.TaskGroup() as running:
            for sweeper in sweepers:
                running.create_task(sweeper.run(on_failure))
            if core.artifacts is not None:
                running.create_task(artifact_sweep.run(core, on_failure))
    except BaseExceptionGroup as faults:
        raise faults.exceptions[0] from None


class _Sweeper(NamedTuple):
    """One role for one shard, or for all."""

    core: Core
    period_s: float
    role: Role
    limit: int
    scope: Scope

    async def run(self, on_failure: Callable[[str], None]) -> None:
        failures = 0
        name = f"{self.role.__name__} of shard {self.scope.shard or 0}"
        while True:
            try:
                found = 0
                if self.scope.shard is None or await self.core.store.peers.is_sweeper(self.scope.shard):
                    found = await self.role(self.core, self.limit, self.scope)
                    await self.core.store.flush()
            except (StoreBusy, StoreFull, StoreUnavailable) as fault:
                if not failures:
                    log.warning("%s is retried: %s", name, fault)
                failures += 1
                on_failure(self.role.__name__)
                await asyncio.sleep(RETRY_S)
                continue
            if failures:
                log.warning("%s works again after %d failures", name, failures)
                failures = 0
            if found < self.limit:
                await asyncio.sleep(self.period_s)
            else:  # there is more
                await self.core.turns.wait(SWEEPER)
