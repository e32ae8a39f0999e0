"""Leases ready tasks to a worker, at once or as soon as there are some."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from codeq.domain import lifecycle, validation
from codeq.domain.errors import InvalidRequest, StoreBusy, StoreUnavailable
from codeq.domain.limits import (
    BATCH_PIECE_MAX,
    BATCH_TASKS_MAX,
    CLAIM_BYTES_MAX,
    CLAIM_COMMANDS_MAX,
    CLAIM_WAIT_MS_MAX,
    PIECE_BYTES_MAX,
    SHORT_BATCH_MAX,
)
from codeq.domain.queue import QueueKey
from codeq.domain.requests import Claim, Delivery
from codeq.domain.task import Change, Holder, Task
from codeq.store.interface import ClaimRequest, Primaries
from codeq.usecases import sweep
from codeq.usecases.budget import LoopBudget, is_short
from codeq.usecases.core import Core
from codeq.usecases.moves import move_each
from codeq.usecases.waiters import EVERY


async def claim(core: Core, tenant: str, wanted: Claim) -> list[Delivery]:
    """Leases up to `limit` tasks to the worker. Returns none only if no queue had any until `wait_ms` had passed. With
    the `request_id` of a claim whose tasks are still leased by it, returns those, each with a whole lease again.

    Not `@durable`, because the wait for the disk can be cancelled too: a caller that disconnects loses no task, what
    was leased to it returns to its queue, and no attempt is counted.
    """
    _check(tenant, wanted)
    attempt = _ClaimAttempt(core, tenant, wanted)
    ticket = core.waiters.ticket()
    await sweep.before_claim(core, tenant, wanted.commands)
    if core.waiters.is_serving:
        await core.waiters.serve_first(attempt.queues)
    if not is_short(wanted.limit):
        await core.turns.wait(tenant)
    since = core.waiters.signals
    deliveries = await attempt.take()
    is_served = bool(deliveries)
    if not is_served:
        await attempt.register()
    if not is_served and wanted.wait_ms:
        async with core.store.peers.watch(attempt.queues):
            deliveries = await core.waiters.wait_for_tasks(attempt, wanted.wait_ms, since=since, ticket=ticket)
    try:
        if is_served:  # else it may have left the list while it waited
            await attempt.register()
        if len(deliveries) < wanted.limit and attempt.has_filled(deliveries, _bytes(deliveries)):
            await attempt.take_more(deliveries)
        await core.store.flush([delivery.task.id for delivery in deliveries], since=attempt.primaries)
    except (asyncio.CancelledError, StoreBusy, StoreUnavailable):
        await attempt.hand_back(deliveries)
        raise
    return deliveries


class _ClaimAttempt:
    """One claim, tried now and again whenever one of its queues has tasks. Implements `waiters.Claimant`."""

    def __init__(self, core: Core, tenant: str, wanted: Claim) -> None:
        self._core = core
        self._tenant = tenant
        self._wanted = wanted
        self._piece_max = BATCH_PIECE_MAX
        """Tasks that the last piece was limited to."""
        self._call = core.workers.begin()
        self.primaries: Primaries = core.store.primaries
        """Before the first piece was taken: another server that has taken over since may not have the leases."""

    @property
    def queues(self) -> Sequence[QueueKey]:
        return [QueueKey(self._tenant, command) for command in self._wanted.commands or [EVERY]]

    async def take(self, taken: int = 0, taken_bytes: int = 0) -> list[Delivery]:
        """Takes a piece of the claim; `taken` is how many it got before, with so many bytes of payload.

        A small one while other tenants make short calls, unless each piece is a round trip to another machine.
        """
        core, wanted = self._core, self._wanted
        if not taken:
            self.primaries = core.store.primaries
        is_small = wanted.limit > SHORT_BATCH_MAX and core.store.is_local and core.turns.is_shared(self._tenant)
        self._piece_max = SHORT_BATCH_MAX if is_small else BATCH_PIECE_MAX
        piece = await core.store.take(
            ClaimRequest(
                tenant=self._tenant,
                commands=wanted.commands,
                worker=wanted.worker,
                worker_name=wanted.info.name if wanted.info is not None else None,
                lease_ms=wanted.lease_ms,
                limit=min(wanted.limit - taken, self._piece_max),
                policy_of=core.policy_of,
                bytes_max=min(CLAIM_BYTES_MAX - taken_bytes, PIECE_BYTES_MAX),
                hand_back=self.hand_back,
                request_id=wanted.request_id,
                is_part=bool(taken),
            )
        )
        return await self._renewed(piece) if piece and piece[0].is_repeat else piece

    async def register(self) -> None:
        """Lists the worker among those that work, unless that was done lately. After the first take, so that claims
        are served as they came."""
        wanted = self._wanted
        await self._core.workers.claims(
            self._tenant,
            wanted.worker,
            wanted.info,
            commands=wanted.commands,
            lease_ms=wanted.lease_ms or 0,
            call=self._call,
        )

    def has_filled(self, piece: Sequence[Delivery], piece_bytes: int) -> bool:
        """Returns whether a piece was limited by its own size, so that there may be more tasks. One that was asked for
        again has all of its claim."""
        return (len(piece) == self._piece_max or piece_bytes >= PIECE_BYTES_MAX) and not piece[0].is_repeat

    async def take_more(self, deliveries: list[Delivery]) -> None:
        """Adds the other pieces, and other calls run in between. What it has added must be handed back if it fails."""
        budget = LoopBudget(self._core, self._tenant)
        piece: Sequence[Delivery] = deliveries
        size = piece_bytes = _bytes(piece)
        while self.has_filled(piece, piece_bytes) and len(deliveries) < self._wanted.limit and size < CLAIM_BYTES_MAX:
            await budget.yield_if_spent()
            piece = await self.take(len(deliveries), size)
            deliveries += piece
            piece_bytes = _bytes(piece)
            size += piece_bytes

    async def _renewed(self, repeated: Sequence[Delivery]) -> list[Delivery]:
        """Extends the leases of tasks that were asked for again, each by a millisecond at least: so the call that they
        were first leased for, whose caller has gone, does not hand them back. Leaves out those that were moved
        meanwhile, and commands that this call did not ask for."""
        core, wanted, now_ms = self._core, self._wanted, self._core.store.now_ms()
        asked = [each for each in repeated if wanted.commands is None or each.task.command in wanted.commands]
        found = asked[:BATCH_TASKS_MAX]

        def decide(place: int, task: Task) -> Change:
            lease_ms = wanted.lease_ms or core.policy(task.tenant, task.command).lease_ms
            longer_ms = max(lease_ms, task.lease_until_ms + 1 - now_ms)
            return lifecycle.heartbeat(task, _holder(found[place].task), now_ms, lease_ms=longer_ms)

        renewed = await move_each(core, self._tenant, [each.task.id for each in found], decide)
        return [
            Delivery(task, each.body, True) for task, each in zip(renewed, found, strict=True) if isinstance(task, Task)
        ]

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        await hand_back(self._core, self._tenant, leases_of(deliveries))


class Lease(Struct, frozen=True, gc=False):
    """What is needed to hand back a task: small, as it is kept until the answer to a claim has arrived."""

    task_id: str
    worker: str | None
    token: int
    until_ms: int


def leases_of(deliveries: Sequence[Delivery]) -> list[Lease]:
    """Returns the leases to hand back if the caller has gone. Of calls with the same request id only the first hands
    back, and only while it is alone: which of the others the caller still listens to, nobody knows."""
    tasks = [delivery.task for delivery in deliveries if not delivery.is_repeat]
    return [Lease(task.id, task.worker, task.lease_token, task.lease_until_ms) for task in tasks]


async def hand_back(core: Core, tenant: str, leases: Sequence[Lease]) -> None:
    """Returns tasks to their queues that were leased for a caller that has gone. Leaves alone those whose lease has
    ended or was extended since: another call with the same request id got them too.

    A cancellation does not interrupt it: these tasks have nobody else who would return them.
    """
    returning = asyncio.get_running_loop().create_task(_hand_back(core, tenant, leases))
    while not returning.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(returning)


async def _hand_back(core: Core, tenant: str, leases: Sequence[Lease]) -> None:
    now_ms = core.store.now_ms()

    def decide(place: int, task: Task) -> Change | None:
        lease = leases[place]
        if task.lease_until_ms != lease.until_ms:
            return None
        holder = Holder(lease.worker or "", lease.token, is_server=True)
        return lifecycle.abandon(task, holder, now_ms, retention_ms=core.dead_retention_ms(task))

    await move_each(core, tenant, [lease.task_id for lease in leases], decide)


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
    if wanted.request_id is not None:
        validation.request_id(wanted.request_id)
    if wanted.info is not None:
        validation.worker_info(wanted.info)
    if wanted.commands is not None:
        if not 1 <= len(wanted.commands) <= CLAIM_COMMANDS_MAX or len(set(wanted.commands)) < len(wanted.commands):
            raise InvalidRequest(f"a claim names 1 to {CLAIM_COMMANDS_MAX} different commands")
        for command in wanted.commands:
            validation.name(command, "command")
