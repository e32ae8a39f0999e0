"""Leases ready tasks to a worker, at once or as soon as there are some."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from codeq.domain import lifecycle, validation
from codeq.domain.errors import InvalidRequest, StoreBusy
from codeq.domain.limits import (
    BATCH_PIECE_MAX,
    BATCH_TASKS_MAX,
    CLAIM_BYTES_MAX,
    CLAIM_COMMANDS_MAX,
    CLAIM_WAIT_MS_MAX,
    PIECE_BYTES_MAX,
)
from codeq.domain.queue import QueueKey
from codeq.domain.requests import Claim, Delivery
from codeq.domain.task import Holder, Task
from codeq.store.interface import ClaimRequest
from codeq.usecases import sweep
from codeq.usecases.budget import LoopBudget, is_short
from codeq.usecases.core import Core
from codeq.usecases.waiters import EVERY


async def claim(core: Core, tenant: str, wanted: Claim) -> list[Delivery]:
    """Leases up to `limit` tasks to the worker. Returns none only if no queue had any until `wait_ms` had passed.

    Not `@durable`, because the wait for the disk can be cancelled too: a caller that disconnects loses no task, what
    was leased to it returns to its queue, and no attempt is counted.
    """
    _check(tenant, wanted)
    attempt = _ClaimAttempt(core, tenant, wanted)
    await sweep.before_claim(core, tenant, wanted.commands)
    await core.waiters.serve_first()
    if not is_short(wanted.limit):
        await core.turns.wait(tenant)
    deliveries = await attempt.take()
    if not deliveries and wanted.wait_ms:
        deliveries = await core.waiters.wait_for_tasks(attempt, wanted.wait_ms)
    try:
        if len(deliveries) < wanted.limit and attempt.has_filled(deliveries):
            await attempt.take_more(deliveries)
        await core.store.flush([delivery.task.id for delivery in deliveries])
    except (asyncio.CancelledError, StoreBusy):
        await attempt.hand_back(deliveries)
        raise
    return deliveries


class _ClaimAttempt:
    """One claim, tried now and again whenever one of its queues has tasks. Implements `waiters.Claimant`."""

    def __init__(self, core: Core, tenant: str, wanted: Claim) -> None:
        self._core = core
        self._tenant = tenant
        self._wanted = wanted
        self.queues: Sequence[QueueKey] = [QueueKey(tenant, command) for command in wanted.commands or [EVERY]]

    async def take(self) -> list[Delivery]:
        """Takes the first piece of the claim, or all of it."""
        wanted = self._wanted.limit
        return await self._take(min(wanted, BATCH_PIECE_MAX), PIECE_BYTES_MAX)

    def has_filled(self, piece: Sequence[Delivery]) -> bool:
        """Returns whether a piece was limited by its own size, so that there may be more tasks."""
        return len(piece) == BATCH_PIECE_MAX or _bytes(piece) >= PIECE_BYTES_MAX

    async def take_more(self, deliveries: list[Delivery]) -> None:
        """Adds the other pieces, and other calls run in between. What it has added must be handed back if it fails."""
        budget, left = LoopBudget(self._core, self._tenant), CLAIM_BYTES_MAX - _bytes(deliveries)
        piece: Sequence[Delivery] = deliveries
        while self.has_filled(piece) and left > 0 and len(deliveries) < self._wanted.limit:
            await budget.yield_if_spent()
            limit = min(self._wanted.limit - len(deliveries), BATCH_PIECE_MAX)
            piece = await self._take(limit, min(left, PIECE_BYTES_MAX))
            deliveries += piece
            left -= _bytes(piece)

    async def _take(self, limit: int, bytes_max: int) -> list[Delivery]:
        core, wanted = self._core, self._wanted
        return await core.store.take(
            ClaimRequest(
                tenant=self._tenant,
                commands=wanted.commands,
                worker=wanted.worker,
                lease_ms=wanted.lease_ms,
                limit=limit,
                policy_of=core.policy_of,
                bytes_max=bytes_max,
            )
        )

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        core, now_ms = self._core, self._core.store.now_ms()
        budget = LoopBudget(core, self._tenant)
        for start in range(0, len(deliveries), BATCH_PIECE_MAX):
            if start:
                with suppress(asyncio.CancelledError):  # then the rest is handed back without waiting
                    await budget.yield_if_spent()
            tasks = [delivery.task for delivery in deliveries[start : start + BATCH_PIECE_MAX]]
            changes = [lifecycle.abandon(t, _holder(t), now_ms, retention_ms=core.dead_retention_ms(t)) for t in tasks]
            await core.store.commit(changes)


def _bytes(deliveries: Sequence[Delivery]) -> int:
    return sum([delivery.task.payload_bytes for delivery in deliveries])


def _holder(task: Task) -> Holder:
    return Holder(task.worker or "", task.lease_token)


def _check(tenant: str, wanted: Claim) -> None:
    validation.tenant(tenant)
    validation.worker(wanted.worker)
    validation.integer(wanted.limit, "limit", 1, BATCH_TASKS_MAX)
    if wanted.wait_ms:
        validation.integer(wanted.wait_ms, "wait in milliseconds", 0, CLAIM_WAIT_MS_MAX)
    if wanted.lease_ms is not None:
        validation.lease_ms(wanted.lease_ms)
    if wanted.commands is not None:
        if not 1 <= len(wanted.commands) <= CLAIM_COMMANDS_MAX or len(set(wanted.commands)) < len(wanted.commands):
            raise InvalidRequest(f"a claim names 1 to {CLAIM_COMMANDS_MAX} different commands")
        for command in wanted.commands:
            validation.name(command, "command")
