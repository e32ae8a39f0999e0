"""Where callers wait for a task to become ready, or to end. Woken by the event itself, first come first served."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from codeq.domain.errors import CodeqError
from codeq.domain.queue import QueueKey
from codeq.domain.requests import Delivery
from codeq.domain.task import Task

EVERY = "*"
"""Stands for all commands of a tenant in a waiter's queues. No command can have this name."""

Attempt = Callable[[], Awaitable[list[Delivery]]]


HandBack = Callable[[list[Delivery]], Awaitable[None]]


class Waiter:
    """A claim that waits. `attempt` takes tasks on its behalf, so that being woken and being served are one step;
    `hand_back` returns them when the caller has gone meanwhile."""

    __slots__ = ("attempt", "hand_back", "queues", "served", "ticket")

    def __init__(self, ticket: int, queues: Sequence[QueueKey], attempt: Attempt, hand_back: HandBack) -> None:
        self.ticket = ticket
        self.queues = queues
        self.attempt = attempt
        self.hand_back = hand_back
        self.served: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()


class Waiters:
    """Implements `store.interface.Listener`."""

    def __init__(self) -> None:
        self._tickets = count()
        self._waiting: dict[QueueKey, OrderedDict[int, Waiter]] = {}
        self._ringing: OrderedDict[QueueKey, None] = OrderedDict()
        self._serving: asyncio.Task[None] | None = None
        self._for_end: dict[str, set[asyncio.Future[None]]] = {}
        self._for_event: set[asyncio.Future[None]] = set()
        self.reading = asyncio.Lock()
        """Held for one piece of a long read: however many read, others wait for one piece at most."""

    def ready(self, queue: QueueKey, tasks: int) -> None:  # noqa: ARG002 - how many is found out by taking them
        if queue in self._waiting or QueueKey(queue.tenant, EVERY) in self._waiting:
            self._ringing[queue] = None
            if self._serving is None or self._serving.done():
                self._serving = asyncio.get_running_loop().create_task(self._serve())

    def moved(self, tasks: Sequence[Task]) -> None:
        for waiter in self._for_event:
            if not waiter.done():
                waiter.set_result(None)
        if self._for_end:
            ended = [task.id for task in tasks if task.status.is_final]
            for waiter in [waiter for task_id in ended for waiter in self._for_end.pop(task_id, ())]:
                if not waiter.done():
                    waiter.set_result(None)

    async def serve(self) -> None:
        """Return once those who wait have been served. A newcomer calls this before it takes for itself."""
        if self._serving is not None and not self._serving.done():
            await asyncio.shield(self._serving)

    async def wait(
        self, queues: Sequence[QueueKey], attempt: Attempt, hand_back: HandBack, wait_ms: int
    ) -> list[Delivery]:
        """Tasks taken by `attempt` once a queue has some; none after `wait_ms`. A caller that is cancelled loses no
        task: what was taken for it is handed back."""
        waiter = Waiter(next(self._tickets), queues, attempt, hand_back)
        for queue in queues:
            self._waiting.setdefault(queue, OrderedDict())[waiter.ticket] = waiter
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._give_up, waiter)
        try:
            return await waiter.served
        except asyncio.CancelledError:
            if waiter.served.done() and not waiter.served.cancelled() and not waiter.served.exception():
                await hand_back(waiter.served.result())
            raise
        finally:
            timer.cancel()
            self._leave(waiter)

    async def _serve(self) -> None:
        """Runs by itself, so that no caller who goes away takes the wake-up of another along."""
        while self._ringing:
            queue, _ = self._ringing.popitem(last=False)
            while (waiter := self._first(queue)) is not None and await self._serve_one(waiter):
                pass

    async def _serve_one(self, waiter: Waiter) -> bool:
        """Answers whether there may be more for the next in line."""
        try:
            deliveries = await waiter.attempt()
        except CodeqError as fault:
            self._leave(waiter)
            if not waiter.served.done():
                waiter.served.set_exception(fault)
            return True
        if deliveries:
            self._leave(waiter)
            if waiter.served.done():
                await waiter.hand_back(deliveries)
            else:
                waiter.served.set_result(deliveries)
        return bool(deliveries)

    async def wait_for_end(self, task_id: str, wait_ms: int) -> None:
        """Return when the task ends, or after `wait_ms`."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_end.setdefault(task_id, set()).add(ended)
        try:
            await asyncio.wait([ended], timeout=wait_ms / 1000)
        finally:
            waiters = self._for_end.get(task_id)
            if waiters is not None:
                waiters.discard(ended)
                if not waiters:
                    del self._for_end[task_id]

    @contextmanager
    def next_event(self) -> Iterator["asyncio.Future[None]"]:
        """A future that is done at the next move of any task. Look for events inside, so that none slips through."""
        happened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_event.add(happened)
        try:
            yield happened
        finally:
            self._for_event.discard(happened)

    def end_waits(self) -> None:
        """Send everyone home with what there is: the service stops."""
        for line in list(self._waiting.values()):
            for waiter in list(line.values()):
                self._give_up(waiter)
        for waiting in [*self._for_event, *[waiter for line in self._for_end.values() for waiter in line]]:
            if not waiting.done():
                waiting.set_result(None)

    def _first(self, queue: QueueKey) -> Waiter | None:
        lines = (self._waiting.get(queue), self._waiting.get(QueueKey(queue.tenant, EVERY)))
        firsts = [next(iter(line.values())) for line in lines if line]
        return min(firsts, key=lambda waiter: waiter.ticket, default=None)

    def _leave(self, waiter: Waiter) -> None:
        for queue in waiter.queues:
            line = self._waiting.get(queue)
            if line is not None and waiter.ticket in line:
                del line[waiter.ticket]
                if not line:
                    del self._waiting[queue]

    def _give_up(self, waiter: Waiter) -> None:
        self._leave(waiter)
        if not waiter.served.done():
            waiter.served.set_result([])
