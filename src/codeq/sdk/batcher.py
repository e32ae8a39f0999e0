"""Batches of enqueues: tasks that a program enqueues one by one are sent together, and each gets its own answer."""

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Sequence
from time import monotonic
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from codeq.domain.errors import CodeqError, InvalidRequest, StoreClosed
from codeq.domain.limits import BATCH_BYTES_MAX, BATCH_TASKS_MAX
from codeq.domain.requests import NewTask
from codeq.domain.task import Task as Record
from codeq.sdk.backend import Send
from codeq.sdk.definitions import TaskDefinition
from codeq.sdk.durations import Seconds, milliseconds
from codeq.sdk.enqueue_results import EnqueueResults
from codeq.sdk.new_tasks import EnqueueOptions, new_task, plain_task
from codeq.sdk.tasks import Task, task_of
from codeq.wire.errors import Unreachable

Answers = Sequence[Record | CodeqError]
P = ParamSpec("P")
E = TypeVar("E", threading.Event, asyncio.Event)

BATCHES_WAITING_MAX = 8
"""How many full batches may wait to be sent. Past this, `enqueue` waits: memory stays bounded."""
BATCH_BYTES = BATCH_BYTES_MAX // 8
REFUSALS_MAX = 1000
LOOK_S = 1.0
"""How often a wait ends and begins anew: Python handles a Ctrl-C that came just before a wait only after it."""


class PendingBatch(Generic[E]):
    """New tasks that will be sent in one call, and the answers to them once `is_done` is set."""

    __slots__ = ("answers", "bytes", "fault", "is_done", "new_tasks", "since_s")

    def __init__(self, is_done: E) -> None:
        self.new_tasks: list[NewTask] = []
        self.bytes = 0
        self.since_s = monotonic()
        self.answers: Answers = []
        self.fault: BaseException | None = None
        self.is_done: E = is_done

    def add(self, task: NewTask) -> int:
        """Returns the index of the task in this batch."""
        self.bytes += len(task.payload)
        self.new_tasks.append(task)
        return len(self.new_tasks) - 1

    def is_full(self, size: int) -> bool:
        return len(self.new_tasks) >= size or self.bytes >= BATCH_BYTES

    def answer(self, index: int) -> Task:
        if self.fault is not None:
            raise self.fault
        answer = self.answers[index]
        if isinstance(answer, CodeqError):
            raise answer
        return task_of(answer)

    @property
    def refusals(self) -> Sequence[Exception]:
        if isinstance(self.answers, EnqueueResults):
            return self.answers.refusals
        return [answer for answer in self.answers if isinstance(answer, CodeqError)]


class PendingTask(Generic[E]):
    """One task of a batch."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: PendingBatch[E], index: int) -> None:
        self._batch: PendingBatch[E] = batch
        self._index = index


class Ticket(PendingTask[threading.Event]):
    """A task that is not yet acknowledged."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        return self._batch.is_done.is_set()

    def task(self, timeout: Seconds | None = None) -> Task:
        """The task, once it is on disk. Raises why it was refused, or TimeoutError."""
        if not self._batch.is_done.wait(None if timeout is None else milliseconds(timeout) / 1000):
            raise TimeoutError("the batch is not yet acknowledged")
        return self._batch.answer(self._index)


class AsyncTicket(PendingTask[asyncio.Event]):
    """A task that is not yet acknowledged: `await` it for the task, once it is on disk, or for why it was refused."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        return self._batch.is_done.is_set()

    def __await__(self) -> Generator[Any, None, Task]:
        yield from self._batch.is_done.wait().__await__()
        return self._batch.answer(self._index)


class BatchSender(Generic[E]):
    """What both batchers share: the bounds, the batch that is being filled, and the results of those that were sent."""

    def __init__(self, *, size: int, linger_s: float) -> None:
        if not 1 <= size <= BATCH_TASKS_MAX:
            raise InvalidRequest(f"a batch has 1 to {BATCH_TASKS_MAX} tasks, not {size}")
        self._size = size
        self._linger_s = linger_s
        self._filling: PendingBatch[E] | None = None
        self._is_closed = False
        self._is_unreachable = False
        """Whether the last batch found no server: the next ones are tried once each, so that a dead server is waited
        for once, and not once per batch."""
        self.sent = 0
        self.refusals: list[Exception] = []
        """Up to a thousand of the refusals so far; one for a batch that was not sent at all."""

    def _check(self, task: NewTask) -> None:
        """The limits of a task are checked when the batch is sent; but a batch must know the size of each payload."""
        if self._is_closed:
            raise InvalidRequest("this batcher was closed")
        if not isinstance(task.payload, bytes):
            raise InvalidRequest(f"a payload is JSON in bytes, not {type(task.payload).__name__}")

    def _answered(self, batch: PendingBatch[E], answers: Answers) -> None:
        self._is_unreachable = False
        batch.answers = answers
        self.sent += len(batch.new_tasks)
        self._add_refusals(batch.refusals)

    def _failed(self, batch: PendingBatch[E], fault: Exception) -> None:
        batch.fault = fault
        self._is_unreachable = isinstance(fault, Unreachable)
        self._add_refusals([fault])

    def _add_refusals(self, refusals: Sequence[Exception]) -> None:
        self.refusals += refusals[: REFUSALS_MAX - len(self.refusals)]

    def _raise_refusal(self) -> None:
        if self.refusals:
            raise self.refusals[0]


def _new_task(command: Any, *args: Any, **kwargs: Any) -> NewTask:
    return (
        command.new_task(*args, **kwargs) if isinstance(command, TaskDefinition) else new_task(command, *args, **kwargs)
    )


class Batcher(BatchSender[threading.Event]):
    """Sends batches from two threads of its own. Leaving the `with` block sends the rest, and raises the first refusal.

    One batch is sent at a time, so that tasks stay in the order in which they were put; the other thread encodes the
    next one meanwhile.
    """

    def __init__(
        self, prepare: Callable[[Sequence[NewTask]], Callable[[bool], Answers]], *, size: int, linger_s: float
    ):
        super().__init__(size=size, linger_s=linger_s)
        self._prepare = prepare
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._full: list[PendingBatch[threading.Event]] = []
        self._sending: list[PendingBatch[threading.Event]] = []
        self._preparing, self._turn = threading.Lock(), threading.Lock()
        self._threads = [threading.Thread(target=self._run, name="codeq-batcher", daemon=True) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    @overload
    def enqueue(self, task: TaskDefinition[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Ticket: ...
    @overload
    def enqueue(self, command: str, /, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Ticket: ...
    def enqueue(self, command: Any, /, *args: Any, **kwargs: Any) -> Ticket:
        """Puts a task into the next batch. Takes what `enqueue` of a client takes."""
        if type(command) is str and len(args) == 1 and not kwargs:  # most calls, at half the cost
            return self.put(plain_task(command, args[0]))
        return self.put(_new_task(command, *args, **kwargs))

    def put(self, task: NewTask) -> Ticket:
        self._check_process()
        with self._changed:
            while len(self._full) >= BATCHES_WAITING_MAX and not self._is_closed:
                self._changed.wait()
            self._check(task)
            batch = self._filling
            if batch is None:
                batch = self._filling = PendingBatch(threading.Event())
                self._changed.notify_all()
            ticket = Ticket(batch, batch.add(task))
            if batch.is_full(self._size):
                self._close_batch()
            return ticket

    def flush(self) -> None:
        """Sends what is waiting, and returns when everything that was put so far has been answered."""
        self._check_process()
        with self._changed:
            self._close_batch()
            waiting = [*self._sending, *self._full]
        for batch in waiting:
            while not batch.is_done.wait(LOOK_S):
                pass

    def close(self) -> None:
        if self._pid != os.getpid():
            return  # what waits here is sent by the parent
        try:
            self.flush()
        finally:  # Ctrl-C meanwhile: its threads end all the same, when they have sent what is left
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is None:
            self._raise_refusal()

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # its threads are not here, so nothing would be sent
            raise InvalidRequest(
                "this batcher was made before the fork, by the parent process: make one after the fork"
            )

    def _close_batch(self) -> None:
        if self._filling is not None:
            self._full.append(self._filling)
            self._filling = None
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._preparing:
                batch = self._next()
                if batch is None:
                    return
                send = self._prepared(batch)
                self._turn.acquire()  # before the next batch is looked at, so that none overtakes another
            try:
                if send is not None:
                    self._answered(batch, send(not self._is_unreachable))
            except Exception as fault:  # noqa: BLE001 - callers get it from their tickets, and the next batch is sent
                self._failed(batch, fault)
            finally:
                self._turn.release()
            with self._changed:
                self._sending.remove(batch)
                batch.is_done.set()
                self._changed.notify_all()

    def _prepared(self, batch: PendingBatch[threading.Event]) -> Callable[[bool], Answers] | None:
        try:
            return self._prepare(batch.new_tasks)
        except Exception as fault:  # noqa: BLE001 - as above
            self._failed(batch, fault)
            return None

    def _next(self) -> PendingBatch[threading.Event] | None:
        with self._changed:
            while not self._full:
                if self._filling is not None:
                    left_s = self._filling.since_s + self._linger_s - monotonic()
                    if left_s <= 0:
                        self._close_batch()
                    else:
                        self._changed.wait(left_s)
                elif self._is_closed:
                    return None
                else:
                    self._changed.wait()
            batch = self._full.pop(0)
            self._sending.append(batch)
            self._changed.notify_all()
            return batch


class AsyncBatcher(BatchSender[asyncio.Event]):
    """Sends batches from the event loop: `await batcher.enqueue(...)` gives a ticket, `await ticket` the task."""

    def __init__(
        self,
        prepare: Callable[[Sequence[NewTask]], Send],
        *,
        size: int,
        linger_s: float,
    ) -> None:
        super().__init__(size=size, linger_s=linger_s)
        self._prepare = prepare
        self._sending: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    @overload
    async def enqueue(self, task: TaskDefinition[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTicket: ...
    @overload
    async def enqueue(self, command: str, /, payload: Any = None, **options: Unpack[EnqueueOptions]) -> AsyncTicket: ...
    async def enqueue(self, command: Any, /, *args: Any, **kwargs: Any) -> AsyncTicket:
        """Puts a task into the next batch. Takes what `enqueue` of a client takes."""
        if type(command) is str and len(args) == 1 and not kwargs:  # as above
            return await self.put(plain_task(command, args[0]))
        return await self.put(_new_task(command, *args, **kwargs))

    async def put(self, task: NewTask) -> AsyncTicket:
        while self._filling is None and len(self._sending) >= BATCHES_WAITING_MAX:
            self._has_room.clear()
            await self._has_room.wait()
        self._check(task)
        batch = self._filling
        if batch is None:
            batch = self._filling = PendingBatch(asyncio.Event())
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._close_batch)
        ticket = AsyncTicket(batch, batch.add(task))
        if batch.is_full(self._size):
            self._close_batch()
        return ticket

    async def flush(self) -> None:
        """Sends what is waiting, and returns when everything that was put so far has been answered."""
        self._close_batch()
        if self._sending:
            await asyncio.wait(self._sending)

    async def close(self) -> None:
        self._is_closed = True
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close()
        if kind is None:
            self._raise_refusal()

    def _close_batch(self) -> None:
        batch, self._filling = self._filling, None
        if self._timer is not None:
            self._timer.cancel()
        if batch is not None:
            task = asyncio.get_running_loop().create_task(self._send(batch))
            self._sending.add(task)
            task.add_done_callback(self._is_sent)

    async def _send(self, batch: PendingBatch[asyncio.Event]) -> None:
        try:
            send = self._prepare(batch.new_tasks)
            async with self._turn:  # one after the other, so that tasks stay in the order in which they were put
                self._answered(batch, await send(retry=not self._is_unreachable))
        except asyncio.CancelledError:
            batch.fault = StoreClosed("the event loop ended before the batch was acknowledged")
            raise
        except Exception as fault:  # noqa: BLE001 - callers get it from their tickets, and the next batch is sent
            self._failed(batch, fault)
        finally:
            batch.is_done.set()

    def _is_sent(self, task: "asyncio.Task[None]") -> None:
        self._sending.discard(task)
        self._has_room.set()
