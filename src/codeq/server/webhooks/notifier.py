"""Sends notifications that queues have tasks: beside every request, bounded, each once and without a retry."""

import asyncio
import logging
from collections import OrderedDict, deque
from contextlib import aclosing, suppress

import msgspec

from codeq.domain.errors import StoreBusy, StoreUnavailable
from codeq.domain.limits import SUBSCRIPTIONS_MAX
from codeq.domain.subscriptions import Subscription
from codeq.server.logs import log
from codeq.server.webhooks.metrics import WebhookMetrics
from codeq.server.webhooks.sender import Sender, SendFailed, Webhook
from codeq.server.webhooks.slots import SlotLimits, Slots
from codeq.usecases import notify
from codeq.usecases.core import Core
from codeq.usecases.notify import Notification
from codeq.usecases.ready_queues import ReadyQueues
from codeq.usecases.subscribed_tenants import SubscriptionCounts
from codeq.wire import paths, times
from codeq.wire.subscriptions import QueueReady

PAUSE_S = 0.02
"""Between two looks: what happens to a queue meanwhile costs one look."""
RETRY_S = 1.0
LIMITS = SlotLimits(total=64, tenant=16)


class Notifier:
    """Runs until it is cancelled, and raises what should end the process. A subscription gets the next
    notification when it has answered the one before."""

    def __init__(
        self,
        core: Core,
        ready: ReadyQueues,
        sender: Sender,
        *,
        metrics: WebhookMetrics,
        limits: SlotLimits = LIMITS,
    ) -> None:
        self._core = core
        self._metrics = metrics
        self._ready = ready
        self._sender = sender
        self._slots = Slots(limits)
        self._waiting: OrderedDict[str, deque[Notification]] = OrderedDict()
        """By tenant, in rotation: those for which there is no slot yet."""
        self._busy: set[str] = set()
        """Subscriptions whose notification waits or is being sent: they get no second one meanwhile."""
        self._sending: set[asyncio.Task[None]] = set()

    def subscribed(self, subscription: Subscription) -> None:
        """Must be called for every subscription that this server made or renewed."""
        self._ready.put(subscription, self._core.now_ms())

    def unsubscribed(self, tenant: str, subscription_id: str) -> None:
        self._ready.remove(tenant, subscription_id)

    @property
    def subscriptions(self) -> SubscriptionCounts:
        return notify.counts_by_command(self._core, self._ready)

    async def run(self) -> None:
        try:
            while True:
                await self._wait()
                self._ready.changed.clear()
                await self._look()
                await asyncio.sleep(PAUSE_S)
        finally:
            for sending in self._sending:
                sending.cancel()

    async def _wait(self) -> None:
        """Returns when there is something to look at, or a deferred notification is due."""
        due_ms = self._ready.due_ms
        wait_s = None if due_ms is None else max(0.0, due_ms - self._core.now_ms()) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ready.changed.wait()

    async def _look(self) -> None:
        try:
            found = notify.notifications(self._core, self._ready, is_busy=self._busy.__contains__)
            async with aclosing(found):
                async for of_queue in found:
                    for notification in of_queue:
                        self._add(notification)
                    self._start_waiting()
        except (StoreBusy, StoreUnavailable) as fault:
            log(logging.WARNING, "queues cannot be looked at for notifications, trying again", fault=str(fault))
            await asyncio.sleep(RETRY_S)
            self._ready.look_again()

    def _add(self, notification: Notification) -> None:
        to = notification.subscription
        self._busy.add(to.id)
        self._waiting.setdefault(to.tenant, deque()).append(notification)

    def _start_waiting(self) -> None:
        """Starts as many as there are slots, one of each tenant in turn."""
        for tenant in list(self._waiting):
            reserved = self._slots.reserve(tenant)
            waiting = self._waiting[tenant]
            while len(waiting) > SUBSCRIPTIONS_MAX:  # so the oldest are of subscriptions that have ended since
                self._busy.discard(waiting.popleft().subscription.id)
            for _ in range(min(reserved, len(waiting))):
                self._start(waiting.popleft())
                reserved -= 1
            if reserved:
                self._slots.release(tenant, reserved)
            if waiting:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]

    def _start(self, notification: Notification) -> None:
        sending = asyncio.get_running_loop().create_task(self._send(notification))
        self._sending.add(sending)
        sending.add_done_callback(lambda done: self._ended(done, notification))

    def _ended(self, done: "asyncio.Task[None]", notification: Notification) -> None:
        to = notification.subscription
        self._sending.discard(done)
        self._busy.discard(to.id)
        self._slots.release(to.tenant)
        if not done.cancelled():
            if (fault := done.exception()) is not None:  # nobody foresaw it; a receiver that fails is no fault
                log(logging.ERROR, "a notification could not be sent", subscription=to.id, exc_info=fault)
            self._start_waiting()

    async def _send(self, notification: Notification) -> None:
        to = notification.subscription
        await self._core.turns.wait(to.tenant)  # receivers that answer at once must not use up the event loop
        body = QueueReady(
            event_type=notification.command,
            queue_depth=notification.queue_depth,
            claim_url=paths.CLAIM,
            sent_at=times.text(notification.at_ms),
            notification_id=notification.id,
            subscription_id=to.id,
        )
        traced = {"traceparent": notification.trace_parent, "tracestate": notification.trace_state}
        webhook = Webhook(
            tenant=to.tenant,
            id=notification.id,
            url=to.url,
            body=msgspec.json.encode(body),
            headers={name: value for name, value in traced.items() if value},
        )
        is_success = False
        with suppress(SendFailed):
            is_success = (await self._sender.send(webhook)).is_success
        self._metrics.delivered("queue_ready", notification.command, is_success=is_success)
