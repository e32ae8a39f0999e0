"""Notifications that wait for a slot are bounded, whoever makes subscriptions and ends them again."""

import asyncio
from pathlib import Path

import pytest
from tests.server.in_process_server import InProcessServer, until

from codeq.domain.limits import SUBSCRIPTIONS_MAX
from codeq.domain.subscriptions import DeliveryMode, Subscription
from codeq.domain.webhooks import WebhookRules
from codeq.server.webhooks.lookups import LookUps
from codeq.server.webhooks.notifier import Notifier
from codeq.server.webhooks.secrets import Secrets
from codeq.server.webhooks.sender import Answer, Sender, Webhook
from codeq.server.webhooks.slots import SlotLimits
from codeq.usecases.notify import Notification
from codeq.usecases.ready_queues import ReadyQueues


def notification(number: int) -> Notification:
    subscription = Subscription(
        id=f"subscription-{number}", tenant="acme", owner="ann", url="https://example.invalid/", commands=None,
        mode=DeliveryMode.FANOUT, group=None, min_interval_ms=0, ttl_ms=1000, created_ms=0, expires_ms=1000,
    )  # fmt: skip
    return Notification(
        id=f"ntf-{number}", subscription=subscription, command="work", queue_depth=1, at_ms=0, trace_parent=None,
        trace_state=None,
    )  # fmt: skip


def test_notifications_of_subscriptions_that_have_ended_do_not_pile_up(tmp_path: Path) -> None:
    """(13.20) Receivers that do not answer keep the slots of their tenant, so the others wait, each with its URL."""
    asyncio.run(check_waiting(tmp_path))


async def check_waiting(folder: Path) -> None:
    server = InProcessServer(folder)
    async with server.running():
        sender = Sender(WebhookRules(), Secrets(), lookups=LookUps())
        metrics = server.state.metrics.webhooks
        no_slot = SlotLimits(total=0, tenant=0)
        notifier = Notifier(server.state.core, ReadyQueues(), sender, metrics=metrics, limits=no_slot)
        for number in range(3 * SUBSCRIPTIONS_MAX):
            notifier._add(notification(number))
            notifier._start_waiting()
        [waiting] = notifier._waiting.values()
        assert [each.id for each in waiting][-1] == f"ntf-{3 * SUBSCRIPTIONS_MAX - 1}"
        assert len(waiting) == len(notifier._busy) == SUBSCRIPTIONS_MAX
        notifier._add(notification(0))
        assert waiting[-1].id == "ntf-0", "it no longer counts as one that waits"


class Broken(Sender):
    async def send(self, webhook: Webhook) -> Answer:
        raise ValueError(f"unforeseen: {webhook.id}")


def test_an_unforeseen_fault_of_a_notification_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        server = InProcessServer(tmp_path)
        async with server.running():
            sender = Broken(WebhookRules(), Secrets(), lookups=LookUps())
            metrics = server.state.metrics.webhooks
            notifier = Notifier(server.state.core, ReadyQueues(), sender, metrics=metrics)
            notifier._add(notification(1))
            notifier._start_waiting()
            await until(lambda: not notifier._busy)

    asyncio.run(story())
    assert "ValueError: unforeseen: ntf-1" in caplog.text
