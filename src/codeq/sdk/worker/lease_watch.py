"""Asks the queue to tell when a held task is cancelled: its handler is interrupted within a second."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from codeq.domain.errors import Cancelled, CodeqError, InvalidRequest, NotFound
from codeq.domain.limits import WATCHED_LEASES_MAX
from codeq.sdk.backend import Backend
from codeq.sdk.jobs import Job
from codeq.wire.errors import Forbidden, NoRoute, WrongMethod

log = logging.getLogger("codeq.worker")

YOUNG_S = 0.3
"""Jobs that are held for less are not watched: most end sooner, and a call for each would be too many."""
SHORT_WAIT_MS, LONG_WAIT_MS = 1_000, 20_000
"""How long a call waits while jobs come and go, and while they stay the same."""
SETTLED_S = 5.0
PAUSE_S = 5.0


class WatchedJob(Protocol):
    @property
    def job(self) -> Job: ...
    @property
    def since_s(self) -> float:
        """When the job was claimed, by the clock of the event loop."""


class LeaseWatch:
    """Watches the leases of the held jobs, with one call at a time."""

    def __init__(self, backend: Backend, held: Mapping[str, WatchedJob], cancelled: Callable[[str, str], None]) -> None:
        """`cancelled` is called with the key of a job and the code of its refusal."""
        self._backend = backend
        self._held = held
        self._cancelled = cancelled
        self._has_new = asyncio.Event()
        self._seen: set[str] = set()
        """Keys of held jobs whose lease has ended, which is reported once."""
        self._loop = asyncio.get_running_loop()

    def hold(self) -> None:
        """Called when there are new jobs."""
        self._has_new.set()

    async def run(self) -> None:
        while True:
            if not self._held:
                self._has_new.clear()
                await self._has_new.wait()
            await asyncio.sleep(YOUNG_S)
            self._has_new.clear()
            try:
                await self._watch()
            except (NoRoute, WrongMethod, NotFound, Forbidden, InvalidRequest):
                return  # a server that cannot tell; heartbeats still find cancellations
            except CodeqError as fault:
                log.debug("leases cannot be watched: %s", fault)
                await asyncio.sleep(PAUSE_S)

    async def _watch(self) -> None:
        now_s = self._loop.time()
        self._seen &= self._held.keys()
        watched = {
            held.job.id: (key, held)
            for key, held in self._held.items()
            if now_s - held.since_s >= YOUNG_S and key not in self._seen
        }
        if not watched:
            return
        watched = dict(list(watched.items())[:WATCHED_LEASES_MAX])
        is_settled = all(now_s - held.since_s >= SETTLED_S for held in self._held.values())
        wait_ms = LONG_WAIT_MS if is_settled else SHORT_WAIT_MS
        calling = self._loop.create_task(
            self._backend.watch_leases([held.job for _, held in watched.values()], wait_ms)
        )
        has_new = self._loop.create_task(self._has_new.wait())
        try:
            await asyncio.wait([calling, has_new] if is_settled else [calling], return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                return
        finally:
            has_new.cancel()
            calling.cancel()
        for task_id, code in calling.result():
            key = watched[task_id][0] if task_id in watched else ""
            self._seen.add(key)
            if code == Cancelled.code and key in self._held:
                self._cancelled(key, code)
