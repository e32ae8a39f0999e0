"""Enqueues that travel together: what a loop puts in one by one is sent in batches, and each hears of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Self

from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.limits import BATCH_BYTES_MAX, BATCH_TASKS_MAX
from codeq.domain.requests import NewTask
from codeq.domain.task import Task
from codeq.sdk.jobs import encode_json

Answers = list[Task | CodeqError]

BATCHES_WAITING_MAX = 8
"""How many full batches may wait to be sent. Past this, who enqueues must wait: memory stays bounded."""
BATCH_BYTES = BATCH_BYTES_MAX // 8


class Batch:
    """Orders that will be sent in one call, and what became of them."""

    __slots__ = ("answers", "bytes", "fault", "is_done", "orders", "since_s")

    def __init__(self, is_done: Any) -> None:
        self.orders: list[NewTask] = []
        self.bytes = 0
        self.since_s = monotonic()
        self.answers: Answers = []
        self.fault: BaseException | None = None
        self.is_done = is_done

    def add(self, order: NewTask) -> int:
        self.orders.append(order)
        self.bytes += len(order.payload)
        return len(self.orders) - 1

    def answer(self, place: int) -> Task:
        if self.fault is not None:
            raise self.fault
        answer = self.answers[place]
        if isinstance(answer, CodeqError):
            raise answer
        return answer

    @property
    def refusals(self) -> list[CodeqError]:
        return [answer for answer in self.answers if isinstance(answer, CodeqError)]


class Ticket:
    """A task on its way into the queue."""

    __slots__ = ("_batch", "_place")

    def __init__(self, batch: Batch, place: int) -> None:
        self._batch = batch
        self._place = place

    @property
    def is_done(self) -> bool:
        return bool(self._batch.is_done.is_set())

    def result(self, timeout: float | None = None) -> Task:
        """The task, once it is on disk. Raises why it was refused, or TimeoutError."""
        if not self._batch.is_done.wait(timeout):
            raise TimeoutError("the batch is still on its way")
        return self._batch.answer(self._place)

    def __await__(self) -> Any:
        """As `result`, for a ticket of an awaited queue."""
        yield from self._batch.is_done.wait().__await__()
        return self._batch.answer(self._place)


def _order(command: str, payload: Any, options: dict[str, Any]) -> NewTask:
    delay = options.pop("delay", None)
    if delay is not None:
        options["delay_ms"] = round(delay * 1000)
    try:
        return NewTask(command=command, payload=encode_json(payload), **options)
    except TypeError as fault:
        raise InvalidRequest(str(fault)) from None


def _check_size(size: int) -> int:
    if not 1 <= size <= BATCH_TASKS_MAX:
        raise InvalidRequest(f"a batch has 1 to {BATCH_TASKS_MAX} tasks, not {size}")
    return size


class Batcher:
    """Sends from a thread of its own. Leaving the `with` block sends the rest, and raises the first refusal, if any."""

    def __init__(self, send: Callable[[Sequence[NewTask]], Answers], *, size: int, linger_s: float) -> None:
        self._send = send
        self._size = _check_size(size)
        self._linger_s = linger_s
        self._changed = threading.Condition()
        self._filling: Batch | None = None
        self._full: list[Batch] = []
        self._sending: Batch | None = None
        self._is_closed = False
        self.sent = 0
        self.refusals: list[CodeqError] = []
        """Up to a thousand of the refusals so far."""
        self._thread = threading.Thread(target=self._run, name="codeq-batcher", daemon=True)
        self._thread.start()

    def enqueue(self, command: str, payload: Any = None, **options: Any) -> Ticket:
        """Put a task into the next batch. Takes the options of `NewTask`, and `delay` in seconds."""
        return self.put(_order(command, payload, options))

    def put(self, order: NewTask) -> Ticket:
        with self._changed:
            while len(self._full) >= BATCHES_WAITING_MAX and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise InvalidRequest("this batcher was closed")
            batch = self._filling
            if batch is None:
                batch = self._filling = Batch(threading.Event())
                self._changed.notify_all()
            ticket = Ticket(batch, batch.add(order))
            if len(batch.orders) >= self._size or batch.bytes >= BATCH_BYTES:
                self._full.append(batch)
                self._filling = None
                self._changed.notify_all()
            return ticket

    def flush(self) -> None:
        """Send what is waiting, and return when all that was put so far has been answered."""
        with self._changed:
            if self._filling is not None:
                self._full.append(self._filling)
                self._filling = None
            waiting = [*self._full, *([self._sending] if self._sending else [])]
            self._changed.notify_all()
        for batch in waiting:
            batch.is_done.wait()

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if fault is None and self.refusals:
            raise self.refusals[0]

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                batch.answers = self._send(batch.orders)
                self.sent += len(batch.orders)
                self._note(batch.refusals)
            except CodeqError as fault:
                batch.fault = fault
                self._note([fault])
            with self._changed:
                self._sending = None
                batch.is_done.set()
                self._changed.notify_all()

    def _next(self) -> Batch | None:
        with self._changed:
            while not self._full:
                if self._filling is not None:
                    left_s = self._filling.since_s + self._linger_s - monotonic()
                    if left_s <= 0:
                        self._full.append(self._filling)
                        self._filling = None
                        break
                    self._changed.wait(left_s)
                elif self._is_closed:
                    return None
                else:
                    self._changed.wait()
            self._sending = self._full.pop(0)
            self._changed.notify_all()
            return self._sending

    def _note(self, refusals: list[CodeqError]) -> None:
        self.refusals += refusals[: 1000 - len(self.refusals)]


class AsyncBatcher:
    """The same on the event loop: `await batcher.enqueue(...)` gives a ticket, `await ticket` the task."""

    def __init__(
        self, send: Callable[[Sequence[NewTask]], Coroutine[Any, Any, Answers]], *, size: int, linger_s: float
    ) -> None:
        self._send = send
        self._size = _check_size(size)
        self._linger_s = linger_s
        self._filling: Batch | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(BATCHES_WAITING_MAX)
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self.sent = 0
        self.refusals: list[CodeqError] = []

    async def enqueue(self, command: str, payload: Any = None, **options: Any) -> Ticket:
        """Put a task into the next batch. Takes the options of `NewTask`, and `delay` in seconds."""
        return await self.put(_order(command, payload, options))

    async def put(self, order: NewTask) -> Ticket:
        if self._filling is None:
            await self._room.acquire()
            if self._filling is None:
                self._filling = Batch(asyncio.Event())
                self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._close_batch)
            else:
                self._room.release()
        batch = self._filling
        ticket = Ticket(batch, batch.add(order))
        if len(batch.orders) >= self._size or batch.bytes >= BATCH_BYTES:
            self._close_batch()
        return ticket

    async def flush(self) -> None:
        """Send what is waiting, and return when all that was put so far has been answered."""
        self._close_batch()
        if self._sending:
            await asyncio.wait(self._sending)

    async def close(self) -> None:
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if fault is None and self.refusals:
            raise self.refusals[0]

    def _close_batch(self) -> None:
        batch, self._filling = self._filling, None
        if self._timer is not None:
            self._timer.cancel()
        if batch is not None:
            task = asyncio.get_running_loop().create_task(self._deliver(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _deliver(self, batch: Batch) -> None:
        try:
            async with self._turn:  # one after the other, so that tasks stay in the order in which they were put
                batch.answers = await self._send(batch.orders)
            self.sent += len(batch.orders)
            refusals = batch.refusals
        except CodeqError as fault:
            batch.fault, refusals = fault, [fault]
        finally:
            self._room.release()
            batch.is_done.set()
        self.refusals += refusals[: 1000 - len(self.refusals)]
