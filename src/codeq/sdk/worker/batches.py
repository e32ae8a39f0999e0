"""Collects the tasks of a handler that takes many at once, and executes it."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from msgspec.structs import replace

from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.sdk.jobs import PayloadInvalid
from codeq.sdk.signature import TaskSignature
from codeq.sdk.worker.event_loop import EventLoopPool
from codeq.sdk.worker.execution import outcome_of_error, outcomes_of_values
from codeq.sdk.worker.handler import Batching, Handler, PoolKind
from codeq.sdk.worker.outcomes import DROPPED, Interrupted, JobOutcome
from codeq.sdk.worker.pool import Ended, InFlightJob, Pool
from codeq.sdk.worker.running_job import AttachedFile
from codeq.sdk.worker.threads import ThreadPool

HURRY_S = 0.05
"""How long a worker that stops when it is idle waits for a batch to fill."""


class BatchPool:
    """A `Pool` that executes one batch of its handler at a time, and collects the next one meanwhile."""

    def __init__(self, handler: Handler, ended: Ended, *, hurried: bool) -> None:
        batching = handler.batching or Batching(1, 0)
        self.size = batching.size
        self.prefetch = min(2 * batching.size, BATCH_TASKS_MAX)
        self._wait_s = min(batching.wait_s, HURRY_S) if hurried else batching.wait_s
        self._handler = handler
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._waiting: list[InFlightJob] = []
        self._timer: asyncio.TimerHandle | None = None
        self._running: _Batch | None = None
        kind = EventLoopPool if handler.pool is PoolKind.LOOP else ThreadPool
        self._inner: Pool = kind(1, self._inner_ended, lambda *_: None, _refuse_files)

    def submit(self, entry: InFlightJob) -> None:
        self._waiting.append(entry)
        if self._timer is None:
            self._timer = self._loop.call_later(self._wait_s, self._start, True)
        self._start()

    def drain(self) -> list[InFlightJob]:
        entries, self._waiting = self._waiting, []
        return entries

    def interrupt(self, entry: InFlightJob) -> None:
        batch = self._running
        if batch is not None and entry in batch.entries and all(each.decided_s for each in batch.entries):
            self._inner.interrupt(batch.whole)

    def discard(self, entry: InFlightJob) -> None:
        batch = self._running
        if batch is not None and entry in batch.entries:
            batch.discarded += 1
            if batch.discarded == len(batch.entries):
                self._inner.discard(batch.whole)
                self._running = None
                self._start()

    @property
    def fault(self) -> str | None:
        return self._inner.fault

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._inner.close()

    def _start(self, is_time: bool = False) -> None:
        """Starts a batch if none is running and this one is full, or its time has come."""
        if is_time:
            self._timer = None
        if (
            self._running is not None
            or not self._waiting
            or (len(self._waiting) < self.size and self._timer is not None)
        ):
            return
        entries, self._waiting = self._waiting[: self.size], self._waiting[self.size :]
        for entry in [entry for entry in entries if entry.decided_s]:
            self._ended(entry, DROPPED)
        entries = [entry for entry in entries if not entry.decided_s]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._wait_s, self._start, True) if self._waiting else None
        if entries:
            now_s = monotonic()
            for entry in entries:
                entry.started_s = now_s
            self._running = _Batch(self._handler, entries)
            self._inner.submit(self._running.whole)
        elif self._waiting:
            self._start()

    def _inner_ended(self, whole: InFlightJob, outcome: JobOutcome) -> None:
        """Called from the thread of the handler, or on the event loop."""
        self._loop.call_soon_threadsafe(self._batch_ended, whole, outcome)

    def _batch_ended(self, whole: InFlightJob, outcome: JobOutcome) -> None:
        batch = self._running
        if batch is None or batch.whole is not whole:
            return  # it was discarded
        self._running = None
        outcomes = batch.outcomes or [outcome] * len(batch.entries)
        for entry, each in zip(batch.entries, outcomes, strict=True):
            self._ended(entry, each)
        self._start()


class _Batch:
    """One call of the handler. For the pool that executes it, it is a single job without arguments."""

    def __init__(self, handler: Handler, entries: Sequence[InFlightJob]) -> None:
        self.handler = handler
        self.entries = entries
        self.outcomes: list[JobOutcome] = []
        self.discarded = 0
        call = self._call_async if handler.pool is PoolKind.LOOP else self._call
        function: Callable[..., Any] = partial(call)
        first = replace(entries[0].job, raw=b"null")
        self.whole = InFlightJob(first, replace(handler, function=function, signature=_NO_ARGUMENTS), first.key)

    def _call(self) -> None:
        places, payloads = self._payloads()
        try:
            self._finish(places, self.handler.function(payloads) if payloads else [])
        except Interrupted:
            raise
        except BaseException as fault:  # noqa: BLE001 - as `run_handler`: the tasks of the batch have failed
            self._fail(places, fault)

    async def _call_async(self) -> None:
        places, payloads = self._payloads()
        try:
            self._finish(places, await self.handler.function(payloads) if payloads else [])
        except asyncio.CancelledError:
            raise
        except BaseException as fault:  # noqa: BLE001 - as above
            self._fail(places, fault)

    def _payloads(self) -> tuple[list[int], list[Any]]:
        """The payloads that fit, and their places. One that does not fails alone."""
        places, payloads = [], []
        self.outcomes = [DROPPED] * len(self.entries)
        for place, entry in enumerate(self.entries):
            try:
                payloads.append(self.handler.signature.decode_whole(entry.job.raw))
                places.append(place)
            except PayloadInvalid as fault:
                self.outcomes[place] = outcome_of_error(self.handler, entry.job, fault)
        return places, payloads

    def _finish(self, places: Sequence[int], values: Any) -> None:
        jobs = [self.entries[place].job for place in places]
        for place, outcome in zip(places, outcomes_of_values(self.handler, jobs, values), strict=True):
            self.outcomes[place] = outcome

    def _fail(self, places: Sequence[int], fault: BaseException) -> None:
        for place in places:
            self.outcomes[place] = outcome_of_error(self.handler, self.entries[place].job, fault)


def _nothing() -> None: ...


_NO_ARGUMENTS = TaskSignature(_nothing)


async def _refuse_files(_: InFlightJob, __: AttachedFile) -> None:
    raise PayloadInvalid("a handler of batches cannot attach files")
