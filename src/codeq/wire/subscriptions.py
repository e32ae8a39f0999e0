"""Messages about subscriptions: workers that want to be told when their queues have tasks."""

from typing import Annotated

from msgspec import Meta

from codeq.domain.limits import (
    CLAIM_COMMANDS_MAX,
    GROUP_CHARS_MAX,
    SUBSCRIPTION_INTERVAL_MS_MAX,
    SUBSCRIPTION_TTL_MS_MAX,
)
from codeq.domain.subscriptions import Subscription
from codeq.wire import times
from codeq.wire.message import Name, Request, WireStruct

EVERY_COMMAND = "*"
TtlSeconds = Annotated[float, Meta(ge=0, le=SUBSCRIPTION_TTL_MS_MAX / 1000)]


class Subscribe(Request, frozen=True, kw_only=True, gc=False):
    callback_url: str
    """Gets a POST when a queue becomes non-empty. Under the same rules as a task's `webhook`."""
    event_types: Annotated[list[Name], Meta(max_length=CLAIM_COMMANDS_MAX)] | None = None
    """Commands; by default those of the token, all if it names none."""
    ttl_seconds: TtlSeconds = 0
    """Ends the subscription unless it is renewed; 0 for 300."""
    delivery_mode: str = "fanout"
    """`fanout`: every subscription is notified; `group`: one of each group, in rotation; `hash`: the one that the id of
    the task hashes to."""
    group_id: Annotated[str, Meta(max_length=GROUP_CHARS_MAX)] | None = None
    min_interval_seconds: Annotated[float, Meta(ge=0, le=SUBSCRIPTION_INTERVAL_MS_MAX / 1000)] | None = None
    """At most one notification in this time; 5 by default."""


class RenewSubscription(Request, frozen=True, kw_only=True, gc=False):
    ttl_seconds: TtlSeconds = 0
    """0 for as long as it was made for."""


class Subscribed(WireStruct, frozen=True, kw_only=True, gc=False):
    subscription_id: str
    expires_at: str


class SubscriptionView(WireStruct, frozen=True, kw_only=True, gc=False):
    id: str
    callback_url: str
    event_types: list[str]
    """`*` for all commands."""
    delivery_mode: str
    group_id: str | None
    min_interval_seconds: float
    owner: str
    """The subject of the token that made it."""
    created_at: str
    expires_at: str


class SubscriptionViews(WireStruct, frozen=True, kw_only=True, gc=False):
    subscriptions: list[SubscriptionView]


class QueueReady(WireStruct, frozen=True, kw_only=True, gc=False):
    """The body of a notification: a queue has become non-empty."""

    event_type: str
    """The command."""
    available: bool = True
    queue_depth: int
    """Claimable tasks at that time."""
    claim_url: str
    sent_at: str
    notification_id: str
    subscription_id: str


def view(each: Subscription) -> SubscriptionView:
    return SubscriptionView(
        id=each.id,
        callback_url=each.url,
        event_types=list(each.commands) if each.commands is not None else [EVERY_COMMAND],
        delivery_mode=each.mode,
        group_id=each.group,
        min_interval_seconds=each.min_interval_ms / 1000,
        owner=each.owner,
        created_at=times.text(each.created_ms),
        expires_at=times.text(each.expires_ms),
    )


def subscribed(made: Subscription) -> Subscribed:
    return Subscribed(subscription_id=made.id, expires_at=times.text(made.expires_ms))
