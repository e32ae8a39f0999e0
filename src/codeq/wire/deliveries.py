"""Messages about deliveries of result callbacks, for operators."""

from typing import Annotated, Any

from msgspec import Meta

from codeq.domain.limits import BATCH_TASKS_MAX, WEBHOOK_CHARS_MAX
from codeq.wire.message import Request, WireStruct

STATES = ("pending", "delayed", "in_progress", "dead", "delivered")


class DeliveryView(WireStruct, frozen=True, kw_only=True, gc=False):
    id: str
    """Also the `webhook-id` of every attempt."""
    task_id: str
    command: str
    """That of the task."""
    url: str
    state: str
    """pending, delayed (waits for its next attempt), in_progress, dead or delivered."""
    attempts: int
    """Failed attempts."""
    max_attempts: int
    created_at: str
    updated_at: str
    next_attempt_at: str | None = None
    ended_at: str | None = None
    last_error: str | None = None
    response: Any = None
    """Of a delivered one: the status, and how long it took. Only where one delivery is asked for; in MessagePack a byte
    string that holds JSON, as `body`."""
    body: Any = None
    """What is sent. Only where one delivery is asked for."""


class DeliveryPage(WireStruct, frozen=True, kw_only=True, gc=False):
    deliveries: list[DeliveryView]
    cursor: str | None = None


class SelectDeliveries(Request, frozen=True, kw_only=True, gc=False):
    """Which dead deliveries: these ids, or those with this text in their last error, or all."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=BATCH_TASKS_MAX)] | None = None
    error: Annotated[str, Meta(max_length=200)] | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    dry_run: bool = False


class WebhookTest(Request, frozen=True, kw_only=True, gc=False):
    url: Annotated[str, Meta(max_length=WEBHOOK_CHARS_MAX)]


class WebhookSecret(WireStruct, frozen=True, kw_only=True, gc=False):
    secrets: list[str]
    """Those with which the tenant's webhooks are signed, the current one first. Empty: they are not signed."""
