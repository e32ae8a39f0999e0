"""Subscriptions of workers to queues: made, renewed, listed and deleted. They end when they are not renewed."""

import msgspec
from msgspec.structs import asdict, replace

from codeq.domain import validation
from codeq.domain.errors import InvalidRequest, NotFound, QuotaExceeded
from codeq.domain.limits import (
    CLAIM_COMMANDS_MAX,
    GROUP_CHARS_MAX,
    SUBSCRIPTION_INTERVAL_MS_MAX,
    SUBSCRIPTION_TTL_MS_MAX,
    SUBSCRIPTION_TTL_MS_MIN,
    SUBSCRIPTIONS_MAX,
)
from codeq.domain.subscriptions import DeliveryMode, Subscription
from codeq.store.interface import Registration
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core, durable
from codeq.usecases.sweep import SWEEPER

KIND = "subscription"
NOTIFIED, ROTATION = "notified", "rotation"
"""Kinds of entries about subscriptions and groups, made by `notify`. They outlive what they are about."""
NOTED_MAX = 4 * SUBSCRIPTIONS_MAX
"""Entries of each of these kinds that a tenant may have. Those of the living are `SUBSCRIPTIONS_MAX` at most."""

_REMOVED_AT_ONCE = 100
_decode = msgspec.json.Decoder(Subscription).decode


@durable
async def subscribe(core: Core, wanted: Subscription) -> Subscription:
    """Stores the subscription, with an id of its own, for its time to live."""
    _check(core, wanted)
    if len(await core.store.registry.entries(KIND, wanted.tenant)) >= SUBSCRIPTIONS_MAX:
        raise QuotaExceeded(
            f"the tenant has {SUBSCRIPTIONS_MAX} subscriptions, as many as it may have; delete some, or let them end",
            limit="subscriptions",
        )
    await _bound_notes(core, wanted.tenant)
    now_ms = core.now_ms()
    [new_id] = core.ids.generate(now_ms, core.shards, [0])
    given = {"id": new_id, "created_ms": now_ms, "expires_ms": now_ms + wanted.ttl_ms}
    made = Subscription(**(asdict(wanted) | given))
    await core.store.registry.put([_entry(made)])
    return made


@durable
async def renew(core: Core, tenant: str, subscription_id: str, *, ttl_ms: int | None = None) -> Subscription:
    """Extends the subscription by `ttl_ms`, by default as long as it was made for."""
    known = await get(core, tenant, subscription_id)
    ttl_ms = known.ttl_ms if ttl_ms is None else _ttl(ttl_ms)
    renewed = replace(known, ttl_ms=ttl_ms, expires_ms=core.now_ms() + ttl_ms)
    await core.store.registry.put([_entry(renewed)])
    return renewed


async def get(core: Core, tenant: str, subscription_id: str) -> Subscription:
    [entry] = await core.store.registry.get(KIND, tenant, [subscription_id])
    if entry is None:
        raise NotFound(f"there is no subscription {subscription_id[:64]!r}; it has ended, or was never made")
    return _decode(entry.value)


@durable
async def unsubscribe(core: Core, tenant: str, subscription_id: str) -> None:
    [was_there] = await core.store.registry.remove(KIND, tenant, [subscription_id])
    if not was_there:
        raise NotFound(f"there is no subscription {subscription_id[:64]!r}; it has ended, or was never made")


async def all_of(core: Core, tenant: str | None = None) -> list[Subscription]:
    """Returns the subscriptions of the tenant, or of all tenants, oldest first. Other calls run in between."""
    budget = LoopBudget(core, SWEEPER if tenant is None else tenant)
    await budget.yield_if_spent()
    found: list[Subscription] = []
    for entry in await core.store.registry.entries(KIND, tenant):
        if budget.is_spent:
            await budget.yield_if_spent()
        found.append(_decode(entry.value))
    return sorted(found, key=lambda each: each.id)


async def _bound_notes(core: Core, tenant: str) -> None:
    """Removes what was noted of subscriptions and groups that have ended, once there is much of it: whoever makes and
    ends them again and again must not fill the registry."""
    registry = core.store.registry
    for kind in (NOTIFIED, ROTATION):
        noted = [entry.name for entry in await registry.entries(kind, tenant)]
        if len(noted) <= NOTED_MAX:
            continue
        alive = await all_of(core, tenant)  # after the notes, which may be about a subscription just made
        keeps = {each.id if kind == NOTIFIED else each.group for each in alive}
        ended = [name for name in noted if name not in keeps]
        budget = LoopBudget(core, tenant)
        for start in range(0, len(ended), _REMOVED_AT_ONCE):
            await budget.yield_if_spent()
            await registry.remove(kind, tenant, ended[start : start + _REMOVED_AT_ONCE])


def _entry(made: Subscription) -> Registration:
    return Registration(
        kind=KIND, tenant=made.tenant, name=made.id, value=msgspec.json.encode(made), expires_ms=made.expires_ms
    )


def _check(core: Core, wanted: Subscription) -> None:
    core.webhook_rules.check(wanted.url, "callbackUrl")
    _ttl(wanted.ttl_ms)
    validation.integer(wanted.min_interval_ms, "least interval in milliseconds", 0, SUBSCRIPTION_INTERVAL_MS_MAX)
    if wanted.commands is not None:
        if not 1 <= len(wanted.commands) <= CLAIM_COMMANDS_MAX:
            raise InvalidRequest(f"a subscription names 1 to {CLAIM_COMMANDS_MAX} commands")
        for command in wanted.commands:
            validation.name(command, "command")
    if (wanted.mode is DeliveryMode.GROUP) != bool(wanted.group):
        raise InvalidRequest("groupId is for the delivery mode `group`, and required there")
    if wanted.group is not None and (len(wanted.group) > GROUP_CHARS_MAX or not wanted.group.isprintable()):
        raise InvalidRequest(f"groupId is printable text of at most {GROUP_CHARS_MAX} characters")


def _ttl(ttl_ms: int) -> int:
    return validation.integer(ttl_ms, "ttl in milliseconds", SUBSCRIPTION_TTL_MS_MIN, SUBSCRIPTION_TTL_MS_MAX)
