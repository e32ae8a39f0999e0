"""The priority queue with blocking calls for any thread: an event loop in a thread of its own runs the awaited one."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from codeq.domain.errors import StoreClosed
from codeq.priority.connection import Client
from codeq.priority.queue import PriorityQueue
from codeq.priority.tasks import Claimed, Corrupted, TaskPriority

T = TypeVar("T")


class BlockingPriorityQueue:
    """`PriorityQueue` for programs without an event loop. Takes its options, and answers what it answers.

    In place of a URL it takes a client that is used on no other event loop. A process that is forked makes its own.
    """

    def __init__(self, url_or_client: str | Client, **options: Any) -> None:
        self._inner = PriorityQueue(url_or_client, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="codeq-priority", daemon=True)
        self._thread.start()
        self._process = os.getpid()
        self._is_open = True
        self._calls: set[Future[Any]] = set()

    @property
    def worker(self) -> str:
        return self._inner.worker

    def enqueue(self, task_id: str, priority: int = TaskPriority.NORMAL) -> bool:
        return self._block_on(self._inner.enqueue(task_id, priority))

    def dequeue(self, wait: float = 0.0) -> Claimed | None:
        return self._block_on(self._inner.dequeue(wait))

    def renew(self, task_id: str | Claimed) -> None:
        self._block_on(self._inner.renew(task_id))

    def complete(self, task_id: str | Claimed) -> None:
        self._block_on(self._inner.complete(task_id))

    def release_lock(self, task_id: str | Claimed, *, force: bool = False) -> bool:
        return self._block_on(self._inner.release_lock(task_id, force=force))

    def requeue_with_delay(self, task_id: str | Claimed, delay_seconds: float, priority: int | None = None) -> None:
        self._block_on(self._inner.requeue_with_delay(task_id, delay_seconds, priority))

    def queue_size(self, include_delayed: bool = False) -> int:
        return self._block_on(self._inner.queue_size(include_delayed))

    def is_locked(self, task_id: str | Claimed) -> bool:
        return self._block_on(self._inner.is_locked(task_id))

    def recover(self) -> list[str]:
        return self._block_on(self._inner.recover())

    def corrupted(self, limit: int = 100) -> list[Corrupted]:
        return self._block_on(self._inner.corrupted(limit))

    def dead(self, limit: int = 100) -> list[str]:
        return self._block_on(self._inner.dead(limit))

    def is_persistent(self) -> bool:
        return self._block_on(self._inner.is_persistent())

    def close(self) -> None:
        """Ends the calls of other threads, which raise StoreClosed, and closes the connections. May be called twice."""
        if not self._is_open or self._process != os.getpid():
            return
        self._is_open = False
        for call in list(self._calls):
            call.cancel()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _end(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*running, return_exceptions=True)  # cancelled; those with a task hand it back
        await self._inner.close()

    def _block_on(self, call: Coroutine[Any, Any, T]) -> T:
        if self._process != os.getpid():  # a fork copies no threads: nobody would ever answer
            call.close()
            raise StoreClosed("this queue was made before a fork; make another in this process")
        if not self._is_open:
            call.close()
            raise StoreClosed("this queue was closed")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        self._calls.add(future)
        try:
            return future.result()
        except CancelledError:
            raise StoreClosed("this queue was closed during the call") from None
        except BaseException:
            future.cancel()  # an interrupted caller leaves no locked task behind
            raise
        finally:
            self._calls.discard(future)
