"""Calls that wait for a task to become ready or to end. Woken by the event, first come, first served."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, takewhile
from typing import Protocol

from codeq.domain.errors import CodeqError
from codeq.domain.queue import QueueKey, is_system
from codeq.domain.requests import Delivery
from codeq.domain.task import Task
from codeq.store.interface import Listener
from codeq.usecases.pacer import Pacer

_log = logging.getLogger("codeq")

HasEnded = Callable[[], Awaitable[bool]]

EVERY = "*"
"""Stands for all commands of a tenant in the queues of a claim. No command can have this name."""


class Claimant(Protocol):
    """A claim that may wait. Waking it and leasing tasks for it are one step, so that no other call runs in between."""

    @property
    def queues(self) -> Sequence[QueueKey]:
        """The queues whose tasks it waits for."""

    async def take(self) -> list[Delivery]:
        """Leases ready tasks; returns none if there are none."""

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        """Returns tasks to their queue that were leased for a caller that has disconnected."""


class _Waiter:
    __slots__ = ("claimant", "served", "ticket")

    def __init__(self, ticket: int, claimant: Claimant) -> None:
        self.ticket = ticket
        self.claimant = claimant
        self.served: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()


def _wake(waiter: "asyncio.Future[bool]", result: bool) -> None:
    if not waiter.done():  # else it was woken before, or its caller has left
        waiter.set_result(result)


def _join(line: OrderedDict[int, _Waiter], waiter: _Waiter) -> None:
    """Adds the waiter before those with later tickets: few, if any, because most come in order."""
    later = list(takewhile(lambda ticket: ticket > waiter.ticket, reversed(line)))
    line[waiter.ticket] = waiter
    for ticket in reversed(later):
        line.move_to_end(ticket)


class Waiters(Listener):
    """Wakes waiting calls by what the store reports. Costs next to nothing while no call waits."""

    def __init__(self) -> None:
        self._tickets = count()
        self._claims: dict[QueueKey, OrderedDict[int, _Waiter]] = {}
        self._ready: dict[str, OrderedDict[QueueKey, bool]] = {}
        """By tenant: the queues whose waiting claims are being served, and whether one was reported since its turn."""
        self._serving: dict[str, asyncio.Task[None]] = {}
        """By tenant, so that none waits for the claims of another: on Redis, each is a round trip."""
        self._ended: dict[QueueKey, asyncio.Future[None]] = {}
        """Done when the waiting claims of the queue have been served. Only for queues that somebody waits for."""
        self._for_end: dict[str, set[asyncio.Future[bool]]] = {}
        """Done with True when the task has ended, or with False when that may have been missed."""
        self._for_event: set[asyncio.Future[bool]] = set()
        """Done with True at a move, or with False when nobody should wait any more."""
        self._may_wait = True
        self._pacer = Pacer()
        """Wakes callers: thousands may wait for the same task, and each looks and answers in the same iteration."""
        self.signals = 0
        """How often a queue was reported as ready. A claim that finds no tasks compares: if it has changed meanwhile,
        its own queue may have been reported before the claim waited for it."""

    # -- what the store reports ----------------------------------------------------------------------------------

    def ready(self, queue: QueueKey, tasks: int) -> None:  # noqa: ARG002 - taking them shows how many
        self.signals += 1
        if self._claims and (queue in self._claims or self._waits_for_every(queue)):
            self._ready.setdefault(queue.tenant, OrderedDict())[queue] = True
            if queue.tenant not in self._serving:
                serving = asyncio.get_running_loop().create_task(self._serve(queue.tenant))
                self._serving[queue.tenant] = serving

    def _waits_for_every(self, queue: QueueKey) -> bool:
        return QueueKey(queue.tenant, EVERY) in self._claims and not is_system(queue.command)

    def moved(self, tasks: Sequence[Task]) -> None:
        if self._for_event:
            self._wake_readers(has_moved=True)
        if self._for_end:
            self._wake_ended([task.id for task in tasks if task.status.is_final])

    def moved_elsewhere(self, ended: Collection[str]) -> None:
        self._wake_readers(has_moved=True)
        if self._for_end:
            self._wake_ended(ended)

    def look_again(self) -> None:
        self._wake_readers(has_moved=True)
        self._wake_ended(list(self._for_end), has_ended=False)

    def _wake_readers(self, *, has_moved: bool) -> None:
        waiting, self._for_event = self._for_event, set()
        for waiter in waiting:
            self._pacer.run(partial(_wake, waiter, has_moved))

    def _wake_ended(self, ids: Collection[str], *, has_ended: bool = True) -> None:
        for waiter in [waiter for task_id in ids for waiter in self._for_end.pop(task_id, ())]:
            self._pacer.run(partial(_wake, waiter, has_ended))

    # -- claims --------------------------------------------------------------------------------------------------

    @property
    def is_serving(self) -> bool:
        """Whether waiting claims are being served. A new claim calls `serve_first` then, before it takes tasks."""
        return bool(self._ready)

    async def serve_first(self, queues: Sequence[QueueKey]) -> None:
        """Returns once the claims that wait for these queues have been served."""
        for wanted in queues:
            ready = self._ready.get(wanted.tenant) or OrderedDict()
            for queue in list(ready) if wanted.command == EVERY else [wanted]:
                if queue in ready:
                    ended = self._ended.setdefault(queue, asyncio.get_running_loop().create_future())
                    await asyncio.shield(ended)

    def ticket(self) -> int:
        """Returns the place of a claim among those that wait. A claim gets it when it arrives: on Redis, the first look
        of one that came later may return earlier."""
        return next(self._tickets)

    async def wait_for_tasks(
        self, claimant: Claimant, wait_ms: int, *, since: int, ticket: int | None = None
    ) -> list[Delivery]:
        """Returns what the claimant leased once one of its queues had tasks; nothing after `wait_ms`.

        `since` is the number of `signals` before the claimant found no tasks: what became ready since then is found.
        A caller that is cancelled loses no task: what was leased for it returns to its queue.
        """
        if not self._may_wait:
            return []
        waiter = _Waiter(self.ticket() if ticket is None else ticket, claimant)
        for queue in claimant.queues:
            _join(self._claims.setdefault(queue, OrderedDict()), waiter)
        if self.signals != since:
            for queue in claimant.queues:
                self.ready(queue, 1)
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._time_out, waiter)
        try:
            return await waiter.served
        except asyncio.CancelledError:
            if waiter.served.done() and not waiter.served.cancelled() and not waiter.served.exception():
                await claimant.hand_back(waiter.served.result())
            raise
        finally:
            timer.cancel()
            self._remove(waiter)

    async def _serve(self, tenant: str) -> None:
        """Serves a tenant's waiters, its queues in turn, in an asyncio task of its own: a cancelled caller cancels no
        other's wake-up."""
        ready = self._ready[tenant]
        try:
            while ready:
                queue = next(iter(ready))
                ready[queue] = False
                waiter = self._first(queue)
                has_more = waiter is not None and await self._serve_one(waiter)
                if has_more or ready[queue]:
                    ready.move_to_end(queue)
                else:
                    self._end(ready, queue)
        finally:
            for queue in list(ready):
                self._end(ready, queue)
            del self._ready[tenant], self._serving[tenant]

    def _end(self, ready: OrderedDict[QueueKey, bool], queue: QueueKey) -> None:
        del ready[queue]
        ended = self._ended.pop(queue, None)
        if ended is not None and not ended.done():
            ended.set_result(None)

    async def _serve_one(self, waiter: _Waiter) -> bool:
        """Serves one waiter. Returns whether the queue may have more for the next one."""
        try:
            deliveries = await waiter.claimant.take()
        except CodeqError as fault:
            self._remove(waiter)
            if not waiter.served.done():
                waiter.served.set_exception(fault)
            return True
        if deliveries:
            self._remove(waiter)
            if waiter.served.done():
                try:
                    await waiter.claimant.hand_back(deliveries)
                except CodeqError as fault:  # their leases end in time
                    _log.warning("tasks whose caller has gone were not handed back: %s", fault)
            else:
                waiter.served.set_result(deliveries)
        return bool(deliveries)

    def _first(self, queue: QueueKey) -> _Waiter | None:
        lines = (self._claims.get(queue), self._claims.get(QueueKey(queue.tenant, EVERY)))
        firsts = [next(iter(line.values())) for line in lines if line]
        return min(firsts, key=lambda waiter: waiter.ticket, default=None)

    def _remove(self, waiter: _Waiter) -> None:
        for queue in waiter.claimant.queues:
            line = self._claims.get(queue)
            if line is not None and waiter.ticket in line:
                del line[waiter.ticket]
                if not line:
                    del self._claims[queue]

    def _time_out(self, waiter: _Waiter) -> None:
        self._remove(waiter)
        if not waiter.served.done():
            waiter.served.set_result([])

    # -- other waits ---------------------------------------------------------------------------------------------

    async def wait_for_end(self, ids: Sequence[str], wait_ms: int, has_ended: HasEnded) -> None:
        """Returns when one of the tasks ends, or after `wait_ms`. Asks `has_ended` once an end cannot be missed any
        more, and whenever it may have been."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_ms / 1000
        while self._may_wait:
            ended: asyncio.Future[bool] = loop.create_future()
            for task_id in ids:
                self._for_end.setdefault(task_id, set()).add(ended)
            try:
                if await has_ended():
                    return
                await asyncio.wait([ended], timeout=until_s - loop.time())
            finally:
                for task_id in ids:
                    self._leave(task_id, ended)
            if not ended.done() or ended.result():
                return

    def _leave(self, task_id: str, ended: "asyncio.Future[bool]") -> None:
        waiters = self._for_end.get(task_id)
        if waiters is not None:
            waiters.discard(ended)
            if not waiters:
                del self._for_end[task_id]

    @contextmanager
    def next_event(self) -> Iterator["asyncio.Future[bool]"]:
        """Yields a future that is done at the next move of any task, or with False for shutdown.

        Read events inside the block to miss none.
        """
        happened: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._for_event.add(happened)
        if not self._may_wait:
            happened.set_result(False)
        try:
            yield happened
        finally:
            self._for_event.discard(happened)

    def end_waits(self) -> None:
        """Completes all waiting calls with no tasks, for shutdown. From now on none waits: a call that is still looking
        whether it has to would keep the server from stopping."""
        self._may_wait = False
        for line in list(self._claims.values()):
            for waiter in list(line.values()):
                self._time_out(waiter)
        self._wake_readers(has_moved=False)
        self._wake_ended(list(self._for_end))
