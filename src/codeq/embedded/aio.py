"""A queue in the same process with coroutines, on the event loop that opened it."""

import asyncio
import contextlib
import logging
import os
import random
from pathlib import Path

from codeq.clock import SteadyClock
from codeq.domain.errors import InvalidRequest, StoreError, StoreFailed
from codeq.domain.limits import RESTART_GRACE_MS
from codeq.domain.tenants import UNLIMITED, TenantLimits
from codeq.embedded.backend import CoreBackend
from codeq.sdk.durations import Seconds, milliseconds
from codeq.sdk.queue_policies import QueuePolicy, stored_policy
from codeq.sdk.verbs import Verbs
from codeq.store.data_dir import ARTIFACTS, back_up, open_rocksdb
from codeq.store.interface import Clock
from codeq.store.object_storage import DirectoryObjects
from codeq.usecases import sweep
from codeq.usecases.artifact_storage import ArtifactStorage
from codeq.usecases.core import Core, make_core
from codeq.usecases.waiters import Waiters

EVENTS_KEEP_MS = 7 * 86_400_000
EVENTS_KEEP_MAX = 100_000_000

log = logging.getLogger("codeq.sweep")


class AsyncQueue(Verbs):
    """The queues of one tenant in a data directory, on the event loop that opened it."""

    def __init__(
        self,
        core: Core,
        tenant: str,
        sweeper: "asyncio.Task[None] | None",
        *,
        is_opener: bool = True,
        artifacts: Path | None = None,
    ) -> None:
        super().__init__(CoreBackend(core, tenant))
        self.core = core
        self.tenant = tenant
        self._sweeper = sweeper
        self._is_opener = is_opener
        self._artifacts = artifacts
        """The directory with the files of results."""

    def for_tenant(self, tenant: str) -> "AsyncQueue":
        """The same store as another tenant. Only closing the queue that was opened closes the store."""
        return AsyncQueue(self.core, tenant, None, is_opener=False, artifacts=self._artifacts)

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """Writes a consistent copy, artifacts included, into a new directory while the queue stays in use."""
        await back_up(self.core.store, Path(target), artifacts=self._artifacts)

    async def close(self) -> None:
        """Waits until all changes are on disk, and releases the directory."""
        if not self._is_opener:
            return
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await super().close()


async def open_async(
    path: str | os.PathLike[str],
    *,
    tenant: str = "default",
    shards: int | None = None,
    durability: str = "fsync",
    defaults: QueuePolicy | None = None,
    recover: bool = False,
    grace: Seconds = RESTART_GRACE_MS / 1000,
    clock: Clock | None = None,
    sweeping: bool = True,
    strict_idempotency: bool = False,
    limits: TenantLimits = UNLIMITED,
) -> AsyncQueue:
    """Opens the data directory on this event loop, and creates it if it does not exist. Use it with `async with`.

    `durability="process"` acknowledges before the disk has confirmed: changes survive a killed process, not a power
    cut. `strict_idempotency` refuses a repeated idempotency key with another command or payload. `limits` bounds
    what each tenant may store. `clock` and `sweeping=False` are for tests that control the time.
    """
    if durability not in ("fsync", "process"):
        raise InvalidRequest(f"durability is 'fsync' or 'process', not {durability!r}")
    waiters = Waiters()
    store = open_rocksdb(
        Path(path),
        clock=clock or SteadyClock(),
        shards=shards,
        fsync=durability == "fsync",
        recover=recover,
        grace_ms=milliseconds(grace),
        listeners=[waiters],
    )
    core = make_core(
        store,
        waiters,
        stored_policy(defaults or QueuePolicy()),
        randomness=random.Random(),
        strict_idempotency=strict_idempotency,
        tenant_limits=limits,
        artifacts=ArtifactStorage(DirectoryObjects(Path(path) / ARTIFACTS)),
    )
    sweeper = None
    if sweeping:
        sweeper = asyncio.get_running_loop().create_task(_sweep(core))
    return AsyncQueue(core, tenant, sweeper, artifacts=Path(path) / ARTIFACTS)


async def _sweep(core: Core) -> None:
    """Sweeps until cancelled. Without sweepers no delay and no lease ends, so their death closes the store."""
    try:
        await sweep.run(core, events_keep_ms=EVENTS_KEEP_MS, events_keep_max=EVENTS_KEEP_MAX)
    except Exception as fault:
        log.critical("the sweepers have failed; the store is closed", exc_info=True)
        with contextlib.suppress(StoreError):  # if it had failed before
            await core.close(StoreFailed(f"the sweepers have failed: {type(fault).__name__}: {fault}; open it again"))
        raise
