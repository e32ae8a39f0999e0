"""Leases ready tasks to a worker, at once or as soon as there are some."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from codeq.domain import lifecycle, validation
from codeq.domain.errors import InvalidRequest, StoreBusy, StoreUnavailable
from codeq.domain.limits import BATCH_TASKS_MAX, CLAIM_COMMANDS_MAX, CLAIM_WAIT_MS_MAX
from codeq.domain.queue import QueueKey
from codeq.domain.requests import Claim, Delivery
from codeq.domain.task import Change, Holder, Task
from codeq.store.interface import ClaimRequest
from codeq.usecases import sweep
from codeq.usecases.core import Core
from codeq.usecases.moves import move_each
from codeq.usecases.waiters import EVERY


async def claim(core: Core, tenant: str, wanted: Claim) -> list[Delivery]:
    """Leases up to `limit` tasks to the worker. Returns none only if no queue had any until `wait_ms` had passed. With
    the `request_id` of a claim whose tasks are still leased by it, returns those, each with a whole lease again.

    Not `@durable`, because the wait for the disk can be cancelled too: a caller that disconnects loses no task, what
    was leased to it returns to its queue, and no attempt is counted.
    """
    _check(tenant, wanted)
    attempt = _ClaimAttempt(core, tenant, wanted)
    await sweep.before_claim(core, tenant, wanted.commands)
    await core.waiters.serve_first()
    since = core.waiters.signals
    deliveries = await attempt.take()
    if not deliveries and wanted.wait_ms:
        async with core.store.peers.watch(attempt.queues):
            deliveries = await core.waiters.wait_for_tasks(attempt, wanted.wait_ms, since=since)
    try:
        await core.store.flush([delivery.task.id for delivery in deliveries])
    except (asyncio.CancelledError, StoreBusy, StoreUnavailable):
        await attempt.hand_back(deliveries)
        raise
    return deliveries


class _ClaimAttempt:
    """One claim, tried now and again whenever one of its queues has tasks. Implements `waiters.Claimant`."""

    def __init__(self, core: Core, tenant: str, wanted: Claim) -> None:
        self._core = core
        self._tenant = tenant
        self._wanted = wanted

    @property
    def queues(self) -> Sequence[QueueKey]:
        return [QueueKey(self._tenant, command) for command in self._wanted.commands or [EVERY]]

    async def take(self) -> list[Delivery]:
        core, wanted = self._core, self._wanted
        taken = await core.store.take(
            ClaimRequest(
                tenant=self._tenant,
                commands=wanted.commands,
                worker=wanted.worker,
                lease_ms=wanted.lease_ms,
                limit=wanted.limit,
                policy_of=core.policy_of,
                hand_back=self.hand_back,
                request_id=wanted.request_id,
            )
        )
        return await self._renewed(taken) if taken and taken[0].is_repeat else taken

    async def _renewed(self, repeated: Sequence[Delivery]) -> list[Delivery]:
        """Extends the leases of tasks that were asked for again, each by a millisecond at least: so the call that they
        were first leased for, whose caller has gone, does not hand them back. Leaves out those that were moved
        meanwhile, and commands that this call did not ask for."""
        core, wanted, now_ms = self._core, self._wanted, self._core.store.now_ms()
        found = [each for each in repeated if wanted.commands is None or each.task.command in wanted.commands]
        changes: list[Change] = []
        for task in [each.task for each in found]:
            lease_ms = wanted.lease_ms or core.policy(task.tenant, task.command).lease_ms
            longer_ms = max(lease_ms, task.lease_until_ms + 1 - now_ms)
            changes.append(lifecycle.heartbeat(task, _holder(task), now_ms, lease_ms=longer_ms))
        renewed = await core.store.commit(changes)
        return [Delivery(task, each.body, True) for task, each in zip(renewed, found, strict=True) if task is not None]

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        await hand_back(self._core, self._tenant, leases_of(deliveries))


class Lease(NamedTuple):
    """What is needed to hand back a task: small, as it is kept until the answer to a claim has arrived."""

    task_id: str
    holder: Holder
    until_ms: int


def leases_of(deliveries: Sequence[Delivery]) -> list[Lease]:
    """Returns the leases to hand back if the caller has gone. Of calls with the same request id only the first hands
    back, and only while it is alone: which of the others the caller still listens to, nobody knows."""
    tasks = [delivery.task for delivery in deliveries if not delivery.is_repeat]
    return [Lease(task.id, _holder(task), task.lease_until_ms) for task in tasks]


async def hand_back(core: Core, tenant: str, leases: Sequence[Lease]) -> None:
    """Returns tasks to their queues that were leased for a caller that has gone. Leaves alone those whose lease has
    ended or was extended since: another call with the same request id got them too."""
    now_ms = core.store.now_ms()

    def decide(place: int, task: Task) -> Change | None:
        lease = leases[place]
        if task.lease_until_ms != lease.until_ms:
            return None
        return lifecycle.abandon(task, lease.holder, now_ms, retention_ms=core.dead_retention_ms(task))

    await move_each(core, tenant, [lease.task_id for lease in leases], decide)


def _holder(task: Task) -> Holder:
    return Holder(task.worker or "", task.lease_token)


def _check(tenant: str, wanted: Claim) -> None:
    validation.tenant(tenant)
    validation.worker(wanted.worker)
    validation.integer(wanted.limit, "limit", 1, BATCH_TASKS_MAX)
    if wanted.wait_ms:
        validation.integer(wanted.wait_ms, "wait in milliseconds", 0, CLAIM_WAIT_MS_MAX)
    if wanted.lease_ms is not None:
        validation.lease_ms(wanted.lease_ms)
    if wanted.request_id is not None:
        validation.request_id(wanted.request_id)
    if wanted.commands is not None:
        if not 1 <= len(wanted.commands) <= CLAIM_COMMANDS_MAX or len(set(wanted.commands)) < len(wanted.commands):
            raise InvalidRequest(f"a claim names 1 to {CLAIM_COMMANDS_MAX} different commands")
        for command in wanted.commands:
            validation.name(command, "command")
