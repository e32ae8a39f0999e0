"""Hand ready tasks to a worker, at once or as soon as there are some."""

import asyncio
from collections.abc import Sequence

from codeq.domain import lifecycle, validation
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import BATCH_TASKS_MAX, CLAIM_COMMANDS_MAX, CLAIM_WAIT_MS_MAX, INSPECT_TASKS_MAX
from codeq.domain.queue import QueueKey
from codeq.domain.requests import Claim, Delivery
from codeq.domain.task import Holder, Task
from codeq.store.interface import ClaimRequest
from codeq.usecases import sweep
from codeq.usecases.core import Core
from codeq.usecases.waiters import EVERY


async def claim(core: Core, tenant: str, wanted: Claim) -> list[Delivery]:
    """Up to `limit` tasks, leased to the worker. None only if no queue had any until `wait_ms` had passed.

    A caller that is cancelled loses no task: what was leased to it goes back to its queue, uncounted.
    """
    _check(tenant, wanted)
    await sweep.before_claim(core, INSPECT_TASKS_MAX)
    await core.waiters.serve()  # those who waited before come first
    deliveries = await _take(core, tenant, wanted)
    if not deliveries and wanted.wait_ms:
        deliveries = await core.waiters.wait(
            [QueueKey(tenant, command) for command in wanted.commands or [EVERY]],
            lambda: _take(core, tenant, wanted),
            lambda unwanted: _hand_back(core, unwanted),
            wanted.wait_ms,
        )
    try:
        await core.store.flush()
    except asyncio.CancelledError:
        await _hand_back(core, deliveries)
        raise
    return deliveries


async def _take(core: Core, tenant: str, wanted: Claim) -> list[Delivery]:
    queues = await _open_queues(core, tenant, wanted.commands)
    if not queues:
        return []
    policies = {queue: core.policy(*queue) for queue in queues}
    order = ClaimRequest(
        queues=queues,
        worker=wanted.worker,
        lease_ms=wanted.lease_ms or policies[queues[0]].lease_ms,
        limit=wanted.limit,
        limits={queue: policy.max_consumers for queue, policy in policies.items() if policy.max_consumers},
    )
    return await core.store.take(order)


async def _open_queues(core: Core, tenant: str, commands: Sequence[str] | None) -> list[QueueKey]:
    wanted = sorted(await core.store.counts(tenant)) if commands is None else [QueueKey(tenant, c) for c in commands]
    return [queue for queue in wanted if not core.policy(*queue).paused]


async def _hand_back(core: Core, deliveries: Sequence[Delivery]) -> None:
    now_ms = core.store.now_ms()
    tasks = [delivery.task for delivery in deliveries]
    await core.store.commit([lifecycle.abandon(t, _holder(t), now_ms, keep_ms=core.keep_dead_ms(t)) for t in tasks])


def _holder(task: Task) -> Holder:
    return Holder(task.worker or "", task.lease_token)


def _check(tenant: str, wanted: Claim) -> None:
    validation.name(tenant, "tenant")
    validation.worker(wanted.worker)
    validation.whole(wanted.limit, "limit", 1, BATCH_TASKS_MAX)
    if wanted.wait_ms:
        validation.whole(wanted.wait_ms, "wait in milliseconds", 0, CLAIM_WAIT_MS_MAX)
    if wanted.lease_ms is not None:
        validation.lease_ms(wanted.lease_ms)
    if wanted.commands is not None:
        if not 1 <= len(wanted.commands) <= CLAIM_COMMANDS_MAX or len(set(wanted.commands)) < len(wanted.commands):
            raise InvalidRequest(f"a claim names 1 to {CLAIM_COMMANDS_MAX} different commands")
        for command in wanted.commands:
            validation.name(command, "command")
