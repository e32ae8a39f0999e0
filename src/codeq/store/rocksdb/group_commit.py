"""Group commit: the calls that wait for an fsync share one. They are written, forced to disk and completed together."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from codeq.domain.errors import StoreBusy, StoreClosed, StoreError, StoreFailed, StoreFull
from codeq.domain.limits import COMMITS_WAITING_MAX, DISK_RESERVE_BYTES
from codeq.store.rocksdb.database import Database
from codeq.store.rocksdb.high_water_mark import HighWaterMark
from codeq.store.rocksdb.write_buffer import WriteBuffer

_CHECK_SPACE_EVERY_S = 0.1
"""How often free space is checked: far less than the reserve can be written in between."""


class GroupCommit:
    """A group is all calls that arrived while the disk was busy with the last one, so it grows with the load."""

    def __init__(
        self,
        database: Database,
        buffer: WriteBuffer,
        high_water_mark: HighWaterMark,
        *,
        fsync: bool,
        on_flush: Callable[[int, float], None],
    ) -> None:
        self._database = database
        self._buffer = buffer
        buffer.on_failure = self.fail
        self._high_water_mark = high_water_mark
        self._fsync = fsync
        self._requests: SimpleQueue[asyncio.AbstractEventLoop | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._flush_on_request, name="codeq-fsync", daemon=True)
        self._thread.start()
        self._space_checked_s = 0.0
        self._next: list[asyncio.Future[None]] = []
        self._current: list[asyncio.Future[None]] = []
        self._is_scheduled = False
        self._is_flushing = False
        self._covered = buffer.writes
        """The writes up to this number are on disk, or covered by the current flush."""
        self._fault: StoreError | None = None
        self.is_full = False
        self._started_s = 0.0
        self._on_flush = on_flush
        """Called after every fsync: how many calls it served and how long it took."""

    def check(self, *, adds_tasks: bool) -> None:
        """Refuses a call that cannot be stored. Calls that add tasks are refused first when space runs out."""
        if self._fault:
            raise type(self._fault)(*self._fault.args)
        if len(self._next) >= COMMITS_WAITING_MAX:
            raise _busy()
        if adds_tasks and self.is_full:
            self.check_space()

    def check_space(self) -> None:
        """Refuses what needs space beside that of running tasks. If a write fails for want of it, the store fails."""
        self._space_checked_s = 0.0
        if self._is_space_low():
            raise StoreFull(f"less than {DISK_RESERVE_BYTES >> 20} MB free at {self._database.path}; free some space")

    async def flush(self) -> None:
        if self._fault:
            raise type(self._fault)(*self._fault.args)
        if self._buffer.is_dirty or self._buffer.writes > self._covered:
            if not self._fsync:
                self._buffer.write()
                self._covered = self._buffer.writes
                self._is_space_low()
                return
            group = self._next
        elif self._is_flushing:
            group = self._current
            if len(group) >= 2 * COMMITS_WAITING_MAX:  # a full group, and as many again that have only read
                raise _busy()
        else:
            return
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        group.append(done)
        if not self._is_flushing and not self._is_scheduled:
            # Not at once: calls that are ready to run in this iteration of the loop still join the group.
            self._is_scheduled = True
            loop.call_soon(self._start, loop)
        await done

    def fail(self, fault: BaseException) -> None:
        """Stops for good: after a failed write or fsync the disk content is unknown, so nothing is acknowledged."""
        if self._fault is None:
            self._fault = fault if isinstance(fault, StoreError) else StoreFailed(f"{type(fault).__name__}: {fault}")
        waiting, self._next, self._current = self._current + self._next, [], []
        for done in waiting:
            if not done.done():
                done.set_exception(self._fault)

    async def close(self, because: StoreError | None = None) -> None:
        try:
            await self.flush()
            await asyncio.to_thread(self._database.flush)
            self._high_water_mark.record(self._database.sequence())
        finally:
            self.fail(because or StoreClosed(f"the store at {self._database.path} is closed"))

    def stop(self) -> None:
        """Ends the thread, once the current flush is done."""
        if self._thread.is_alive():
            self._requests.put(None)
            self._thread.join()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        if self._fault:
            return  # a scan's write has failed meanwhile
        self._current, self._next = self._next, []
        try:
            self._buffer.write()
        except Exception as fault:  # noqa: BLE001 - any fault must reach the waiting calls
            self.fail(fault)
            return
        self._covered = self._buffer.writes
        self._is_flushing = True
        self._started_s = time.perf_counter()
        self._requests.put(loop)

    def _flush_on_request(self) -> None:
        """Runs in the thread. A plain queue is twice as fast as an executor here, and every call waits for it."""
        while (loop := self._requests.get()) is not None:
            fault: BaseException | None = None
            try:
                self._flush()
            except Exception as raised:  # noqa: BLE001 - any fault must reach the waiting calls
                fault = raised
            try:
                loop.call_soon_threadsafe(self._finish, loop, fault)
            except RuntimeError:
                return  # the loop is closed, and the waiting calls with it

    def _flush(self) -> None:
        self._high_water_mark.record_periodically(self._database.flush())
        self._is_space_low()

    def _is_space_low(self) -> bool:
        """Returns whether space runs out: checked at intervals, and at every call while it does."""
        now_s = time.monotonic()
        if self.is_full or now_s - self._space_checked_s > _CHECK_SPACE_EVERY_S:
            self._space_checked_s = now_s
            space = os.statvfs(self._database.path)
            self.is_full = space.f_bavail * space.f_frsize < DISK_RESERVE_BYTES
        return self.is_full

    def _finish(self, loop: asyncio.AbstractEventLoop, fault: BaseException | None) -> None:
        if fault:
            self.fail(fault)
            return
        group, self._current = self._current, []
        took_s = time.perf_counter() - self._started_s
        # The last first: they are the claims woken by the enqueues of this group, and handlers wait for them.
        for done in reversed(group):
            if not done.done():
                done.set_result(None)
        self._is_flushing = False
        if self._next:
            self._start(loop)
        self._on_flush(len(group), took_s)


def _busy() -> StoreBusy:
    return StoreBusy(f"{COMMITS_WAITING_MAX} calls wait for the disk; try again in a moment")
