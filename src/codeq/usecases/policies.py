"""Reads, sets and deletes the policy of one queue, and pauses it."""

import msgspec

from codeq.domain import validation
from codeq.domain.errors import PolicyChanged
from codeq.domain.queue import EffectivePolicy, QueueKey, QueuePolicy
from codeq.usecases.core import Core, durable
from codeq.usecases.tenant_limits import check_policies

_TRIES = 4


def get_policy(core: Core, queue: QueueKey) -> QueuePolicy | None:
    """Returns the queue's own policy; None where the defaults apply."""
    validation.queue_name(queue.command, "command")
    return core.store.policies().get(queue)


def get_effective(core: Core, queue: QueueKey) -> EffectivePolicy:
    """Returns the rules that apply in the queue."""
    validation.queue_name(queue.command, "command")
    return core.policy(*queue)


@durable
async def put_policy(
    core: Core, queue: QueueKey, policy: QueuePolicy, *, if_match: str | None = None
) -> tuple[QueuePolicy, bool]:
    """Replaces the queue's own policy by a new version, unless it changes nothing. Returns the stored one, and whether
    it is the first.

    With `if_match`, the etag or version of a policy ("0" for none, "*" for any), raises PolicyChanged if the queue has
    another. A call that changes nothing is accepted all the same: it may be a repetition of one that was.
    """
    return await _put(core, queue, policy, if_match=if_match)


@durable
async def delete_policy(core: Core, queue: QueueKey, *, if_match: str | None = None) -> None:
    """Deletes the queue's own policy, so that the defaults apply. `if_match` as in `put_policy`."""
    validation.queue_name(queue.command, "command")
    before = core.store.policies().get(queue)
    if before is None:
        return
    _check_match(queue, before, if_match)
    try:
        await _replace(core, queue, before, None)
    except PolicyChanged:
        if if_match is not None or core.store.policies().get(queue) is not None:
            raise  # otherwise another server has deleted it meanwhile, as was asked


@durable
async def set_paused(core: Core, queue: QueueKey, *, paused: bool) -> None:
    """Stops or resumes the delivery of the queue's tasks, and leaves its other rules as they are, or as another server
    has changed them meanwhile."""
    for tries_left in reversed(range(_TRIES)):
        if get_effective(core, queue).paused == paused:
            return
        policy = get_policy(core, queue) or QueuePolicy()
        try:
            await _put(core, queue, msgspec.structs.replace(policy, paused=paused))
        except PolicyChanged:
            if not tries_left:
                raise


async def _put(
    core: Core, queue: QueueKey, policy: QueuePolicy, *, if_match: str | None = None
) -> tuple[QueuePolicy, bool]:
    validation.tenant(queue.tenant)
    validation.queue_name(queue.command, "command")
    validation.policy(policy, queue.command)
    before = core.store.policies().get(queue)
    now_ms = core.store.now_ms()
    known = before or QueuePolicy(created_ms=now_ms)
    same = msgspec.structs.replace(
        policy, version=known.version, created_ms=known.created_ms, updated_ms=known.updated_ms
    )
    if same == before:
        return same, False
    _check_match(queue, before, if_match)
    await check_policies(core, queue)
    stored = msgspec.structs.replace(same, version=known.version + 1, updated_ms=now_ms)
    await _replace(core, queue, before, stored)
    return stored, before is None


async def _replace(core: Core, queue: QueueKey, before: QueuePolicy | None, after: QueuePolicy | None) -> None:
    if not await core.store.set_policy(queue, after, replacing=before):
        raise PolicyChanged(f"the policy of {queue.command!r} was changed by another call meanwhile; read it again")


def _check_match(queue: QueueKey, before: QueuePolicy | None, if_match: str | None) -> None:
    current = before or QueuePolicy()
    if if_match in (None, current.etag, str(current.version)) or (before and if_match == "*"):
        return
    raise PolicyChanged(
        f"the policy of {queue.command!r} has version {current.version} (etag {current.etag}) now, not {if_match}; "
        "read it again"
    )
