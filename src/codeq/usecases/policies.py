"""Reads, replaces and deletes the policy of one queue, and pauses it."""

import msgspec

from codeq.domain import validation
from codeq.domain.queue import QueueKey, QueuePolicy
from codeq.usecases.core import Core, durable


def get_policy(core: Core, queue: QueueKey) -> QueuePolicy | None:
    """Returns the queue's own policy; None where the defaults apply."""
    validation.name(queue.command, "command")
    return core.store.policies().get(queue)


@durable
async def put_policy(core: Core, queue: QueueKey, policy: QueuePolicy) -> tuple[QueuePolicy, bool]:
    """Stores the policy as a new version, unless it changes nothing. Returns the stored one, and whether it is new."""
    now_ms = core.store.now_ms()
    before = core.store.policies().get(queue)
    if before is None:
        stored = msgspec.structs.replace(policy, version=1, created_ms=now_ms, updated_ms=now_ms)
    else:
        stored = msgspec.structs.replace(
            policy, version=before.version, created_ms=before.created_ms, updated_ms=before.updated_ms
        )
        if stored != before:
            stored = msgspec.structs.replace(stored, version=before.version + 1, updated_ms=now_ms)
    if stored != before:
        await _store(core, queue, stored)
    return stored, before is None


@durable
async def set_policy(core: Core, queue: QueueKey, policy: QueuePolicy | None) -> None:
    """Replaces the policy of a queue; None for the defaults. Waiting claims are retried."""
    await _store(core, queue, policy)


@durable
async def set_paused(core: Core, queue: QueueKey, *, paused: bool) -> None:
    """Stops or resumes the delivery of the queue's tasks, and leaves its other rules as they are."""
    now_ms = core.store.now_ms()
    policy = core.store.policies().get(queue) or msgspec.structs.replace(core.defaults, version=0, created_ms=now_ms)
    if policy.paused != paused:
        changed = msgspec.structs.replace(policy, paused=paused, version=policy.version + 1, updated_ms=now_ms)
        await _store(core, queue, changed)


async def _store(core: Core, queue: QueueKey, policy: QueuePolicy | None) -> None:
    validation.name(queue.tenant, "tenant")
    validation.name(queue.command, "command")
    if policy is not None:
        validation.policy(policy)
    elif queue not in core.store.policies():
        return
    await core.store.set_policy(queue, policy)
    core.waiters.ready(queue, 1)
