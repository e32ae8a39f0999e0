"""Deliveries to a host that has failed again and again wait for it, but not for ever."""

import asyncio
from pathlib import Path

import pytest
from tests.server.in_process_server import InProcessServer

from codeq.domain.task import Task
from codeq.domain.webhooks import WebhookRules
from codeq.server.webhooks import attempts as attempts_file
from codeq.server.webhooks.attempts import Attempts
from codeq.server.webhooks.breaker import FAILURES_MAX, OPEN_S_MIN, Breakers
from codeq.server.webhooks.secrets import Secrets
from codeq.server.webhooks.sender import Sender
from codeq.server.webhooks.slots import HostSlots
from codeq.usecases import deliver, replay, sweep

URL = "https://hooks.example.com/"


class StoppedClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def attempts_while_open(server: InProcessServer) -> Attempts:
    """Returns what finds the breaker of the host open, for a millisecond more, whenever it looks."""
    clock = StoppedClock()
    breakers = Breakers(clock)
    for _ in range(FAILURES_MAX):
        breakers.failed("acme", URL.rstrip("/"))
    clock.now_s = OPEN_S_MIN - 0.001
    sender = Sender(WebhookRules(), Secrets())
    metrics = server.state.metrics.webhooks
    return Attempts(server.state.core, sender, HostSlots(8), metrics=metrics, breakers=breakers)


async def taken_once(server: InProcessServer, attempts: Attempts) -> Task:
    """Has the one delivery that there is taken and attempted, and returns it."""
    core = server.state.core
    async with asyncio.timeout(10):
        while not (taken := await deliver.take(core, "acme", worker="server", limit=1, lease_ms=10_000)):
            await sweep.promote_due(core)
    await attempts.run(taken[0])
    [after] = await core.store.get_tasks("acme", [taken[0].task.id])
    assert after is not None
    return after


def test_a_delivery_waits_for_days_and_is_dead_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_file, "BREAKER_PAUSE_S", 0)

    async def run() -> None:
        server = InProcessServer(tmp_path)
        async with server.running():
            attempts = attempts_while_open(server)
            made = await deliver.enqueue_test(server.state.core, "acme", URL)
            for _ in range(10):
                waits = await taken_once(server, attempts)
                assert (waits.is_dead, waits.attempts) == (False, 0)
            monkeypatch.setattr(attempts_file, "WEBHOOK_WAIT_MS_MAX", 0)
            dead = await taken_once(server, attempts)
            assert (dead.is_dead, dead.last_error) == (True, "given up: the host has failed for days")
            await replay.replay(server.state.core, "acme", [made.id], limit=1)
            for _ in range(made.max_attempts):
                again = await taken_once(server, attempts)
                assert not again.is_dead, "a replayed one gets its trials, however old it is"
            assert (await taken_once(server, attempts)).is_dead

    asyncio.run(run())
