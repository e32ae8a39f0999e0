"""Look-ups of host names are bounded, and whoever finds no room for one waits: its receiver has not failed."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.server.in_process_server import InProcessServer

from codeq.domain.limits import WEBHOOK_LOOKUPS_MAX, WEBHOOK_TENANT_LOOKUPS_MAX
from codeq.domain.queue import WEBHOOKS
from codeq.domain.webhooks import WebhookRules
from codeq.server.webhooks.attempts import Attempts
from codeq.server.webhooks.lookups import LookUps, LookUpsBusy
from codeq.server.webhooks.secrets import Secrets
from codeq.server.webhooks.sender import Sender
from codeq.server.webhooks.slots import HostSlots
from codeq.usecases import deliver

PUBLIC = "93.184.216.34"


class HangingNames:
    """Resolves names that begin with `hanging` once it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def resolve(self, host: str, port: int) -> Sequence[str]:  # noqa: ARG002
        if host.startswith("hanging"):
            self.may_answer.wait(60)
        return [PUBLIC]


async def hang(lookups: LookUps, tenant: str) -> "list[asyncio.Task[Sequence[str]]]":
    """Begins as many look-ups as a tenant may have."""
    begun = [
        asyncio.create_task(lookups.look_up(f"hanging{number}", 80, tenant))
        for number in range(WEBHOOK_TENANT_LOOKUPS_MAX)
    ]
    await asyncio.sleep(0)
    return begun


def test_look_ups_that_hang_leave_threads_to_other_tenants() -> None:
    names = HangingNames()

    async def run() -> None:
        lookups = LookUps(names.resolve, wait_s=0.01)
        hung = await hang(lookups, "mallory")
        with pytest.raises(LookUpsBusy):
            await lookups.look_up("a.example", 80, "mallory")
        assert await lookups.look_up("a.example", 80, "acme") == [PUBLIC]
        hung[0].cancel()
        await asyncio.gather(hung[0], return_exceptions=True)
        with pytest.raises(LookUpsBusy):  # its thread is still there
            await lookups.look_up("a.example", 80, "mallory")
        names.may_answer.set()
        await asyncio.gather(*hung[1:])
        assert await lookups.look_up("a.example", 80, "mallory") == [PUBLIC]

    asyncio.run(run())


def test_a_tenant_with_many_hosts_waits_for_room_instead_of_failing() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def slow(host: str, port: int) -> Sequence[str]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return [PUBLIC]

    async def run() -> None:
        lookups = LookUps(slow)
        found = await asyncio.gather(*[lookups.look_up(f"{number}.example", 80, "acme") for number in range(50)])
        assert found == [[PUBLIC]] * 50
        assert most <= WEBHOOK_TENANT_LOOKUPS_MAX

    asyncio.run(run())


def test_a_delivery_that_finds_no_room_for_a_look_up_counts_no_attempt(tmp_path: Path) -> None:
    """Names of other tenants that nobody answers for would else have it dead within half a minute."""
    names = HangingNames()

    async def run() -> None:
        server = InProcessServer(tmp_path)
        async with server.running():
            core = server.state.core
            lookups = LookUps(names.resolve, wait_s=0.01)
            for number in range(WEBHOOK_LOOKUPS_MAX // WEBHOOK_TENANT_LOOKUPS_MAX):
                await hang(lookups, f"mallory-{number}")
            sender = Sender(WebhookRules(), Secrets(), lookups=lookups)
            attempts = Attempts(core, sender, HostSlots(8), metrics=server.state.metrics.webhooks)
            made = await deliver.enqueue_test(core, "acme", "https://hooks.example.com/")
            [taken] = await deliver.take(core, "acme", worker="server", limit=1, lease_ms=10_000)
            await attempts.run(taken)
            [after] = await core.store.get_tasks("acme", [made.id])
            assert after is not None
            assert (after.command, after.attempts, after.worker) == (WEBHOOKS, 0, None)
            assert after.visible_ms > core.now_ms()
            names.may_answer.set()

    asyncio.run(run())
