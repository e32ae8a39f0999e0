"""Sends the deliveries of all tenants: bounded, fair between tenants, and beside every request.

    Backlog.next ─▶ a tenant ─ Slots.reserve ─▶ deliver.take ─▶ each delivery on its own: Attempts.run

A tenant whose turn it is gets some slots, then the next one is served. Idle tenants cost nothing: the store says who
has deliveries, and where other processes share the store, one of them looks now and then for what a dead one left.
"""

import asyncio
import logging
from collections.abc import Coroutine
from time import monotonic

import httpcore

from codeq.domain.limits import PAYLOAD_BYTES_MAX
from codeq.domain.requests import Delivery
from codeq.server.logs import log
from codeq.server.webhooks.attempts import HOST_WAIT_S, PASSING, RETRY_S, Attempts
from codeq.server.webhooks.slots import SlotLimits, Slots
from codeq.usecases import deliver
from codeq.usecases.core import Core

LEASE_MARGIN_S = 15.0
"""A lease lasts for the time-out, the wait for a slot, and this: to record the outcome on a slow disk."""
LOOK_S_MIN, LOOK_SHARE = 5.0, 20
"""How often to look for deliveries that other processes left: not more often than this, nor for more than a twentieth
of the time."""


class Dispatcher:
    """Runs until it is cancelled or stopped, and raises what should end the process."""

    def __init__(
        self,
        core: Core,
        backlog: deliver.Backlog,
        attempts: Attempts,
        *,
        worker: str,
        timeout_s: float,
        limits: SlotLimits = SlotLimits(),  # noqa: B008 - immutable
    ) -> None:
        """`timeout_s` is that of the sender."""
        self._core = core
        self._backlog = backlog
        self._attempts = attempts
        self._worker = worker
        self._slots = Slots(limits)
        self._lease_ms = round((timeout_s + HOST_WAIT_S + LEASE_MARGIN_S) * 1000)
        self._running: set[asyncio.Task[None]] = set()
        self._waiting: set[str] = set()
        """Tenants with more to send than slots; each is in rotation again when one of its slots is free."""
        self._is_stopping = False
        self._fault: BaseException | None = None

    @property
    def in_flight(self) -> int:
        return self._slots.used

    async def run(self) -> None:
        await httpcore.AnyIOBackend().sleep(0)  # loads what the first delivery would else wait for
        looking = asyncio.get_running_loop().create_task(self._look_for_missed())
        looking.add_done_callback(self._ended)
        try:
            while not self._is_stopping:
                if self._fault is not None:
                    raise self._fault
                self._backlog.changed.clear()
                self._serve_tenants()
                await self._backlog.changed.wait()
        finally:
            looking.cancel()

    def stop_taking(self) -> None:
        """Takes no more deliveries; those under way go on."""
        self._is_stopping = True
        self._backlog.changed.set()

    async def stop(self, grace_s: float) -> None:
        """Returns when no delivery is under way. Those that take longer than the grace are handed back."""
        self.stop_taking()
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=LEASE_MARGIN_S)

    # -- whose deliveries ----------------------------------------------------------------------------------------

    def _serve_tenants(self) -> None:
        while not self._slots.is_full and not self._is_stopping:
            tenant = self._backlog.next()
            if tenant is None:
                return
            number = self._slots.reserve(tenant)
            if number:
                self._start(self._serve(tenant, number))
            else:
                self._waiting.add(tenant)

    async def _serve(self, tenant: str, number: int) -> None:
        """Takes up to `number` deliveries of the tenant, for which it has slots, and starts them."""
        self._slots.hold_bytes(PAYLOAD_BYTES_MAX)  # of what it takes, nobody knows yet how large it is
        taken: list[Delivery] = []
        try:
            taken = await deliver.take(self._core, tenant, worker=self._worker, limit=number, lease_ms=self._lease_ms)
        except PASSING as fault:
            log(logging.WARNING, "deliveries cannot be taken, trying again", fault=str(fault))
            await asyncio.sleep(RETRY_S)
            self._backlog.add(tenant)
        finally:
            self._slots.hold_bytes(-PAYLOAD_BYTES_MAX)
            if len(taken) < number:
                self._release(tenant, number - len(taken))
        if taken:
            self._backlog.add(tenant)  # there may be more; large ones are taken one by one
        for delivery in taken:
            self._slots.hold_bytes(delivery.task.payload_bytes)
            self._start(self._deliver(delivery))

    def _release(self, tenant: str, number: int = 1) -> None:
        self._slots.release(tenant, number)
        if tenant in self._waiting:
            self._waiting.discard(tenant)
            self._backlog.add(tenant)
        self._backlog.changed.set()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fault = task.exception()
            self._backlog.changed.set()

    async def _look_for_missed(self) -> None:
        took_s = 0.0
        has_looked = False
        while True:
            if self._backlog.may_have_missed:
                began_s = monotonic()
                try:
                    if not has_looked or await self._core.is_sweeper():
                        await deliver.find_backlog(self._core, self._backlog)
                        has_looked = True
                except PASSING as fault:
                    log(logging.WARNING, "the backlog of deliveries cannot be read, trying again", fault=str(fault))
                    self._backlog.may_have_missed = True
                took_s = monotonic() - began_s
            await asyncio.sleep(max(LOOK_S_MIN, took_s * LOOK_SHARE))

    async def _deliver(self, delivery: Delivery) -> None:
        task = delivery.task
        try:
            await self._attempts.run(delivery)
        finally:
            self._slots.hold_bytes(-task.payload_bytes)
            self._release(task.tenant)
