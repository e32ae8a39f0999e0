"""Enqueues that travel together: what a loop puts in one by one is sent in batches, and each hears of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Self

from codeq.domain.errors import CodeqError, InvalidRequest, StoreClosed
from codeq.domain.limits import BATCH_BYTES_MAX, BATCH_TASKS_MAX
from codeq.domain.requests import NewTask
from codeq.domain.task import Task
from codeq.sdk.enqueue_results import EnqueueResults
from codeq.sdk.new_tasks import new_task

Answers = Sequence[Task | CodeqError]

BATCHES_WAITING_MAX = 8
"""How many full batches may wait to be sent. Past this, who enqueues must wait: memory stays bounded."""
BATCH_BYTES = BATCH_BYTES_MAX // 8
REFUSALS_MAX = 1000


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
        self.bytes += len(order.payload)
        self.orders.append(order)
        return len(self.orders) - 1

    def is_full(self, size: int) -> bool:
        return len(self.orders) >= size or self.bytes >= BATCH_BYTES

    def answer(self, place: int) -> Task:
        if self.fault is not None:
            raise self.fault
        answer = self.answers[place]
        if isinstance(answer, CodeqError):
            raise answer
        return answer

    @property
    def refusals(self) -> list[CodeqError]:
        if isinstance(self.answers, EnqueueResults):
            return self.answers.refusals
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


class AsyncTicket:
    """A task on its way into the queue: `await` it for the task, once it is on disk, or for why it was refused."""

    __slots__ = ("_batch", "_place")

    def __init__(self, batch: Batch, place: int) -> None:
        self._batch = batch
        self._place = place

    @property
    def is_done(self) -> bool:
        return bool(self._batch.is_done.is_set())

    def __await__(self) -> Generator[Any, None, Task]:
        yield from self._batch.is_done.wait().__await__()
        return self._batch.answer(self._place)


def _check_size(size: int) -> int:
    if not 1 <= size <= BATCH_TASKS_MAX:
        raise InvalidRequest(f"a batch has 1 to {BATCH_TASKS_MAX} tasks, not {size}")
    return size


def _check_order(order: NewTask) -> NewTask:
    """What has no size cannot be put beside others; all else is for the queue to judge."""
    if not isinstance(order.payload, bytes):
        raise InvalidRequest(f"a payload is JSON in bytes, not {type(order.payload).__name__}")
    return order


class Batcher:
    """Sends from threads of its own. Leaving the `with` block sends the rest, and raises the first refusal, if any.

    One batch is on its way at a time, so that tasks stay in the order in which they were put; the other thread makes
    the next one ready meanwhile.
    """

    def __init__(self, prepare: Callable[[Sequence[NewTask]], Callable[[], Answers]], *, size: int, linger_s: float):
        self._prepare = prepare
        self._size = _check_size(size)
        self._linger_s = linger_s
        self._changed = threading.Condition()
        self._filling: Batch | None = None
        self._full: list[Batch] = []
        self._sending: list[Batch] = []
        self._preparing, self._turn = threading.Lock(), threading.Lock()
        self._is_closed = False
        self.sent = 0
        self.refusals: list[Exception] = []
        """Up to a thousand of the refusals so far; one for a batch that was not sent at all."""
        self._threads = [threading.Thread(target=self._run, name="codeq-batcher", daemon=True) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def enqueue(self, command: str, payload: Any = None, **options: Any) -> Ticket:
        """Put a task into the next batch. Takes the options of `enqueue`."""
        return self.put(new_task(command, payload, options))

    def put(self, order: NewTask) -> Ticket:
        _check_order(order)
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
            if batch.is_full(self._size):
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
            waiting = [*self._sending, *self._full]
            self._changed.notify_all()
        for batch in waiting:
            batch.is_done.wait()

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if fault is None and self.refusals:
            raise self.refusals[0]

    def _run(self) -> None:
        while True:
            with self._preparing:
                batch = self._next()
                if batch is None:
                    return
                send = self._ready(batch)
                self._turn.acquire()  # before the next batch is looked at, so that none overtakes another
            try:
                if send is not None:
                    batch.answers = send()
                    self.sent += len(batch.orders)
                    self._note(batch.refusals)
            except Exception as fault:  # noqa: BLE001 - whoever waits for the batch is told, and the next one is sent
                batch.fault = fault
                self._note([fault])
            finally:
                self._turn.release()
            with self._changed:
                self._sending.remove(batch)
                batch.is_done.set()
                self._changed.notify_all()

    def _ready(self, batch: Batch) -> Callable[[], Answers] | None:
        try:
            return self._prepare(batch.orders)
        except Exception as fault:  # noqa: BLE001 - as above
            batch.fault = fault
            self._note([fault])
            return None

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
            batch = self._full.pop(0)
            self._sending.append(batch)
            self._changed.notify_all()
            return batch

    def _note(self, refusals: Sequence[Exception]) -> None:
        self.refusals += refusals[: REFUSALS_MAX - len(self.refusals)]


class AsyncBatcher:
    """The same on the event loop: `await batcher.enqueue(...)` gives a ticket, `await ticket` the task."""

    def __init__(
        self,
        prepare: Callable[[Sequence[NewTask]], Callable[[], Coroutine[Any, Any, Answers]]],
        *,
        size: int,
        linger_s: float,
    ) -> None:
        self._prepare = prepare
        self._size = _check_size(size)
        self._linger_s = linger_s
        self._filling: Batch | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.sent = 0
        self.refusals: list[Exception] = []

    async def enqueue(self, command: str, payload: Any = None, **options: Any) -> AsyncTicket:
        """Put a task into the next batch. Takes the options of `enqueue`."""
        return await self.put(new_task(command, payload, options))

    async def put(self, order: NewTask) -> AsyncTicket:
        _check_order(order)
        while self._filling is None and len(self._sending) >= BATCHES_WAITING_MAX:
            self._has_room.clear()
            await self._has_room.wait()
        if self._is_closed:
            raise InvalidRequest("this batcher was closed")
        batch = self._filling
        if batch is None:
            batch = self._filling = Batch(asyncio.Event())
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._close_batch)
        ticket = AsyncTicket(batch, batch.add(order))
        if batch.is_full(self._size):
            self._close_batch()
        return ticket

    async def flush(self) -> None:
        """Send what is waiting, and return when all that was put so far has been answered."""
        self._close_batch()
        if self._sending:
            await asyncio.wait(self._sending)

    async def close(self) -> None:
        self._is_closed = True
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
            task.add_done_callback(self._delivered)

    async def _deliver(self, batch: Batch) -> None:
        refusals: Sequence[Exception] = []
        try:
            send = self._prepare(batch.orders)
            async with self._turn:  # one after the other, so that tasks stay in the order in which they were put
                batch.answers = await send()
            self.sent += len(batch.orders)
            refusals = batch.refusals
        except asyncio.CancelledError:
            batch.fault = StoreClosed("the event loop ended while the batch was on its way")
            raise
        except Exception as fault:  # noqa: BLE001 - whoever waits for the batch is told, and the next one is sent
            batch.fault, refusals = fault, [fault]
        finally:
            self.refusals += refusals[: REFUSALS_MAX - len(self.refusals)]
            batch.is_done.set()

    def _delivered(self, task: "asyncio.Task[None]") -> None:
        self._sending.discard(task)
        self._has_room.set()
