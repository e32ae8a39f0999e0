"""Builds what sends webhooks, from the settings of a server."""

import logging
import ssl
from typing import TYPE_CHECKING

from codeq.server.logs import log
from codeq.server.webhooks.attempts import Attempts
from codeq.server.webhooks.dispatcher import Dispatcher
from codeq.server.webhooks.notifier import Notifier
from codeq.server.webhooks.sender import Sender
from codeq.server.webhooks.settings import WebhookSettings
from codeq.server.webhooks.slots import HostSlots
from codeq.usecases.deliver import Backlog
from codeq.usecases.ready_queues import ReadyQueues

if TYPE_CHECKING:
    from codeq.server.state import AppState


def make_sender(settings: WebhookSettings, *, is_dev: bool) -> Sender:
    if not is_dev and not (settings.secret or settings.master_secret or settings.tenants):
        log(logging.WARNING, "webhooks are sent without signatures; see docs/guides/webhooks.md")
    return Sender(
        settings.rules(),
        settings.secrets(),
        proxy=settings.proxy,
        timeout_s=settings.timeout_seconds,
        ssl_context=ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else None,
    )


def make_dispatcher(state: "AppState", backlog: Backlog, sender: Sender, *, process: str) -> Dispatcher:
    """Returns the dispatcher, not yet running. The backlog must be among the store's listeners."""
    settings = state.settings.webhooks
    limits = settings.limits()
    attempts = Attempts(
        state.core,
        sender,
        HostSlots(limits.host),
        metrics=state.metrics.webhooks,
        tracing=state.tracing,
    )
    dispatcher = Dispatcher(
        state.core, backlog, attempts, worker=process[:64], timeout_s=settings.timeout_seconds, limits=limits
    )
    state.metrics.webhooks.show(in_flight=lambda: dispatcher.in_flight, open_breakers=lambda: attempts.open_breakers)
    return dispatcher


def make_notifier(state: "AppState", ready: ReadyQueues, sender: Sender) -> Notifier:
    """Returns the notifier, not yet running. The ready queues must be among the store's listeners."""
    notifier = Notifier(state.core, ready, sender, metrics=state.metrics.webhooks)
    state.metrics.webhooks.show_subscriptions(lambda: notifier.subscriptions)
    return notifier
